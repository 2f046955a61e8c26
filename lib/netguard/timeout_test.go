package netguard

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nettest"
)

// wired is a guard that reaches example.com at a listener, whatever is there.
func wired(t *testing.T, l *nettest.Listener, o Options) *Guard {
	t.Helper()
	o.Resolver = resolver(map[string]string{"example.com": "127.0.0.1"})
	guard := guardOf(t, o)
	guard.dial = func(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) { return l.Dial(ctx) }
	return guard
}

// TestWebSocketOutlivesEveryTimeOut opens a WebSocket under short time-outs and a context that ends
// with the opening, and uses it when all of them are long over.
func TestWebSocketOutlivesEveryTimeOut(t *testing.T) {
	t.Parallel()
	for scheme, begin := range map[string]func(*httptest.Server){"ws": (*httptest.Server).Start, "wss": (*httptest.Server).StartTLS} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := nettest.Listen()
				server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(relay), ErrorLog: quiet}}
				begin(server)
				t.Cleanup(server.Close)
				o := Options{DialTimeout: time.Second, TLSTimeout: time.Second, HeaderTimeout: time.Second, RootCAs: x509.NewCertPool()}
				if cert := server.Certificate(); cert != nil {
					o.RootCAs.AddCert(cert)
				}
				opening, opened := context.WithTimeout(t.Context(), time.Second)
				conn, err := wired(t, l, o).DialWebSocket(opening, scheme+"://example.com", nil)
				opened()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.CloseNow()
				time.Sleep(time.Hour)
				if err := conn.Write(t.Context(), websocket.MessageText, []byte("REQ")); err != nil {
					t.Fatal(err)
				}
				if _, message, err := conn.Read(t.Context()); err != nil || string(message) != "REQ" {
					t.Fatalf("got %q, %v", message, err)
				}
				if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
					t.Logf("close: %v", err)
				}
			})
		})
	}
}

// TestTimeOuts: each step has its own time, and whoever takes longer is left.
func TestTimeOuts(t *testing.T) {
	t.Parallel()
	nobody := func(*testing.T, *nettest.Listener) {}
	mute := func(_ *testing.T, l *nettest.Listener) { go l.Accept() }
	slow := func(t *testing.T, l *nettest.Listener) {
		server := &httptest.Server{Listener: l, Config: &http.Server{ErrorLog: quiet, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stuck" {
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		})}}
		server.Start()
		t.Cleanup(server.Close)
	}
	const short, long = 3 * time.Second, 30 * time.Second
	patient := Options{DialTimeout: long, TLSTimeout: long, HeaderTimeout: long}
	for name, c := range map[string]struct {
		there   func(*testing.T, *nettest.Listener)
		url     string
		shorten func(*Options)
		client  []ClientOption
	}{
		"connection": {nobody, "http://example.com", func(o *Options) { o.DialTimeout = short }, nil},
		"handshake":  {mute, "https://example.com", func(o *Options) { o.TLSTimeout = short }, nil},
		"header":     {slow, "http://example.com/silent", func(o *Options) { o.HeaderTimeout = short }, nil},
		"exchange":   {slow, "http://example.com/stuck", func(*Options) {}, []ClientOption{WithTimeout(short)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, o := nettest.Listen(), patient
				c.shorten(&o)
				c.there(t, l)
				began := time.Now()
				_, _, err := get(t, wired(t, l, o).HTTPClient(c.client...), c.url)
				if Classify(err) != CauseTimeout || time.Since(began) != short {
					t.Errorf("%v is %s, after %v; want %v", err, Classify(err), time.Since(began), short)
				}
			})
		})
	}
}
