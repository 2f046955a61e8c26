package git_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/git"
	"tendril.dev/services/gateway/slow"
)

const npub = "npub180cvv07tjdrrgpa0j7j7tmnyl2yr6yr7l8j4s3evf6u64th6gkwsyjh6w6"

// shards sends every shard to one address, and remembers what it was asked.
type shards struct {
	asked chan string

	mu      sync.Mutex
	address string
	dead    map[string]bool // addresses of workers
}

func (s *shards) Lives(worker proto.Worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.dead[worker.Address]
}

func (s *shards) Holder(key string) (proto.Worker, bool) {
	select {
	case s.asked <- key:
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.Worker{Name: "w", Address: s.address}, s.address != ""
}

// die says that a worker is no longer live.
func (s *shards) die(worker *httptest.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = map[string]bool{worker.Listener.Addr().String(): true}
}

// move gives all shards to another worker; nil: to none.
func (s *shards) move(to *httptest.Server) {
	address := ""
	if to != nil {
		address = to.Listener.Addr().String()
	}
	s.at(address)
}

// at gives all shards to the worker at an address; empty: to none.
func (s *shards) at(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = address
}

// front serves a proxy to the worker, and gives its address. Requests do not wait for a worker.
func front(t *testing.T, worker http.Handler) (string, *shards) {
	t.Helper()
	addr, s, _ := patient(t, 0, 0)
	if worker != nil {
		s.move(start(t, worker))
	}
	return addr, s
}

// start serves a worker.
func start(t *testing.T, worker http.Handler) *httptest.Server {
	t.Helper()
	backend := httptest.NewServer(worker)
	t.Cleanup(backend.Close)
	return backend
}

// patient serves a proxy where so many requests may wait for so long, and no worker yet.
func patient(t *testing.T, wait time.Duration, waiting int) (string, *shards, *prometheus.Registry) {
	t.Helper()
	s := &shards{asked: make(chan string, 100)}
	settings := config.Front{GitRequestsPerIP: 2, GitRequestsPerMinute: 20, PushBytesPerHour: 1000}
	if waiting > 0 {
		settings = config.Front{GitRequestsPerIP: 1000, GitRequestsPerMinute: 1000, PushBytesPerHour: 1 << 40}
	}
	registry := prometheus.NewRegistry()
	metrics, err := git.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	p := git.New(git.Options{Shards: s, Limits: git.NewLimits(settings), Wait: wait, Waiting: max(1, waiting), Metrics: metrics, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(p.Close)
	server := httptest.NewServer(slow.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*") // as the gateway does
		at, err := nostr.ParseRepositoryPath(r.URL.EscapedPath())
		if err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		p.Serve(w, r, at, cmp.Or(r.Header.Get("X-Test-Client"), "192.0.2.7"))
	}), time.Minute))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), s, registry
}

// raw sends one request byte for byte.
func raw(t *testing.T, addr, request string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(c, request)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestPathsAndQueriesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	addr, s := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) }))
	for target, identifier := range map[string]string{
		"repo.git/info/refs?service=git-upload-pack": "repo",
		"a%2Fb.git/git-upload-pack":                  "a/b",
		"a%2fb.git/HEAD":                             "a/b",
		"%2e%2e%2F%2e%2e.git/info/refs":              "../..",
		"%2E%2E.git/info/refs":                       "..",
		"%F0%9F%8C%B1.git/info/refs?x=%zz&y=;":       "🌱",
		"a%25b%3Fc%23.git/git-receive-pack?":         "a%b?c#",
		"a:b@c+d.git/info/refs":                      "a:b@c+d",
		"%61bc.git/info/refs":                        "abc",
	} {
		target = "/" + npub + "/" + target
		resp, body := raw(t, addr, "GET "+target+" HTTP/1.1\r\nHost: git.example.com\r\nConnection: close\r\n\r\n")
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
	addr, _ := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		got <- r.Header
		w.Header().Set("Access-Control-Allow-Origin", "https://elsewhere.example")
		w.Header().Set("Cache-Control", "no-cache")
		w.WriteHeader(http.StatusNotFound)
	}))
	resp, _ := raw(t, addr, "GET /"+npub+"/r.git/info/refs HTTP/1.1\r\nHost: git.example.com\r\nX-Forwarded-For: 10.0.0.1\r\nGrasp-Client: 6.6.6.6\r\nGit-Protocol: version=2\r\n"+
		"Connection: close, X-Hop\r\nX-Hop: 1\r\nTe: gzip\r\n\r\n")
	h := <-got
	if h.Get("Host") != "git.example.com" || h.Get("X-Forwarded-For") != "" || h.Get(proto.HeaderClient) != "192.0.2.7" || len(h.Values(proto.HeaderClient)) != 1 || h.Get("Git-Protocol") != "version=2" {
		t.Errorf("the worker got %v", h)
	}
	for _, gone := range []string{"X-Hop", "Te", "User-Agent", "Accept-Encoding"} {
		if h.Get(gone) != "" {
			t.Errorf("the worker got %s: %s", gone, h.Get(gone))
		}
	}
	if origins := resp.Header.Values("Access-Control-Allow-Origin"); len(origins) != 1 || origins[0] != "*" || resp.StatusCode != 404 {
		t.Errorf("%s, origins %v", resp.Status, origins)
	}
	if resp.Header.Get("Cache-Control") != "no-cache" {
		t.Error("the worker's headers are lost")
	}
}

func TestNothingIsBuffered(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	}))
	in, out := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr+"/"+npub+"/r.git/git-receive-pack", in)
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan *http.Response, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			close(answer)
			return
		}
		answer <- resp
	}()
	fmt.Fprintln(out, "one")
	resp := <-answer
	if resp == nil {
		return
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); line != "heard one\n" {
		t.Fatalf("%q, %v", line, err)
	}
	out.Close()
}

func TestExpectContinue(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "refused") {
			w.WriteHeader(http.StatusForbidden) // without a look at the body, so that it is never sent
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d bytes", len(body))
	}))
	ask := func(repo string) (*bufio.Reader, net.Conn) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(c, "POST /%s/%s.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", npub, repo)
		return bufio.NewReader(c), c
	}
	r, c := ask("taken")
	if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != http.StatusContinue {
		t.Fatalf("%v, %v", resp, err)
	}
	fmt.Fprint(c, "hello")
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); string(body) != "5 bytes" {
		t.Errorf("body %q", body)
	}
	r, _ = ask("refused")
	if line, err := r.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 403") {
		t.Errorf("%q, %v", line, err)
	}
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	nobody, _ := front(t, nil)
	dead, s := front(t, nil)
	s.mu.Lock()
	s.address = "127.0.0.1:1" // no port that is given to whoever asks for any
	s.mu.Unlock()
	for _, addr := range []string{nobody, dead} {
		resp, body := raw(t, addr, "GET /"+npub+"/r.git/info/refs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || len(body) < 20 ||
			resp.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s %v %q", resp.Status, resp.Header, body)
		}
	}
}

// TestRequestsAtOnce: a client that does not read its answers holds up no other.
func TestRequestsAtOnce(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	began := make(chan struct{}, 2)
	addr, _ := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-release
	}))
	const request = "GET /" + npub + "/r.git/info/refs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	for range 2 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, request)
		<-began
	}
	resp, body := raw(t, addr, request)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "5" ||
		body != "rate-limited: at most 2 git requests at once from one address; try again in 5s\n" || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("%s %v %q", resp.Status, resp.Header, body)
	}
	close(release)
}

// TestPushedBytes: a push is cut off when its client has pushed enough, and the next does not
// begin.
func TestPushedBytes(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n > 1000 {
			return
		}
		fmt.Fprint(w, "taken")
	}))
	push := func(n int) (*http.Response, string) {
		return raw(t, addr, fmt.Sprintf("POST /%s/r.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", npub, n, strings.Repeat("x", n)))
	}
	if resp, body := push(700); body != "taken" {
		t.Fatalf("%s %s", resp.Status, body)
	}
	for _, n := range []int{700, 700} {
		resp, body := push(n)
		if resp.StatusCode != http.StatusTooManyRequests || !strings.HasPrefix(body, "rate-limited: at most 1000 bytes an hour are taken from one address; try again in ") {
			t.Errorf("%s %q", resp.Status, body)
		}
	}
	resp, _ := raw(t, addr, "GET /"+npub+"/r.git/info/refs?service=git-receive-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("asked whether it may push: %s", resp.Status)
	}
	resp, _ = raw(t, addr, "GET /"+npub+"/r.git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if resp.StatusCode != http.StatusOK {
		t.Errorf("asked to fetch: %s", resp.Status)
	}
}

// TestWorkerGivesUp: when the worker answers a request whose body does not come, the client hears
// it at once, and nothing of the request is left.
func TestWorkerGivesUp(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // else the server itself waits for the body first
		http.Error(w, "the request was sent too slowly", http.StatusRequestTimeout)
	}))
	for range 5 { // of 2 at once
		resp, body := raw(t, addr, "POST /"+npub+"/r.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n0032")
		if resp.StatusCode != http.StatusRequestTimeout || body != "the request was sent too slowly\n" || !resp.Close {
			t.Errorf("%s %q", resp.Status, body)
		}
	}
}

// TestClientGoes: the worker is told.
func TestClientGoes(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	addr, _ := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(began)
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		close(ended)
	}))
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "POST /%s/r.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n0032", npub)
	<-began
	c.Close()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the worker still waits for a client that has gone")
	}
}

// TestRequestBreaksOff: it is the client that has failed, and not the worker.
func TestRequestBreaksOff(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	for _, rest := range []string{"what\r\n", "4\r\n0032what"} {
		resp, body := raw(t, addr, fmt.Sprintf("POST /%s/r.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%s", npub, rest))
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "the request ended before it was whole") {
			t.Errorf("%q: %s %q", rest, resp.Status, body)
		}
	}
}
