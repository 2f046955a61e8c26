package netguard

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/test/fixture/nettest"
)

// wired is a guard that reaches everything at a listener.
func wired(t *testing.T, l *nettest.Listener) *Guard {
	t.Helper()
	guard := guardOf(t, nil)
	guard.dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) }
	return guard
}

// TestWebSocketOutlivesEveryTimeOut opens a WebSocket under short time-outs and a context that ends
// with the opening, and uses it when all of them are long over.
func TestWebSocketOutlivesEveryTimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := nettest.Listen()
		server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(relay), ErrorLog: quiet}}
		server.StartTLS()
		t.Cleanup(server.Close)
		guard := wired(t, l)
		guard.roots = x509.NewCertPool()
		guard.roots.AddCert(server.Certificate())
		opening, opened := context.WithTimeout(t.Context(), time.Second)
		conn, err := guard.DialWebSocket(opening, "wss://example.com", nil)
		opened()
		must(t, err)
		defer conn.CloseNow()
		time.Sleep(time.Hour)
		must(t, conn.Write(t.Context(), websocket.MessageText, []byte("REQ")))
		if _, message, err := conn.Read(t.Context()); err != nil || string(message) != "REQ" {
			t.Fatalf("got %q, %v", message, err)
		}
	})
}

// TestTimeOuts: each step has its own time.
func TestTimeOuts(t *testing.T) {
	t.Parallel()
	silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for name, c := range map[string]struct {
		there func(*testing.T, *nettest.Listener)
		url   string
		want  time.Duration
	}{
		"connection": {func(*testing.T, *nettest.Listener) {}, "http://example.com", dialTimeout},
		"handshake":  {func(_ *testing.T, l *nettest.Listener) { go l.Accept() }, "https://example.com", tlsTimeout},
		"header": {func(t *testing.T, l *nettest.Listener) {
			server := &httptest.Server{Listener: l, Config: &http.Server{ErrorLog: quiet, Handler: silent}}
			server.Start()
			t.Cleanup(server.Close)
		}, "http://example.com", headerTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := nettest.Listen()
				c.there(t, l)
				began := time.Now()
				_, _, err := get(t, wired(t, l).HTTPClient(), c.url)
				if Classify(err) != CauseTimeout || time.Since(began) != c.want {
					t.Errorf("%v is %s, after %v; want %v", err, Classify(err), time.Since(began), c.want)
				}
			})
		})
	}
}
