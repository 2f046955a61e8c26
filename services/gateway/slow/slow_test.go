package slow_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"tendril.dev/services/gateway/slow"
)

const patience = time.Minute

// serve answers with h behind the handler, and gives the address.
func serve(t *testing.T, stall time.Duration, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(slow.Handler(h, stall))
	server.Config.ReadHeaderTimeout = patience
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func dial(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c, bufio.NewReader(c)
}

// TestBodyThatDoesNotCome: whoever waits for it learns so, and the connection ends.
func TestBodyThatDoesNotCome(t *testing.T) {
	t.Parallel()
	read := make(chan error, 1)
	addr := serve(t, 50*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		read <- err
		http.Error(w, "too slow", http.StatusRequestTimeout)
	})
	c, r := dial(t, addr)
	fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nsome")
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusRequestTimeout || !resp.Close {
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
	addr := serve(t, patience, func(w http.ResponseWriter, r *http.Request) {
		requests <- r.URL.Path
		http.Error(w, "no", http.StatusNotFound)
	})
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

// TestConnectionGoesOn: bodies that were read to their end cost no connection, also where each
// request takes longer than the stall.
func TestConnectionGoesOn(t *testing.T) {
	t.Parallel()
	addr := serve(t, 20*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
			t.Error("cut off while it waits for the answer")
		case <-time.After(100 * time.Millisecond):
		}
		fmt.Fprint(w, "done")
	})
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

// TestAnswerThatIsNotTaken: the writer is told when the client has stopped reading.
func TestAnswerThatIsNotTaken(t *testing.T) {
	t.Parallel()
	wrote := make(chan error, 1)
	addr := serve(t, 100*time.Millisecond, func(w http.ResponseWriter, _ *http.Request) {
		pack := make([]byte, 1<<20)
		for {
			if _, err := w.Write(pack); err != nil {
				wrote <- err
				return
			}
			http.NewResponseController(w).Flush()
		}
	})
	c, _ := dial(t, addr)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-wrote:
		if !isTimeout(err) {
			t.Errorf("%v", err)
		}
	case <-time.After(patience):
		t.Fatal("the writer waits for ever")
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
