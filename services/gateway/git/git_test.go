package git_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/git"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

const npub = "npub180cvv07tjdrrgpa0j7j7tmnyl2yr6yr7l8j4s3evf6u64th6gkwsyjh6w6"

var must, eventually = fixture.Must, fixture.Await

// shards sends every shard to one address, and remembers what it was asked.
type shards struct {
	asked chan string
	asks  atomic.Int32

	address, dead atomic.Value // strings: of the worker, and of one that is not live
	banned        atomic.Pointer[bans.Ban]
}

func (s *shards) Repository(nostr.RepoRef) *bans.Ban { return s.banned.Load() }
func (s *shards) Lives(worker proto.Worker) bool     { return s.dead.Load() != worker.Address }
func (s *shards) Holder(key string) (proto.Worker, bool) {
	s.asks.Add(1)
	select {
	case s.asked <- key:
	default:
	}
	address, _ := s.address.Load().(string)
	return proto.Worker{Name: "w", Address: address}, address != ""
}

// move gives all shards to a worker.
func (s *shards) move(to *httptest.Server) { s.address.Store(to.Listener.Addr().String()) }

// start serves a worker.
func start(t *testing.T, worker http.Handler) *httptest.Server {
	t.Helper()
	backend := httptest.NewServer(worker)
	t.Cleanup(backend.Close)
	return backend
}

// front serves a proxy to the worker, and gives its address. Requests wait for one that is there
// for so long.
func front(t *testing.T, wait time.Duration, worker http.HandlerFunc) (string, *shards) {
	t.Helper()
	s := &shards{asked: make(chan string, 100)}
	if worker != nil {
		s.move(start(t, worker))
	}
	p := git.New(s, s, wait, slog.New(slog.DiscardHandler))
	t.Cleanup(p.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*") // as the gateway does
		at, err := nostr.ParseRepositoryPath(r.URL.EscapedPath())
		if err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		p.Serve(w, r, at, "192.0.2.7")
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), s
}

// raw sends one request byte for byte.
func raw(t *testing.T, addr, request string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(c, request)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp, string(body)
}

func TestPathsAndQueriesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	addr, s := front(t, 0, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) })
	for target, identifier := range map[string]string{
		"repo.git/info/refs?service=git-upload-pack": "repo",
		"a%2Fb.git/git-upload-pack":                  "a/b",
		"%2e%2e%2F%2e%2e.git/info/refs":              "../..",
		"%F0%9F%8C%B1.git/info/refs?x=%zz&y=;":       "🌱",
		"a%25b%3Fc%23.git/git-receive-pack?":         "a%b?c#",
	} {
		target = "/" + npub + "/" + target
		resp, body := raw(t, addr, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp.StatusCode != http.StatusOK || body != target {
			t.Errorf("sent %s\n got %s (%s)", target, body, resp.Status)
		}
		if asked, want := <-s.asked, proto.ShardName(proto.ShardOf(identifier)); asked != want {
			t.Errorf("%s: shard %s, want %s of %q", target, asked, want, identifier)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	got := make(chan http.Header, 1)
	addr, _ := front(t, 0, func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		got <- r.Header
		w.Header().Set("Access-Control-Allow-Origin", "https://elsewhere.example")
		w.Header().Set("Cache-Control", "no-cache")
		w.WriteHeader(http.StatusNotFound)
	})
	resp, _ := raw(t, addr, "GET /"+npub+"/r.git/info/refs HTTP/1.1\r\nHost: git.example.com\r\nX-Forwarded-For: 10.0.0.1\r\nGrasp-Client: 6.6.6.6\r\nGit-Protocol: version=2\r\n"+
		"Connection: close, X-Hop, Grasp-Client\r\nX-Hop: 1\r\nTe: gzip\r\n\r\n")
	h := <-got
	if h.Get("Host") != "git.example.com" || h.Get("X-Forwarded-For") != "" || h.Get(proto.HeaderClient) != "192.0.2.7" || len(h.Values(proto.HeaderClient)) != 1 || h.Get("Git-Protocol") != "version=2" {
		t.Errorf("the worker got %v", h)
	}
	for _, gone := range []string{"X-Hop", "Te", "User-Agent", "Accept-Encoding"} {
		if h.Get(gone) != "" {
			t.Errorf("the worker got %s: %s", gone, h.Get(gone))
		}
	}
	if origins := resp.Header.Values("Access-Control-Allow-Origin"); len(origins) != 1 || origins[0] != "*" || resp.StatusCode != 404 || resp.Header.Get("Cache-Control") != "no-cache" {
		t.Errorf("%s, %v", resp.Status, resp.Header)
	}
}

func TestNothingIsBuffered(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, 0, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		c.EnableFullDuplex()
		lines := bufio.NewReader(r.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(w, "heard "+line)
			c.Flush()
		}
	})
	in, out := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr+"/"+npub+"/r.git/git-receive-pack", in)
	must(t, err)
	go fmt.Fprintln(out, "one")
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); line != "heard one\n" {
		t.Fatalf("%q, %v", line, err)
	}
	out.Close()
}

func TestNoWorkerThere(t *testing.T) {
	t.Parallel()
	none, _ := front(t, 0, nil)
	dead, s := front(t, 0, nil)
	s.address.Store("127.0.0.1:1") // no port that is given to who asks for any
	for _, addr := range []string{none, dead} {
		resp, body := raw(t, addr, "GET /"+npub+"/r.git/info/refs HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || len(body) < 20 ||
			resp.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s %v %q", resp.Status, resp.Header, body)
		}
	}
}

// TestClientGoes: the worker is told.
func TestClientGoes(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	addr, _ := front(t, 0, func(w http.ResponseWriter, r *http.Request) {
		close(began)
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		close(ended)
	})
	c, err := net.Dial("tcp", addr)
	must(t, err)
	fmt.Fprintf(c, "POST /%s/r.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n0032", npub)
	<-began
	c.Close()
	<-ended
}

// TestRequestBreaksOff: it is the client that has failed, and not the worker.
func TestRequestBreaksOff(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, 0, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	for _, rest := range []string{"what\r\n", "4\r\n0032what"} {
		resp, body := raw(t, addr, fmt.Sprintf("POST /%s/r.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%s", npub, rest))
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "the request ended before it was whole") {
			t.Errorf("%q: %s %q", rest, resp.Status, body)
		}
	}
}

const patience = fixture.Patience

// elsewhere is a worker that holds nothing.
var elsewhere = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	http.Error(w, "another worker holds the repository", http.StatusMisdirectedRequest)
})

// echo is a worker that answers with the length of what it is sent.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	fmt.Fprint(w, n, err)
})

// answered is an answer, or why there is none.
type answered struct {
	status int
	body   string
	err    error
}

// ask sends a request in the background. body nil: a GET.
func ask(t *testing.T, addr, service string, body io.Reader) <-chan answered {
	t.Helper()
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/"+npub+"/r.git/"+service, body)
	must(t, err)
	done := make(chan answered, 1)
	go func() {
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			done <- answered{err: err}
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		done <- answered{resp.StatusCode, string(text), err}
	}()
	return done
}

func await(t *testing.T, done <-chan answered) answered { return fixture.Receive(t, "an answer", done) }

// TestWaitsForAWorker: while a shard has no worker, or only one that does not hold it any more,
// requests of any kind wait. None of a large push is read meanwhile, so that it is sent to the next
// worker whole.
func TestWaitsForAWorker(t *testing.T) {
	t.Parallel()
	const large = 8 << 20
	for _, before := range []struct{ name, worker string }{
		{"none", ""},
		{"one that gives it away", start(t, elsewhere).Listener.Addr().String()},
		{"one that has stopped", nettest.Refusing(t)},
	} {
		t.Run(before.name, func(t *testing.T) {
			t.Parallel()
			addr, s := front(t, patience, nil)
			s.address.Store(before.worker)
			var read atomic.Int64
			push := ask(t, addr, "git-receive-pack", io.TeeReader(io.LimitReader(zeroes{}, large), counter{&read}))
			requests := map[string]<-chan answered{
				"GET":   ask(t, addr, "info/refs?service=git-upload-pack", nil),
				"fetch": ask(t, addr, "git-upload-pack", strings.NewReader("0032want")),
			}
			eventually(t, "all wait", func() bool { return s.asks.Load() > 9 })
			// What has left the client is in the buffers of two sockets, not with us.
			if n := read.Load(); n == large {
				t.Error("the push has been read while it waits")
			}
			s.move(start(t, echo))
			if a := await(t, push); a.status != http.StatusOK || a.body != fmt.Sprint(large, " <nil>") {
				t.Errorf("push: %+v", a)
			}
			for name, want := range map[string]string{"GET": "0 <nil>", "fetch": "8 <nil>"} {
				if a := await(t, requests[name]); a.status != http.StatusOK || a.body != want {
					t.Errorf("%s: %+v", name, a)
				}
			}
		})
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// TestWhatIsSentAgain: when a worker dies in the middle of a request, one without a body is sent to
// the next, and one of whose body the worker has read something is not.
func TestWhatIsSentAgain(t *testing.T) {
	t.Parallel()
	for service, body := range map[string]io.Reader{
		"info/refs?service=git-receive-pack": nil,
		"HEAD":                               nil,
		"git-upload-pack":                    strings.NewReader("0032want"),
		"git-receive-pack":                   strings.NewReader("00a8the commands of a push"),
	} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			addr, s := front(t, patience, nil)
			var begun atomic.Int32
			next := start(t, echo)
			s.move(start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				begun.Add(1)
				if _, err := io.ReadFull(r.Body, make([]byte, 8)); err != nil && r.Method == http.MethodPost {
					t.Error(err)
				}
				s.move(next)
				panic(http.ErrAbortHandler)
			})))
			a := await(t, ask(t, addr, service, body))
			want := http.StatusServiceUnavailable
			if body == nil {
				want = http.StatusOK
			}
			if a.err != nil || a.status != want || begun.Load() != 1 {
				t.Errorf("%+v, error %v, begun %d times", a, a.err, begun.Load())
			}
		})
	}
}

// TestWorkerDiesWithoutAWord: a node that loses its power closes no connection. What it was asked
// is asked elsewhere once its worker is known to be dead, and an answer that has begun ends.
func TestWorkerDiesWithoutAWord(t *testing.T) {
	t.Parallel()
	for name, begins := range map[string]bool{"before the answer": false, "in the middle of it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, shards := front(t, patience, nil)
			asked, hung := make(chan bool), make(chan bool)
			silent := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if begins {
					fmt.Fprint(w, "half of")
					http.NewResponseController(w).Flush()
				}
				asked <- true
				<-hung
			}))
			t.Cleanup(func() { close(hung) })
			shards.move(silent)
			done := ask(t, addr, "info/refs?service=git-upload-pack", nil)
			<-asked
			shards.move(start(t, echo)) // which alone ends nothing: the worker may be finishing
			select {
			case got := <-done:
				t.Fatalf("the worker lives, and the client was told %+v", got)
			case <-time.After(1200 * time.Millisecond): // two beats
			}
			shards.dead.Store(silent.Listener.Addr().String())
			got := await(t, done)
			if begins && got.err == nil {
				t.Errorf("half an answer ended well: %+v", got)
			}
			if !begins && (got.err != nil || got.status != http.StatusOK || got.body != "0 <nil>") {
				t.Errorf("answered %+v by the next worker", got)
			}
		})
	}
}

// TestBanned: a repository that is banned is refused with the reason, and what is under way ends.
func TestBanned(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	addr, s := front(t, 0, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "some")
		w.(http.Flusher).Flush()
		close(begun)
		<-r.Context().Done()
	})
	done := ask(t, addr, "info/refs", nil)
	<-begun
	s.banned.Store(&bans.Ban{Ban: proto.Ban{Reason: "spam"}})
	if a := await(t, done); a.err == nil {
		t.Errorf("a clone ends well that was under way: %+v", a)
	}
	resp, body := raw(t, addr, "GET /"+npub+"/r.git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp.StatusCode != http.StatusForbidden || body != "blocked: spam\n" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("%s: %q", resp.Status, body)
	}
}
