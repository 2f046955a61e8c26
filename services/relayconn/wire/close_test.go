package wire_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nettest"
	"tendril.dev/services/relayconn/wire"
)

// talk is a connection to a relay that does what fn says, in the bubble of the test: its time is
// not the machine's.
func talk(t *testing.T, goodbye time.Duration, fn func(ws *websocket.Conn)) *wire.Conn {
	t.Helper()
	l := nettest.Listen()
	var talking sync.WaitGroup
	talking.Add(1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer talking.Done()
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		fn(ws)
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close(); talking.Wait() })
	var socket net.Conn
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (_ net.Conn, err error) {
		socket, err = l.Dial(ctx)
		return socket, err
	}}}
	ws, _, err := websocket.Dial(t.Context(), "ws://relay", &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.On(ws, func() { socket.Close() }, goodbye)
	t.Cleanup(conn.Close)
	return conn
}

// TestGoodbye: the end of the context says 1001 to the relay, gives nothing more to the reader, and
// waits for no longer than the answer takes.
func TestGoodbye(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const takes = time.Second
		end := make(chan websocket.StatusCode, 1)
		conn := talk(t, time.Hour, func(ws *websocket.Conn) {
			time.Sleep(takes)
			for {
				if _, _, err := ws.Read(context.Background()); err != nil {
					end <- websocket.CloseStatus(err)
					return
				}
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		began := time.Now()
		go func() {
			done <- conn.Read(ctx, func(wire.Message) error { return errors.New("a message after the end") })
		}()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("read ends with %v", err)
		}
		if code := <-end; code != websocket.StatusGoingAway {
			t.Errorf("the relay hears %v, want 1001", code)
		}
		if took := time.Since(began); took != takes {
			t.Errorf("it took %v", took)
		}
		if err := conn.Req(ctx, "a", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a request after the end: %v", err)
		}
	})
}

// TestTooLargeIsPassedOver: what comes after one event that is larger than the bus takes is still
// worth having; what is larger by far is not read to its end.
func TestTooLargeIsPassedOver(t *testing.T) {
	t.Parallel()
	notice := func(n int) []byte { return []byte(`["NOTICE","` + strings.Repeat("x", n) + `"]`) }
	url := serve(t, func(ctx context.Context, ws *websocket.Conn) {
		for _, n := range []int{2000, 5, 15_000, 6, 17_000, 7} {
			ws.Write(ctx, websocket.MessageText, notice(n))
		}
		<-ctx.Done()
	})
	conn := dial(t, url, 1000)
	var heard []int
	err := conn.Read(t.Context(), func(m wire.Message) error {
		heard = append(heard, len(m.Reason))
		return nil
	})
	if len(heard) != 2 || heard[0] != 5 || heard[1] != 6 {
		t.Errorf("heard notices of %v bytes", heard)
	}
	if netguard.Classify(err) != netguard.CauseProtocol {
		t.Errorf("read ends with %v", err)
	}
}
