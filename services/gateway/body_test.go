package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/limit"
)

// answering serves h as the door does, and gives the address.
func answering(t *testing.T, stall time.Duration, h http.HandlerFunc, listener func(net.Listener) net.Listener) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer takeBody(w, r, stall).end(w)
		h(w, r)
	}))
	server.Config.ReadHeaderTimeout = patience
	if listener != nil {
		server.Listener = listener(server.Listener)
	}
	places := limit.NewFair(100, 100)
	server.Listener = newBounded(server.Listener, places, func(netip.Addr) bool { return false }, stall)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func dial(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c, bufio.NewReader(c)
}

// TestBodyThatDoesNotCome: the handler is told, and the connection ends.
func TestBodyThatDoesNotCome(t *testing.T) {
	t.Parallel()
	read := make(chan error, 1)
	addr := answering(t, 50*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		read <- err
		http.Error(w, "too slow", http.StatusRequestTimeout)
	}, nil)
	c, r := dial(t, addr)
	fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nsome")
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusRequestTimeout {
		t.Fatalf("%v, %v", resp, err)
	}
	if err := <-read; err == nil {
		t.Error("the handler read a whole body")
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	if _, err := r.ReadByte(); err == nil || isTimeout(err) {
		t.Errorf("the connection stays open: %v", err)
	}
}

// TestAnswerWithoutTheBody: a request that is answered without a look at its body holds nothing,
// and what comes of the body is no next request.
func TestAnswerWithoutTheBody(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 10)
	addr := answering(t, patience, func(w http.ResponseWriter, r *http.Request) {
		requests <- r.URL.Path
		w.Header().Set("Connection", "close") // as the door does
		http.Error(w, "no", http.StatusNotFound)
	}, nil)
	c, r := dial(t, addr)
	fmt.Fprint(c, "POST /first HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
	resp, err := http.ReadResponse(r, nil)
	if err != nil || !resp.Close {
		t.Fatalf("%v, %v", resp, err)
	}
	io.Copy(io.Discard, resp.Body)
	fmt.Fprint(c, "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := r.ReadByte(); err == nil || isTimeout(err) {
		t.Errorf("the connection stays open: %v", err)
	}
	if n := len(requests); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// inSteps is a server's connection that, once its own direction is closed, stays until the client
// has taken everything: how long a server gives it is no matter for a test.
type inSteps struct {
	*net.TCPConn
	half  atomic.Bool
	taken <-chan struct{}
}

func (c *inSteps) CloseWrite() error { c.half.Store(true); return c.TCPConn.CloseWrite() }

func (c *inSteps) Close() error {
	if c.half.Load() {
		<-c.taken
	}
	return c.TCPConn.Close()
}

type inStepsListener struct {
	net.Listener
	taken <-chan struct{}
}

func (l inStepsListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &inSteps{TCPConn: c.(*net.TCPConn), taken: l.taken}, nil
}

// TestAnswerReachesWhoIsStillSending: a client that is told in the middle of a long body why it is
// refused gets the whole answer, not a reset.
func TestAnswerReachesWhoIsStillSending(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"length": "Content-Length: 1000000000\r\n\r\n",
		"chunks": "Transfer-Encoding: chunked\r\n\r\n3b9aca00\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reason := strings.Repeat("no! ", 64<<10)
			taken := make(chan struct{})
			addr := answering(t, patience, func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).EnableFullDuplex()
				io.ReadFull(r.Body, make([]byte, 1<<20))
				http.Error(w, reason, http.StatusForbidden)
			}, func(l net.Listener) net.Listener { return inStepsListener{l, taken} })
			defer close(taken)
			c, r := dial(t, addr)
			fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\n", head)
			part := make([]byte, 64<<10)
			for range 16 { // as much as is read
				if _, err := c.Write(part); err != nil {
					t.Fatal(err)
				}
			}
			resp, err := http.ReadResponse(r, nil)
			must(t, err)
			// The answer is under way: more is sent before all of it has been taken.
			if _, err := c.Write(part); err != nil {
				t.Error(err)
			}
			if body, err := io.ReadAll(resp.Body); string(body) != reason+"\n" || err != nil {
				t.Errorf("%d bytes of the answer, %v", len(body), err)
			}
		})
	}
}

// TestConnectionGoesOn: bodies that were read to their end cost no connection, also where each
// request takes longer than the stall.
func TestConnectionGoesOn(t *testing.T) {
	t.Parallel()
	const stall = 500 * time.Millisecond // longer than a process waits for its turn on a busy machine
	addr := answering(t, stall, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
			t.Error("cut off while it waits for the answer")
		case <-time.After(2 * stall):
		}
		fmt.Fprint(w, "done")
	}, nil)
	c, r := dial(t, addr)
	for range 3 {
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.Close {
			t.Fatalf("%v, %v", resp, err)
		}
		if body, err := io.ReadAll(resp.Body); string(body) != "done" {
			t.Errorf("%q, %v", body, err)
		}
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
