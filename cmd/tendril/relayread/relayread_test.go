package relayread_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/coder/websocket"

	"tendril.dev/cmd/tendril/relayread"
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
		if r.instead != nil && r.instead(int(r.requests.Add(1)), id, ws) {
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

func (r *relay) start(t *testing.T) (url string) {
	t.Helper()
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http")
}

// events are so many, each of so many in one second.
func events(n, together int) (all []*nostr.Event) {
	for i := range n {
		all = append(all, &nostr.Event{ID: fmt.Sprintf("%064x", i+1), CreatedAt: nostr.Timestamp(1_700_000_000 - i/together), Kind: 1, Tags: nostr.Tags{}, Content: "a\nb", PubKey: strings.Repeat("a", 64), Sig: strings.Repeat("b", 128)})
	}
	return all
}

// ids reads everything and gives the ids of the events, in their order, each once.
func ids(t *testing.T, in io.Reader) (got []string, err error) {
	t.Helper()
	text, err := io.ReadAll(in)
	have := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		var ev nostr.Event
		if err := json.Unmarshal([]byte(line), &ev); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%q: %v", line, err)
		}
		if !have[ev.ID] {
			have[ev.ID] = true
			got = append(got, ev.ID)
		}
	}
	return got, err
}

func idsOf(all []*nostr.Event) (ids []string) {
	for _, ev := range all {
		ids = append(ids, ev.ID)
	}
	return ids
}

// TestEverythingIsRead: whatever a relay shows at once, all of its events come; also where it hangs
// up, or asks for patience, now and then.
func TestEverythingIsRead(t *testing.T) {
	t.Parallel()
	hangsUp := func(request int, _ string, ws *websocket.Conn) bool { return request%3 == 1 }
	patience := func(request int, id string, ws *websocket.Conn) bool {
		if request%3 == 1 {
			say(ws, "CLOSED", id, "rate-limited: not so fast")
		}
		return request%3 == 1
	}
	for name, r := range map[string]*relay{
		"nothing":           {most: 500},
		"less than a page":  {events: events(20, 3), most: 500},
		"pages":             {events: events(1100, 3), most: 500},
		"small pages":       {events: events(300, 3), most: 17},
		"hangs up":          {events: events(300, 3), most: 40, instead: hangsUp},
		"asks for patience": {events: events(300, 3), most: 40, instead: patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := 0
			reader := relayread.New(r.start(t), func(n int) { told = n }).Hasten()
			got, err := ids(t, iotest.HalfReader(reader.Open(t.Context())))
			if err == nil {
				err = reader.Missing()
			}
			if err != nil || !slices.Equal(got, idsOf(r.events)) || told < len(got) {
				t.Errorf("%d of %d came, %d were told: %v", len(got), len(r.events), told, err)
			}
		})
	}
}

// TestWhatIsNotShownIsTold: a second that has more events than the relay shows at once.
func TestWhatIsNotShownIsTold(t *testing.T) {
	t.Parallel()
	r := &relay{events: events(90, 30), most: 20}
	reader := relayread.New(r.start(t), nil)
	got, err := ids(t, reader.Open(t.Context()))
	if err != nil || len(got) < 60 {
		t.Errorf("%d came: %v", len(got), err)
	}
	if err := reader.Missing(); err == nil || !strings.Contains(err.Error(), "may have more events than it shows: those created from 2023-11-14T22:13:20Z to 2023-11-14T22:13:20Z, ") {
		t.Errorf("of what is missing it says %v", err)
	}
}

// TestRefusal: a relay that does not let itself be read, or is not there, is an error, and never
// the good end of the events.
func TestRefusal(t *testing.T) {
	t.Parallel()
	closed := func(_ int, id string, ws *websocket.Conn) bool {
		say(ws, "CLOSED", id, "auth-required: members only")
		return true
	}
	gone := func(_ int, id string, ws *websocket.Conn) bool {
		say(ws, "NOTICE", "we are closing down")
		say(ws, "EVENT", id, nostr.Event{ID: strings.Repeat("a", 64), CreatedAt: 1})
		return true
	}
	elsewhere := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1", http.StatusFound))
	t.Cleanup(elsewhere.Close)
	for name, c := range map[string]struct {
		url, want string
		requests  int64
		relay     *relay
	}{
		"refused":  {want: `it does not answer: "auth-required: members only"`, requests: 1, relay: &relay{instead: closed}},
		"gone":     {want: `(its last notice: "we are closing down")`, requests: 5, relay: &relay{instead: gone}},
		"redirect": {url: "ws" + strings.TrimPrefix(elsewhere.URL, "http"), want: "expected handshake response status code 101 but got 302", relay: &relay{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := c.url
			if url == "" {
				url = c.relay.start(t)
			}
			_, err := ids(t, relayread.New(url, nil).Hasten().Open(t.Context()))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), url) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if n := c.relay.requests.Load(); n != c.requests {
				t.Errorf("it was asked %d times, want %d", n, c.requests)
			}
		})
	}
}

// TestInterrupt ends the reading, as closing does.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	never := func(int, string, *websocket.Conn) bool {
		close(asked)
		<-t.Context().Done()
		return true
	}
	ctx, cancel := context.WithCancel(t.Context())
	in := relayread.New((&relay{instead: never}).start(t), nil).Open(ctx)
	go func() {
		<-asked
		cancel()
	}()
	if _, err := ids(t, in); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("interrupted: %v", err)
	}
}

// TestNothingIsAskedBeforeItIsRead: whoever opens a relay may have much to do before it reads. A
// page that waits for that would be too late.
func TestNothingIsAskedBeforeItIsRead(t *testing.T) {
	t.Parallel()
	r := &relay{events: events(300, 3), most: 20, instead: func(int, string, *websocket.Conn) bool { return false }}
	url := r.start(t)
	before := relayread.New(url, nil).Open(t.Context())
	defer before.Close()
	for round := range 2 {
		asked := r.requests.Load()
		if got, err := ids(t, relayread.New(url, nil).Open(t.Context())); err != nil || len(got) != len(r.events) {
			t.Fatalf("%d came: %v", len(got), err)
		}
		if asked = r.requests.Load() - asked; round == 1 && 2*asked != r.requests.Load() {
			t.Errorf("it was asked %d times in two readings, and %d times in the second", r.requests.Load(), asked)
		}
	}
	if got, err := ids(t, before); err != nil || len(got) != len(r.events) {
		t.Errorf("%d came in the end: %v", len(got), err)
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"wss://r.example": true, "ws://127.0.0.1:7334": true, "events.jsonl": false, "-": false, "https://r.example": false, "wss:": false} {
		if relayread.Named(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
