package netguard

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// quiet takes the log of servers whose clients misbehave on purpose.
var quiet = log.New(io.Discard, "", 0)

// relay upgrades and then echoes.
func relay(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if err := conn.Write(r.Context(), kind, message); err != nil {
			return
		}
	}
}

func TestDialWebSocketCauses(t *testing.T) {
	t.Parallel()
	status := func(code int) string {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }).URL
	}
	redirect := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "ws://169.254.169.254/", http.StatusFound)
	})
	halfway := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
	})
	closedPort, _ := listen(t, "127.0.0.1", func(conn net.Conn) { conn.Close() })
	ssh, _ := listen(t, "127.0.0.1", func(conn net.Conn) {
		defer conn.Close()
		io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n")
		io.Copy(io.Discard, conn)
	})
	secure, _ := serveTLS(t, relay)
	guard := guardOf(t, nil)
	for _, c := range []struct {
		name, url string
		want      Cause
	}{
		{"a web page", status(200), CauseProtocol},
		{"forbidden", status(403), CauseOther},
		{"not found", status(404), CauseOther},
		{"not implemented", status(501), CauseOther},
		{"too many requests", status(429), CauseOther},
		{"a gateway without its relay", status(502), CauseOther},
		{"half an upgrade", halfway.URL, CauseProtocol},
		{"redirect into our network", redirect.URL, CauseRefused},
		{"no such name", "wss://nowhere.example", CauseDNS},
		{"one who hangs up", "ws://127.0.0.1:" + closedPort, CauseConnect},
		{"one who hangs up on TLS", "wss://127.0.0.1:" + closedPort, CauseConnect},
		{"unknown authority", strings.Replace(secure.URL, "https", "wss", 1), CauseTLS},
		{"SSH", "ws://127.0.0.1:" + ssh, CauseProtocol},
		{"SSH to TLS", "wss://127.0.0.1:" + ssh, CauseTLS},
		{"this machine", "ws://127.0.0.3:80", CauseRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := guard.DialWebSocket(ctx, c.url, nil)
			if got := Classify(err); got != c.want {
				t.Fatalf("%v is %q, want %q", err, got, c.want)
			}
			// One line of a table must have room for the reason.
			if said := err.Error(); !strings.HasPrefix(said, "open WebSocket to "+c.url+": ") || strings.Contains(said, "WebSocket dial") || strings.Contains(said, "Get ") {
				t.Errorf("the reason comes behind the libraries' steps: %v", err)
			}
		})
	}
}
