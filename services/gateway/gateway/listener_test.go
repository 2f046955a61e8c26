package gateway

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"tendril.dev/lib/limit"
)

// TestWhoTakesAnAnswerAtAStop is not told by it of the stop, and is waited for until the next
// request.
func TestWhoTakesAnAnswerAtAStop(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-goOn
		fmt.Fprint(w, "answer")
	}))
	connections := newBounded(server.Listener, limit.NewFair(math.MaxInt64, 10), func(netip.Addr) bool { return false })
	server.Listener, server.Config.ConnState = connections, connections.watch
	server.Start()
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	answers := bufio.NewReader(conn)
	ask := func() { fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); <-begun }
	answer := func() {
		t.Helper()
		goOn <- struct{}{}
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
	}
	stands := func(stopping bool, idle, unaware int) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			connections.mu.Lock()
			as := fmt.Sprint(connections.stopping, connections.idle[""].Len(), len(connections.unaware))
			connections.mu.Unlock()
			if as == fmt.Sprint(stopping, idle, unaware) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("stopping, idle, unaware: %s, want %t %d %d", as, stopping, idle, unaware)
			}
		}
	}
	ask()
	stands(false, 0, 1)
	told := make(chan struct{})
	go func() { defer close(told); connections.tellAll(t.Context()) }()
	stands(true, 0, 1)
	answer()
	stands(true, 1, 1)
	select {
	case <-told:
		t.Error("nobody waits for the next request")
	default:
	}
	ask()
	<-told
	answer()
	stands(true, 1, 0)
}
