package wire_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   string
		want wire.Message
		bad  bool
	}{
		{in: `["EOSE","a"]`, want: wire.Message{Kind: wire.EOSE, Sub: "a"}},
		{in: `["CLOSED","a","rate-limited: x"]`, want: wire.Message{Kind: wire.Closed, Sub: "a", Reason: "rate-limited: x"}},
		{in: `["CLOSED","a"]`, want: wire.Message{Kind: wire.Closed, Sub: "a"}},
		{in: `["AUTH","of today"]`, want: wire.Message{Kind: wire.Auth, Reason: "of today"}},
		{in: `["AUTH","` + strings.Repeat("x", 501) + `"]`},
		{in: `["NOTICE","hi"]`, want: wire.Message{Kind: wire.Notice, Reason: "hi"}},
		{in: `["NOTICE","` + strings.Repeat("x", 1000) + `"]`, want: wire.Message{Kind: wire.Notice, Reason: strings.Repeat("x", 500)}},
		{in: `["NEG-ERR","a","blocked: x",500]`, want: wire.Message{Kind: wire.NegErr, Sub: "a", Reason: "blocked: x"}},
		{in: `["NEG-ERR","a"]`, want: wire.Message{Kind: wire.NegErr, Sub: "a"}},
		{in: `["NEG-MSG","a","61ff"]`, want: wire.Message{Kind: wire.NegMsg, Sub: "a", Frame: []byte{0x61, 0xff}}},
		{in: `["NEG-MSG","a","61FF"]`, want: wire.Message{Kind: wire.NegMsg, Sub: "a", Frame: []byte{0x61, 0xff}}},
		{in: `["NEG-MSG","a","6"]`, want: wire.Message{Kind: wire.NegMsg, Sub: "a"}},
		{in: `["NEG-MSG","a","6x"]`, want: wire.Message{Kind: wire.NegMsg, Sub: "a"}},
		{in: `["NEG-MSG","a",""]`, want: wire.Message{Kind: wire.NegMsg, Sub: "a"}},
		{in: `["NEG-MSG","a",61]`, want: wire.Message{Kind: wire.NegMsg, Sub: "a"}},
		{in: `["NEG-MSG","a"]`, bad: true},
		{in: `["NEG-MSG",1,"61"]`, bad: true},
		{in: `["NEG-ERR"]`, bad: true},
		{in: `["AUTH",1]`, bad: true},
		{in: `["AUTH"]`, bad: true},
		{in: `["EVENT","a",{},1]`, bad: true},
		{in: `["EVENT","a"]`, bad: true},
		{in: `["EVENT",1,{}]`, bad: true},
		{in: `["EVENT","a","text"]`, bad: true},
		{in: `["EOSE"]`, bad: true},
		{in: `[]`, bad: true},
		{in: `{}`, bad: true},
		{in: `null`, bad: true},
		{in: ``, bad: true},
		{in: `["EOSE","a"`, bad: true},
	} {
		got, err := wire.Parse([]byte(tc.in))
		if (err != nil) != tc.bad || err == nil && (got.Sub != tc.want.Sub || got.Reason != tc.want.Reason || tc.want.Kind != "" && got.Kind != tc.want.Kind || !bytes.Equal(got.Frame, tc.want.Frame)) {
			t.Errorf("%.60s: %+v, %v", tc.in, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`["EVENT","a",{"id":"x","kind":1,"tags":[["a"]],"content":"","created_at":1,"pubkey":"","sig":""}]`))
	f.Add([]byte(`["CLOSED","a","b"]`))
	f.Add([]byte(`["NEG-MSG","a","6101"]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := wire.Parse(data)
		if err == nil && m.Kind == wire.Event && m.Event == nil {
			t.Fatal("an EVENT without event")
		}
		if m.Event != nil && err == nil {
			m.Event.CheckID() // what is done with it next must not panic
		}
	})
}

// serve returns the URL of a relay that does what fn says with every connection.
func serve(t *testing.T, fn func(ctx context.Context, ws *websocket.Conn)) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		fn(r.Context(), ws)
	}))
	t.Cleanup(srv.Close)
	return "ws" + strings.TrimPrefix(srv.URL, "http")
}

func dial(t *testing.T, url string, most int64) *wire.Conn {
	t.Helper()
	conn, err := wire.Dial(t.Context(), netguard.New(netguard.Options{AllowPrivate: true}), url, most)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func TestConversation(t *testing.T) {
	t.Parallel()
	heard := make(chan string, 2)
	url := serve(t, func(ctx context.Context, ws *websocket.Conn) {
		for range 2 {
			_, data, err := ws.Read(ctx)
			if err != nil {
				return
			}
			heard <- string(data)
		}
		ws.Write(ctx, websocket.MessageText, []byte(`["EOSE","a"]`))
		<-ctx.Done()
	})
	conn := dial(t, url, 1000)
	if err := errors.Join(conn.Req(t.Context(), "a", []nostr.Filter{{Kinds: []int{1}, LimitZero: true}}), conn.Unsubscribe(t.Context(), "a")); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != `["REQ","a",{"kinds":[1],"limit":0}]` {
		t.Errorf("REQ is %s", got)
	}
	if got := <-heard; got != `["CLOSE","a"]` {
		t.Errorf("CLOSE is %s", got)
	}
	stop := errors.New("stop")
	if err := conn.Read(t.Context(), func(m wire.Message) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("read ends with %v", err)
	}
}

// TestHostileMessages: what is too large ends the connection, garbage is passed over for a while
// and then a breach of the protocol.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(i int) (websocket.MessageType, []byte){
		"too large": func(int) (websocket.MessageType, []byte) {
			return websocket.MessageText, []byte(`["NOTICE","` + strings.Repeat("x", 2000) + `"]`)
		},
		"garbage": func(i int) (websocket.MessageType, []byte) {
			return websocket.MessageText, fmt.Append(nil, "garbage ", i)
		},
		"binary": func(int) (websocket.MessageType, []byte) { return websocket.MessageBinary, []byte(`["EOSE","a"]`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, func(ctx context.Context, ws *websocket.Conn) {
				for i := 0; ; i++ {
					typ, data := send(i)
					if ws.Write(ctx, typ, data) != nil {
						return
					}
				}
			})
			conn := dial(t, url, 1000)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			err := conn.Read(ctx, func(m wire.Message) error { return fmt.Errorf("took %+v for a message", m) })
			if err == nil || ctx.Err() != nil || strings.Contains(err.Error(), "took") {
				t.Errorf("read ends with %v", err)
			}
		})
	}
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
