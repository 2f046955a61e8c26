package wire_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

func TestParse(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 501)
	for in, want := range map[string]string{ // verb, subscription, reason, frame
		`["EOSE","a"]`: "EOSE a  ", `["CLOSED","a","rate-limited: x"]`: "CLOSED a rate-limited: x ", `["CLOSED","a"]`: "CLOSED a  ",
		`["AUTH","today"]`: "AUTH  today ", `["AUTH","` + long + `"]`: "AUTH  " + long[1:] + " ", `["NOTICE","hi"]`: "NOTICE  hi ", `["NOTICE","` + long + `"]`: "NOTICE  " + long[1:] + " ",
		`["NEG-ERR","a","blocked: x",500]`: "NEG-ERR a blocked: x ", `["NEG-ERR","a"]`: "NEG-ERR a  ", `["NEG-MSG","a","61fF"]`: "NEG-MSG a  61ff",
		`["NEG-MSG","a","6"]`: "NEG-MSG a  ", `["NEG-MSG","a","6x"]`: "NEG-MSG a  ", `["OK","a",true]`: "   ",
		`["COUNT",` + strings.Repeat("1,", 100000) + `1]`: "   ",
	} {
		m, err := wire.Parse([]byte(in))
		if got := fmt.Sprintf("%s %s %s %x", m.Kind, m.Sub, m.Reason, m.Frame); err != nil || got != want {
			t.Errorf("%.60s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{
		`["NEG-MSG","a"]`, `["NEG-MSG",1,"61"]`, `["NEG-MSG","a",61]`, `["NEG-ERR"]`, `["AUTH",1]`, `["AUTH"]`, `["EVENT","a"]`, `["EVENT",1,{}]`,
		`["EVENT","a","text"]`, `["EOSE"]`, `["CLOSED","a",1]`, `[1]`, `[]`, `{"a":"EOSE","b":"a"}`, `null`, ``, `["EOSE","a"`,
	} {
		if got, err := wire.Parse([]byte(in)); err == nil {
			t.Errorf("%s: taken for %+v", in, got)
		}
	}
}

// TestParseEvent: however the message around it is written, the event is the same, and shares no
// memory with it. What only looks like an event is none.
func TestParseEvent(t *testing.T) {
	t.Parallel()
	ev := &nostr.Event{Kind: 1621, CreatedAt: 1_700_000_000, Content: "A line of text.", Tags: nostr.Tags{{"a", "30617:x:tendril"}, {"subject", "an issue"}}}
	must(t, ev.Sign("0000000000000000000000000000000000000000000000000000000000000001"))
	raw := ev.String()
	for message, sub := range map[string]string{
		`["EVENT","h1",` + raw + `]`:                                               "h1",
		` [ "EVENT" , "h1" , ` + raw + " ] \r\n":                                   "h1",
		`["EVENT","",` + raw + `]`:                                                 "",
		`["EVENT","h1",` + raw + `,[1],{"a":2},null]`:                              "h1",
		`["EVENT","h\"\u0031é",` + raw + `]`:                                       `h"1é`,
		`["\u0045VENT","h1",` + raw + `]`:                                          "h1",
		`["EVENT","h1",` + strings.Replace(raw, `"kind":`, "\"kind\":\n", 1) + `]`: "h1",
		// Some relays add fields of their own.
		`["EVENT","h1",` + strings.Replace(raw, `"kind":`, `"ots":"AE9w",`+`"seen":{"on":[1,{"a":null}]},"kind":`, 1) + `]`: "h1",
	} {
		data := []byte(message)
		m, err := wire.Parse(data)
		clear(data)
		if err != nil || m.Kind != wire.Event || m.Sub != sub || !reflect.DeepEqual(m.Event, ev) {
			t.Errorf("%s: %+v, %v", message, m, err)
		}
	}
	for _, message := range []string{
		`["EVENT","a",` + raw + `]]`, `["EVENT","a",` + raw + `],`, `["EVENT","a",` + raw, `["EVENT","a" ` + raw + `]`, `["EVENT" "a",` + raw + `]`,
		`["EVENT","a",]`, `"EVENT","a",` + raw + `]`, `["EVENT","a",` + raw + `,[1,]]`,
		`["EVENT","a",` + strings.Replace(raw, "A line", "\xff line", 1) + `]`, `["EVENT",` + raw + `]`,
	} {
		if m, err := wire.Parse([]byte(message)); err == nil {
			t.Errorf("%.60s: taken for %+v", message, m)
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

// dial connects to a relay that does what fn says with every connection. No message may have more
// than 1000 bytes.
func dial(t *testing.T, fn func(ctx context.Context, ws *websocket.Conn)) *wire.Conn {
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
	conn, err := wire.Dial(t.Context(), netguard.New(netguard.Options{AllowPrivate: true}), "ws"+strings.TrimPrefix(srv.URL, "http"), 1000)
	must(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// TestConversation: what is said to a relay goes over the wire as NIP-01 and NIP-77 have it, and
// what it says is read until the reader has enough.
func TestConversation(t *testing.T) {
	t.Parallel()
	heard := make(chan string, 5)
	conn := dial(t, func(ctx context.Context, ws *websocket.Conn) {
		for {
			_, data, err := ws.Read(ctx)
			if err != nil {
				return
			}
			heard <- string(data)
			_ = ws.Write(ctx, websocket.MessageText, []byte(`["EOSE","a"]`))
		}
	})
	since := nostr.Timestamp(7)
	conn.Req("a", []nostr.Filter{{Kinds: []int{1}, LimitZero: true}})
	conn.Unsubscribe("a")
	conn.NegOpen("n1", nostr.Filter{Since: &since, Tags: nostr.TagMap{"e": {"x\"y"}}}, []byte{0x61, 0})
	conn.NegMsg("n1", []byte{0x61, 0xab})
	conn.NegClose("n1")
	for _, want := range []string{
		`["REQ","a",{"kinds":[1],"limit":0}]`, `["CLOSE","a"]`, `["NEG-OPEN","n1",{"since":7,"#e":["x\"y"]},"6100"]`, `["NEG-MSG","n1","61ab"]`, `["NEG-CLOSE","n1"]`,
	} {
		if got := <-heard; got != want {
			t.Errorf("said %s, want %s", got, want)
		}
	}
	enough := errors.New("enough")
	if err := conn.Read(t.Context(), func(wire.Message) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("read ends with %v", err)
	}
	conn.Close()
	conn.Req("b", []nostr.Filter{{}})
	if err := conn.Read(t.Context(), func(wire.Message) error { return nil }); err == nil || !strings.HasPrefix(err.Error(), "write to relay: ") {
		t.Errorf("read ends with %v after a request that cannot be written", err)
	}
}

// TestHostileMessages: what is too large ends the connection, garbage is passed over for a while
// and then a breach of the protocol.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	text, binary := websocket.MessageText, websocket.MessageBinary
	for message, typ := range map[string]websocket.MessageType{`["NOTICE","` + strings.Repeat("x", 2000) + `"]`: text, "garbage": text, `["EOSE","a"]`: binary, "an opcode that is none": 3} {
		t.Run(message[:7], func(t *testing.T) {
			t.Parallel()
			conn := dial(t, func(ctx context.Context, ws *websocket.Conn) {
				for ws.Write(ctx, typ, []byte(message)) == nil {
				}
			})
			err := conn.Read(t.Context(), func(m wire.Message) error {
				if m.Kind == wire.Dropped && m.Reason == wire.TooLarge == strings.HasPrefix(message, `["NOTICE"`) {
					return nil
				}
				return fmt.Errorf("took %+v for a message", m)
			})
			if netguard.Classify(err) != netguard.CauseProtocol {
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
	conn := dial(t, func(ctx context.Context, ws *websocket.Conn) {
		for _, n := range []int{2000, 5, 15_000, 6, 9 << 20, 7} {
			ws.Write(ctx, websocket.MessageText, notice(n))
		}
		<-ctx.Done()
	})
	var heard []int
	err := conn.Read(t.Context(), func(m wire.Message) error {
		if m.Kind == wire.Notice {
			heard = append(heard, len(m.Reason))
		}
		return nil
	})
	if len(heard) != 2 || heard[0] != 5 || heard[1] != 6 {
		t.Errorf("heard notices of %v bytes", heard)
	}
	if netguard.Classify(err) != netguard.CauseProtocol {
		t.Errorf("read ends with %v", err)
	}
}

// TestALargeAnswerOfNIP77 is read, where another message of its size is passed over.
func TestALargeAnswerOfNIP77(t *testing.T) {
	t.Parallel()
	conn := dial(t, func(ctx context.Context, ws *websocket.Conn) {
		for _, n := range []int{3 << 20, 4 << 20, 10} {
			ws.Write(ctx, websocket.MessageText, []byte(`["NEG-MSG","n1","`+strings.Repeat("61", n/2)+`"]`))
		}
		<-ctx.Done()
	})
	var heard []int
	enough := errors.New("enough")
	conn.Read(t.Context(), func(m wire.Message) error {
		if heard = append(heard, len(m.Frame)); len(m.Frame) == 5 {
			return enough
		}
		return nil
	})
	if fmt.Sprint(heard) != fmt.Sprint([]int{3 << 19, 0, 5}) {
		t.Errorf("heard frames of %v bytes", heard)
	}
}
