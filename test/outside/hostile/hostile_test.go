package hostile

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
	"tendril.dev/test/outside"
)

// victim connects to a relay that does a trick with two events.
func victim(t *testing.T, trick Trick) *websocket.Conn {
	t.Helper()
	who, err := outside.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	var events []*nostr.Event
	for n := range 3 {
		ev, err := who.Sign(nostr.Now(), 1621, fmt.Sprint("issue ", n))
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
	r, err := New(trick, events...)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	ws, _, err := websocket.Dial(t.Context(), "ws://"+l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.CloseNow() })
	return ws
}

func send(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func next(t *testing.T, ws *websocket.Conn) string {
	t.Helper()
	_, data, err := ws.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// read reads the event of an EVENT message.
func read(t *testing.T, text string) *nostr.Event {
	t.Helper()
	raw, found := strings.CutPrefix(text, `["EVENT","s",`)
	if !found {
		t.Fatalf("not an event: %.200s", text)
	}
	var ev nostr.Event
	if err := json.Unmarshal([]byte(strings.TrimSuffix(raw, "]")), &ev); err != nil {
		t.Fatal(err)
	}
	return &ev
}

const req = `["REQ","s",{}]`

func TestForged(t *testing.T) {
	t.Parallel()
	ws := victim(t, Forged)
	send(t, ws, req)
	for range 3 {
		ev := read(t, next(t, ws))
		if ok, _ := ev.CheckSignature(); ok && ev.CheckID() {
			t.Errorf("a good event: %s", ev)
		}
	}
	if got := next(t, ws); got != `["EOSE","s"]` {
		t.Errorf("then %s", got)
	}
}

func TestEndless(t *testing.T) {
	t.Parallel()
	ws := victim(t, Endless)
	send(t, ws, req)
	for range 1000 {
		read(t, next(t, ws))
	}
}

func TestFloods(t *testing.T) {
	t.Parallel()
	for trick, want := range map[Trick]string{Noticing: `["NOTICE",`, Closing: `["CLOSED",`} {
		ws := victim(t, trick)
		send(t, ws, req)
		for range 1000 {
			if got := next(t, ws); !strings.HasPrefix(got, want) {
				t.Fatalf("%s: %s", trick, got)
			}
		}
	}
}

func TestBrokenOff(t *testing.T) {
	t.Parallel()
	ws := victim(t, Abrupt)
	send(t, ws, req)
	if _, _, err := ws.Read(t.Context()); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("it ends with %v", err)
	}
}

func TestGigantic(t *testing.T) {
	t.Parallel()
	ws := victim(t, Gigantic)
	ws.SetReadLimit(4 << 20)
	send(t, ws, req)
	if _, data, err := ws.Read(t.Context()); !errors.Is(err, websocket.ErrMessageTooBig) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// TestWaitInVain: of a silent relay and one that drips nothing whole comes.
func TestWaitInVain(t *testing.T) {
	t.Parallel()
	for _, trick := range []Trick{Silent, Dripping} {
		ws := victim(t, trick)
		send(t, ws, req)
		ctx, cancel := context.WithTimeout(t.Context(), 5*drip)
		defer cancel()
		if _, data, err := ws.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %s, %v", trick, data, err)
		}
	}
}

func TestPromising(t *testing.T) {
	t.Parallel()
	ws := victim(t, Promising)
	ws.SetReadLimit(4 << 20)
	own := reconcile.Pack(nil)
	message, err := reconcile.Start(t.Context(), own, reconcile.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	send(t, ws, fmt.Sprintf(`["NEG-OPEN","s",{},%q]`, hex.EncodeToString(message)))
	var m []string
	if err := json.Unmarshal([]byte(next(t, ws)), &m); err != nil || m[0] != "NEG-MSG" {
		t.Fatalf("answered %s, %v", m, err)
	}
	answer, err := hex.DecodeString(m[2])
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	if _, _, err := reconcile.Continue(t.Context(), own, answer, reconcile.DefaultLimits, func([32]byte) error {
		named++
		return nil
	}); err != nil || named != promised {
		t.Fatalf("%d ids are named, want %d: %v", named, promised, err)
	}
	send(t, ws, req)
	if got := next(t, ws); got != `["EOSE","s"]` {
		t.Errorf("it delivers %s", got)
	}
}
