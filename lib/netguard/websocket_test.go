package netguard

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/test/fixture"
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
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.URL.Path[1:])
		must(t, err)
		switch code {
		case http.StatusFound:
			w.Header().Set("Location", "ws://169.254.169.254/")
		case http.StatusSwitchingProtocols:
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
		}
		w.WriteHeader(code)
	})
	closedPort, _ := listen(t, "127.0.0.1", func(conn net.Conn) { conn.Close() })
	ssh, _ := listen(t, "127.0.0.1", func(conn net.Conn) {
		defer conn.Close()
		io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n")
		io.Copy(io.Discard, conn)
	})
	secure, _ := serveTLS(t, relay)
	guard := guardOf(t, nil)
	words := strings.NewReplacer("SERVER", server.URL, "CLOSED", "127.0.0.1:"+closedPort, "SSH", "127.0.0.1:"+ssh, "SECURE", secure.Listener.Addr().String())
	for _, c := range fixture.Rows(words.Replace(`
		a web page                  | SERVER/200            | protocol
		forbidden                   | SERVER/403            | other
		not found                   | SERVER/404            | other
		not implemented             | SERVER/501            | other
		too many requests           | SERVER/429            | other
		a gateway without its relay | SERVER/502            | other
		half an upgrade             | SERVER/101            | protocol
		redirect into our network   | SERVER/302            | refused
		a redirect to nowhere       | SERVER/308            | other
		no such name                | wss://nowhere.example | dns
		one who hangs up            | ws://CLOSED           | connect
		one who hangs up on TLS     | wss://CLOSED          | connect
		unknown authority           | wss://SECURE          | tls
		another protocol            | ws://SSH              | protocol
		another protocol for TLS    | wss://SSH             | tls
		this machine                | ws://127.0.0.3:80     | refused`)) {
		t.Run(c[0], func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := guard.DialWebSocket(ctx, c[1], nil)
			if got := Classify(err); string(got) != c[2] {
				t.Fatalf("%v is %q, want %q", err, got, c[2])
			}
			// One line of a table must have room for the reason.
			if said := err.Error(); !strings.HasPrefix(said, "open WebSocket to "+c[1]+": ") || strings.Contains(said, "WebSocket dial") || strings.Contains(said, "Get ") {
				t.Errorf("the reason comes behind the libraries' steps: %v", err)
			}
		})
	}
}
