package importer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// relay answers each REQ with its newest events, most of them at once.
type relay struct {
	events []*nostr.Event // newest first
	most   int
	// instead is said instead of the answer to a request, by its number from 1; false: nothing is.
	instead func(request int, id string, ws *websocket.Conn) bool

	requests atomic.Int64
}

func (r *relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ws, err := websocket.Accept(w, req, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow()
	say(ws, "AUTH", "challenge")
	for {
		_, message, err := ws.Read(req.Context())
		if err != nil {
			return
		}
		var parts []json.RawMessage
		var verb, id string
		if json.Unmarshal(message, &parts) != nil || json.Unmarshal(parts[0], &verb) != nil || verb != "REQ" || json.Unmarshal(parts[1], &id) != nil {
			continue
		}
		if n := int(r.requests.Add(1)); r.instead != nil && r.instead(n, id, ws) {
			return
		}
		var f nostr.Filter
		if json.Unmarshal(parts[2], &f) != nil {
			return
		}
		n := 0
		for _, ev := range r.events {
			if n < min(r.most, f.Limit) && f.Matches(ev) {
				n++
				say(ws, "EVENT", id, ev)
				say(ws, "EVENT", "another", nostr.Event{ID: "of another request"})
			}
		}
		say(ws, "EOSE", id)
	}
}

func say(ws *websocket.Conn, message ...any) {
	text, _ := json.Marshal(message)
	ws.Write(context.Background(), websocket.MessageText, text)
}

// past are so many events, each of so many in one second.
func past(n, together int) (all []*nostr.Event) {
	for i := range n {
		all = append(all, &nostr.Event{
			ID: fmt.Sprintf("%064x", i+1), CreatedAt: nostr.Timestamp(1_700_000_000 - i/together), Kind: 1, Tags: nostr.Tags{},
			Content: "a\nb", PubKey: strings.Repeat("a", 64), Sig: strings.Repeat("b", 128),
		})
	}
	return all
}

// TestRelay: all events of a relay come, each once, also where it hangs up, asks for patience or
// says odd things now and then. One that does not let itself be read, or not all of it, is an
// error.
func TestRelay(t *testing.T) {
	t.Parallel()
	hangsUp := func(request int, _ string, _ *websocket.Conn) bool { return request%3 == 1 }
	patience := func(request int, id string, ws *websocket.Conn) bool {
		if request%3 == 1 {
			say(ws, "CLOSED", id, "rate-limited: not so fast")
		}
		return request%3 == 1
	}
	odd := func(_ int, id string, ws *websocket.Conn) bool {
		for _, message := range []string{
			`["EVENT","` + id + `",` + strings.Repeat("[", 4_000_000), `{"EVENT":"` + id + `"}`, "", `["EVENT","` + id + `",{"id":[{}],"created_at":{}},{}]`, `["NOTICE",17,{}]`,
		} {
			ws.Write(context.Background(), websocket.MessageText, []byte(message))
		}
		return false
	}
	closed := func(_ int, id string, ws *websocket.Conn) bool {
		say(ws, "CLOSED", id, "auth-required: members only")
		return true
	}
	gone := func(_ int, id string, ws *websocket.Conn) bool {
		say(ws, "EVENT", id, nostr.Event{ID: strings.Repeat("a", 64), CreatedAt: 1})
		return true
	}
	instead := map[string]func(int, string, *websocket.Conn) bool{"hangs up": hangsUp, "asks for patience": patience, "says odd things": odd, "refused": closed, "gone": gone}
	// How many events it has, how many of one second, how many it sends at once; how often it is
	// asked; the error.
	for _, c := range fixture.Rows(`
		nothing           | 0 1 500    | 1 |
		less than a page  | 20 3 500   |   |
		pages             | 1100 3 500 |   |
		small pages       | 300 3 17   |   |
		hangs up          | 300 3 40   |   |
		asks for patience | 300 3 40   |   |
		says odd things   | 20 3 500   |   |
		refused           | 0 1 0      | 1 | it does not answer: "auth-required: members only"
		gone              | 0 1 0      | 5 | EOF
		a crowded second  | 90 30 20   |   | may have more events than it shows: those created from 2023-11-14T22:13:20Z to 2023-11-14T22:13:20Z,`) {
		t.Run(c[0], func(t *testing.T) {
			t.Parallel()
			var n, together int
			there := &relay{instead: instead[c[0]]}
			_, err := fmt.Sscan(c[1], &n, &together, &there.most)
			fixture.Must(t, err)
			there.events = past(n, together)
			s := httptest.NewServer(there)
			defer s.Close()
			r := NewRelay("ws"+strings.TrimPrefix(s.URL, "http"), []nostr.Filter{{}})
			r.pause = time.Millisecond
			came, want := 0, c[3]
			err = r.Lines(func(line Line) {
				if came++; want == "" && !bytes.Equal(line.Event, nostr.Encode(there.events[came-1])) {
					t.Errorf("%d: %s came", came, line.Event)
				}
			})
			err = errors.Join(err, r.Missing())
			if want == "" && (err != nil || came != n) {
				t.Errorf("%d of %d came: %v", came, n, err)
			}
			if want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the relay ws://")) {
				t.Errorf("%v, want %s", err, want)
			}
			if asked := fmt.Sprint(there.requests.Load()); c[2] != "" && asked != c[2] {
				t.Errorf("it was asked %s times, want %s", asked, c[2])
			}
		})
	}
}
