package importer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
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

// read reads all of a server, and gives the ids in their order, each once.
func read(t *testing.T, handler http.Handler) (ids []string, err error) {
	t.Helper()
	s := httptest.NewServer(handler)
	defer s.Close()
	r := NewRelay("ws" + strings.TrimPrefix(s.URL, "http"))
	r.pause = time.Millisecond
	have := map[string]bool{}
	err = r.Lines(func(line Line) {
		var ev nostr.Event
		if err := json.Unmarshal(line.Event, &ev); err != nil {
			t.Fatalf("%q: %v", line.Event, err)
		}
		if !have[ev.ID] {
			have[ev.ID] = true
			ids = append(ids, ev.ID)
		}
	})
	return ids, errors.Join(err, r.Missing())
}

// past are so many events, each of so many in one second.
func past(n, together int) (all []*nostr.Event, ids []string) {
	for i := range n {
		all = append(all, &nostr.Event{
			ID: fmt.Sprintf("%064x", i+1), CreatedAt: nostr.Timestamp(1_700_000_000 - i/together), Kind: 1, Tags: nostr.Tags{},
			Content: "a\nb", PubKey: strings.Repeat("a", 64), Sig: strings.Repeat("b", 128),
		})
		ids = append(ids, all[i].ID)
	}
	return all, ids
}

// TestEverythingIsRead: all events of a relay come, also where it hangs up, or asks for patience,
// now and then.
func TestEverythingIsRead(t *testing.T) {
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
			`["EVENT","` + id + `",` + strings.Repeat("[", 4_000_000), strings.Repeat("[", 2_000_000) + strings.Repeat("]", 2_000_000),
			`["EVENT","` + id + `"` + strings.Repeat(",1", 2_000_000) + "]", `{"EVENT":"` + id + `"}`, "",
			`["EVENT","` + id + `",{"id":[{}],"created_at":{}},{}]`, `["NOTICE",17,{}]`,
		} {
			ws.Write(context.Background(), websocket.MessageText, []byte(message))
		}
		return false
	}
	for name, c := range map[string]struct {
		events, most int
		instead      func(int, string, *websocket.Conn) bool
	}{
		"nothing": {0, 500, nil}, "less than a page": {20, 500, nil}, "pages": {1100, 500, nil}, "small pages": {300, 17, nil},
		"hangs up": {300, 40, hangsUp}, "asks for patience": {300, 40, patience}, "says odd things": {20, 500, odd},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events, ids := past(c.events, 3)
			if got, err := read(t, &relay{events: events, most: c.most, instead: c.instead}); err != nil || !slices.Equal(got, ids) {
				t.Errorf("%d of %d came: %v", len(got), len(ids), err)
			}
		})
	}
}

// TestRefusal: a relay that does not let itself be read, or not all of it, is an error.
func TestRefusal(t *testing.T) {
	t.Parallel()
	closed := func(_ int, id string, ws *websocket.Conn) bool {
		say(ws, "CLOSED", id, "auth-required: members only")
		return true
	}
	gone := func(_ int, id string, ws *websocket.Conn) bool {
		say(ws, "EVENT", id, nostr.Event{ID: strings.Repeat("a", 64), CreatedAt: 1})
		return true
	}
	crowded, _ := past(90, 30)
	for name, c := range map[string]struct {
		relay    *relay
		want     string
		requests int64
	}{
		"refused": {&relay{instead: closed}, `it does not answer: "auth-required: members only"`, 1},
		"gone":    {&relay{instead: gone}, "EOF", tries},
		"a crowded second": {&relay{events: crowded, most: 20},
			"may have more events than it shows: those created from 2023-11-14T22:13:20Z to 2023-11-14T22:13:20Z, ", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := read(t, c.relay); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "the relay ws://") {
				t.Errorf("%v, want %s", err, c.want)
			}
			if n := c.relay.requests.Load(); c.requests > 0 && n != c.requests {
				t.Errorf("it was asked %d times, want %d", n, c.requests)
			}
		})
	}
}
