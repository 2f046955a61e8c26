package git_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/nettest"
)

const patience = time.Minute

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
func ask(t *testing.T, addr, service, client string, body io.Reader) <-chan answered {
	t.Helper()
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/"+npub+"/r.git/"+service, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Test-Client", client)
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

func await(t *testing.T, done <-chan answered) answered {
	t.Helper()
	select {
	case a := <-done:
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
		return answered{}
	}
}

// metric is the sum of a metric's values, or of its counts.
func metric(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.Metric {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

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
			addr, s, registry := patient(t, patience, 100)
			s.at(before.worker)
			var read atomic.Int64
			push := ask(t, addr, "git-receive-pack", "a", io.TeeReader(io.LimitReader(zeroes{}, large), counter{&read}))
			requests := map[string]<-chan answered{
				"GET":   ask(t, addr, "info/refs?service=git-upload-pack", "b", nil),
				"fetch": ask(t, addr, "git-upload-pack", "c", strings.NewReader("0032want")),
			}
			eventually(t, "all wait", func() bool { return metric(t, registry, "tendril_gateway_git_waiting") == 3 })
			if before.worker != "" {
				eventually(t, "and are sent again", func() bool { return metric(t, registry, "tendril_gateway_git_repeats_total") > 6 })
			}
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
			if n := metric(t, registry, "tendril_gateway_git_waiting"); n != 0 {
				t.Errorf("%v wait", n)
			}
			if n := metric(t, registry, "tendril_gateway_git_wait_seconds"); n != 3 {
				t.Errorf("%v have waited", n)
			}
		})
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// TestWhatIsSentAgain: when a worker dies in the middle of a request, those that only read are sent
// to the next one, and a push of which the worker has read something is not.
func TestWhatIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		service string
		body    func() io.Reader
		again   bool
	}{
		{"info/refs?service=git-receive-pack", func() io.Reader { return nil }, true},
		{"HEAD", func() io.Reader { return nil }, true},
		{"git-upload-pack", func() io.Reader { return bytes.NewReader(make([]byte, 300_000)) }, true},
		{"git-upload-pack", func() io.Reader { return bytes.NewReader(make([]byte, 2<<20)) }, false},             // too large to be kept
		{"git-upload-pack", func() io.Reader { return io.LimitReader(zeroes{}, 300_000) }, false},                // of no length that is known
		{"git-receive-pack", func() io.Reader { return strings.NewReader("00a8the commands of a push") }, false}, // it may have begun
	} {
		t.Run(test.service, func(t *testing.T) {
			t.Parallel()
			addr, s, _ := patient(t, patience, 100)
			var begun atomic.Int32
			next := start(t, echo)
			s.move(start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				begun.Add(1)
				if _, err := io.ReadFull(r.Body, make([]byte, 10)); err != nil && r.Method == http.MethodPost {
					t.Error(err)
				}
				s.move(next)
				panic(http.ErrAbortHandler)
			})))
			a := await(t, ask(t, addr, test.service, "a", test.body()))
			want := http.StatusServiceUnavailable
			if test.again {
				want = http.StatusOK
			}
			if a.err != nil || a.status != want || begun.Load() != 1 {
				t.Errorf("%+v, error %v, begun %d times", a, a.err, begun.Load())
			}
			if test.again && test.service == "git-upload-pack" && a.body != "300000 <nil>" {
				t.Errorf("the next worker got %s", a.body)
			}
		})
	}
}

// TestNoInterimAnswers: a client that did not ask for them gets none, though the worker is asked
// for one.
func TestNoInterimAnswers(t *testing.T) {
	t.Parallel()
	addr, _ := front(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "100-continue" {
			t.Errorf("Expect: %q", r.Header.Get("Expect"))
		}
		echo(w, r)
	}))
	resp, body := raw(t, addr, "POST /"+npub+"/r.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\n0000")
	if resp.StatusCode != http.StatusOK || body != "4 <nil>" {
		t.Errorf("%s %q", resp.Status, body)
	}
}

// TestWaitingIsBounded: one client has a part of the places, all have no more than there are, and
// nobody who has a worker notices. Who has waited for long enough is told so.
func TestWaitingIsBounded(t *testing.T) {
	t.Parallel()
	const places, each = 32, 2
	addr, s, registry := patient(t, patience, places)
	var waiting []<-chan answered
	wait := func(client string, now int) {
		t.Helper()
		waiting = append(waiting, ask(t, addr, "info/refs?service=git-upload-pack", client, nil))
		eventually(t, "it waits", func() bool { return metric(t, registry, "tendril_gateway_git_waiting") == float64(now) })
	}
	for n := range each {
		wait("flood", n+1)
	}
	if a := await(t, ask(t, addr, "HEAD", "flood", nil)); a.status != http.StatusTooManyRequests ||
		a.body != "rate-limited: too many git requests from your address wait for a worker; try again in 10s\n" {
		t.Errorf("one more of that client: %+v", a)
	}
	for n := each; n < places; n++ {
		wait(fmt.Sprint("stranger", n), n+1)
	}
	a := await(t, ask(t, addr, "HEAD", "late", nil))
	if a.status != http.StatusServiceUnavailable || a.body != "too many git requests wait for a worker; try again in a few seconds\n" {
		t.Errorf("one more than there are places: %+v", a)
	}
	s.move(start(t, echo))
	if a := await(t, ask(t, addr, "HEAD", "late", nil)); a.status != http.StatusOK {
		t.Errorf("whoever need not wait: %+v", a)
	}
	for _, done := range waiting {
		if a := await(t, done); a.status != http.StatusOK {
			t.Errorf("one that waited: %+v", a)
		}
	}
	s.move(nil)
	short, _, _ := patient(t, 50*time.Millisecond, places)
	if a := await(t, ask(t, short, "HEAD", "a", nil)); a.status != http.StatusServiceUnavailable {
		t.Errorf("after its time: %+v", a)
	}
}

// TestClientGoesWhileItWaits: its place is free again.
func TestClientGoesWhileItWaits(t *testing.T) {
	t.Parallel()
	addr, _, registry := patient(t, patience, 100)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /%s/r.git/HEAD HTTP/1.1\r\nHost: x\r\n\r\n", npub)
	eventually(t, "it waits", func() bool { return metric(t, registry, "tendril_gateway_git_waiting") == 1 })
	c.Close()
	eventually(t, "it does not wait any more", func() bool { return metric(t, registry, "tendril_gateway_git_waiting") == 0 })
}

// TestManyMoves: requests of many clients, while their shard goes back and forth between workers of
// which only the holder takes any, and is without one in between.
func TestManyMoves(t *testing.T) {
	t.Parallel()
	addr, s, _ := patient(t, patience, 1000)
	var holder atomic.Int32
	worker := func(self int32) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if holder.Load() != self {
				elsewhere(w, r)
				return
			}
			echo(w, r)
		})
	}
	workers := []*httptest.Server{start(t, worker(0)), start(t, worker(1))}
	stop := make(chan struct{})
	var moving, clients sync.WaitGroup
	moving.Go(func() {
		for n := int32(0); ; n++ {
			holder.Store(n % 2) // before the front door hears of it, or after
			s.move(nil)
			time.Sleep(time.Millisecond)
			s.move(workers[n%2])
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
			}
		}
	})
	for client := range 4 {
		clients.Go(func() {
			for n := range 50 {
				size := 1000 + n*20_000
				a := await(t, ask(t, addr, "git-receive-pack", fmt.Sprint(client), bytes.NewReader(make([]byte, size))))
				if a.err != nil || a.status != http.StatusOK || a.body != fmt.Sprint(size, " <nil>") {
					t.Errorf("push of %d bytes: %+v", size, a)
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	moving.Wait()
}

// TestWorkerDiesWithoutAWord: a node that loses its power closes no connection. What it was asked
// is asked elsewhere once its worker is known to be dead, and an answer that has begun ends.
func TestWorkerDiesWithoutAWord(t *testing.T) {
	t.Parallel()
	for name, begins := range map[string]bool{"before the answer": false, "in the middle of it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, shards, _ := patient(t, patience, 10)
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
			done := ask(t, addr, "info/refs?service=git-upload-pack", "a", nil)
			<-asked
			shards.move(start(t, echo)) // which alone ends nothing: the worker may be finishing
			select {
			case got := <-done:
				t.Fatalf("the worker lives, and the client was told %+v", got)
			case <-time.After(1200 * time.Millisecond): // two beats
			}
			shards.die(silent)
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
