package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/relay"
)

func TestStoredEvents(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.DefaultLimit, b.MaxLimit, b.MaxFilters = 3, 5, 3 })
	for i := range 10 {
		sys.store(t, fake(i, 1621+i%2, nostr.Tag{"t", fmt.Sprint(i % 3)}))
	}
	numbers := func(ns ...int) (contents []string) {
		for _, n := range ns {
			contents = append(contents, fmt.Sprintf("event %d", n))
		}
		return contents
	}
	c := sys.dial(t)
	for filters, want := range map[string][]string{
		`{}`:                                     numbers(9, 8, 7),
		`{"limit":100}`:                          numbers(9, 8, 7, 6, 5),
		`{"limit":0}`:                            nil,
		`{"kinds":[1621],"limit":2},{"limit":3}`: numbers(9, 8, 7, 6),
		`{"since":1700000009},{"#t":["1"]}`:      numbers(9, 7, 4, 1),
		`{"ids":["` + fake(4, 1621, nostr.Tag{"t", "1"}).ID + `"]}`: numbers(4),
	} {
		c.say(`["REQ","s",%s]`, filters)
		if got := c.events("s"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", filters, got, want)
		}
	}
	for filters, want := range map[string]string{
		`{}`:                            `["COUNT","c",{"count":10}]`,
		`{"kinds":[1621]},{"#t":["0"]}`: `["COUNT","c",{"count":7}]`,
	} {
		c.hears(want, `["COUNT","c",%s]`, filters)
	}
}

// TestNothingIsLostOrDoubled opens subscriptions while events are being committed: each event comes
// once, in the stored part or live.
func TestNothingIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	const events, clients, subscriptions = 1500, 4, 5
	sys := start(t, "--relay-filter-limit=100000")
	var all []*nostr.Event
	for i := range events {
		all = append(all, fake(i%97, 1621, nostr.Tag{"n", fmt.Sprint(i)}))
	}
	var readers sync.WaitGroup
	for n := range clients {
		c := sys.dial(t)
		readers.Go(func() {
			for i := range subscriptions {
				c.say(`["REQ","s%d",{"kinds":[1621]},{"#n":["1","2"]}]`, i)
				time.Sleep(time.Duration(n+1) * time.Millisecond) // spreads the subscriptions over the commits; nothing depends on it
			}
			seen := map[string]bool{}
			for len(seen) < events*subscriptions {
				got, err := c.hear()
				env, ok := parse(got).(*gonostr.EventEnvelope)
				if err == nil && !ok {
					continue // EOSE
				}
				if err != nil || seen[*env.SubscriptionID+env.Event.ID] {
					t.Errorf("after %d events: %v, or one came twice: %s", len(seen), err, got)
					return
				}
				seen[*env.SubscriptionID+env.Event.ID] = true
			}
		})
	}
	for part := range slices.Chunk(all, 20) {
		sys.store(t, part...)
	}
	readers.Wait()
}

func TestLiveEvents(t *testing.T) {
	t.Parallel()
	sys := start(t)
	c := sys.dial(t)
	c.hears(`["EOSE","live"]`, `["REQ","live",{"kinds":[1621],"limit":0}]`)
	c.hears(`["EOSE","two"]`, `["REQ","two",{"kinds":[1621]},{"authors":["%s"]}]`, strings.Repeat("a", 64))
	sys.store(t, fake(1, 1621))
	got := []string{c.want(`["EVENT","`), c.want(`["EVENT","`)}
	slices.Sort(got)
	if c.content("live", got[0]) != "event 1" || c.content("two", got[1]) != "event 1" {
		t.Errorf("%v", got)
	}
	// A new request takes the place of the old one with its id, even one that is refused, and CLOSE
	// ends it.
	c.hears(`["EOSE","three"]`, `["REQ","three",{"kinds":[7],"limit":0}]`)
	c.hears(`["CLOSED","three","invalid: `, `["REQ","three",{"kinds":[-1]}]`)
	c.hears(`["EOSE","two"]`, `["REQ","two",{"kinds":[7]}]`)
	c.say(`["CLOSE","live"]`)
	c.hears(`["COUNT","c",{"count":1}]`, `["COUNT","c",{}]`)
	sys.store(t, fake(2, 1621), fake(3, 7))
	if got := c.content("two", c.want(`["EVENT","two",`)); got != "event 3" {
		t.Errorf("got %s", got)
	}
}

func TestAnswersToEvents(t *testing.T) {
	t.Parallel()
	verdicts := map[string]*proto.Verdict{
		"held":      {Outcome: proto.HeldBack, Message: "purgatory: won't be served until git data arrives"},
		"duplicate": {Outcome: proto.Duplicate, Message: "duplicate: known"},
		"rejected":  {Outcome: proto.Rejected, Message: "blocked: orphan"},
	}
	sys := judged(t, func(ev *nostr.Event) *proto.Verdict {
		if v, ok := verdicts[ev.Content]; ok {
			return v
		}
		return accept(ev)
	}, patient)
	c := sys.dial(t)
	forged := signed(t, nostr.Event{Kind: 1})
	forged.Sig = signed(t, nostr.Event{Kind: 1, Content: "another"}).Sig
	c.hears(`["OK","`+forged.ID+`",false,"invalid: the signature`, `["EVENT",%s]`, forged)
	for content, want := range map[string]string{
		"é\n\"x\"": `true,""]`, "held": `true,"purgatory: won't be served until git data arrives"]`,
		"duplicate": `true,"duplicate: known"]`, "rejected": `false,"blocked: orphan"]`,
	} {
		ev := signed(t, nostr.Event{Kind: 1, Content: content})
		c.hears(`["OK","`+ev.ID+`",`+want, `["EVENT",%s]`, ev)
		if verdicts[content] == nil {
			// Who was told OK finds the event at once.
			c.say(`["REQ","%s",{"ids":["%s"]}]`, ev.ID, ev.ID)
			if got := c.events(ev.ID); !slices.Equal(got, []string{content}) {
				t.Errorf("after OK: %v", got)
			}
			c.say(`["CLOSE","%s"]`, ev.ID)
		}
	}
	// A malformed message is answered and nothing else comes of it.
	c.hears(`["NOTICE","invalid: `, `{`)
	c.hears(`["OK","`+forged.ID+`",false,"invalid: `, `["EVENT",{"id":"%s"}]`, forged.ID)
	if !strings.Contains(sys.metrics(t), `ngit_events_rejected_total{kind="other",reason="malformed"} 1`) {
		t.Error("it is not counted")
	}
	c.hears(`["CLOSED","x","invalid: `, `["REQ","x",{"kinds":["1"]}]`)
	must(t, c.ws.Write(t.Context(), websocket.MessageBinary, []byte(`["REQ","x",{}]`)))
	c.want(`["NOTICE","invalid: messages are text`)
}

func TestNoDecisionInTime(t *testing.T) {
	t.Parallel()
	sys := judged(t, func(*nostr.Event) *proto.Verdict { return nil }, func(b *relay.Bounds) { b.EventTimeout = 50 * time.Millisecond })
	c := sys.dial(t)
	ev := signed(t, nostr.Event{Kind: 1})
	c.hears(`["OK","`+ev.ID+`",false,"error: no decision`, `["EVENT",%s]`, ev)
	if !strings.Contains(sys.metrics(t), `ngit_events_rejected_total{kind="1",reason="undecided"} 1`) {
		t.Error("it is not counted")
	}
}

func TestOrderOfEventsIsKept(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var order []string
	sys := judged(t, func(ev *nostr.Event) *proto.Verdict {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, ev.Content)
		return accept(nil)
	}, nil, "--events-per-minute=100")
	c := sys.dial(t)
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint(i))
		c.say(`["EVENT",%s]`, signed(t, nostr.Event{Kind: 1, Content: want[i]}))
	}
	for range want {
		c.want(`["OK","`)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, want) {
		t.Errorf("order: %v", order)
	}
}

func TestLimitsOfAConnection(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.MaxMessageBytes = 2000 },
		"--relay-max-subscriptions=2", "--events-per-minute=2", "--events-per-minute-per-ip=3")
	c := sys.dial(t)
	for _, id := range []string{"a", "b"} {
		c.hears(`["EOSE","`+id+`"]`, `["REQ","%s",{"limit":0}]`, id)
	}
	c.hears(`["CLOSED","c","error: too many subscriptions: at most 2 at once on one connection; close some"]`, `["REQ","c",{}]`)
	c.hears(`["EOSE","a"]`, `["REQ","a",{"limit":0}]`) // in place of another
	c.say(`["CLOSE","b"]`)
	c.hears(`["EOSE","c"]`, `["REQ","c",{"limit":0}]`)
	c.say(`["CLOSE","a"]`)
	c.say(`["CLOSE","c"]`)
	// All at once: every half minute there is room for another one.
	for range 2 {
		c.say(`["EVENT",%s]`, signed(t, nostr.Event{Kind: 1}))
	}
	third := signed(t, nostr.Event{Kind: 1, Content: "third"})
	c.say(`["EVENT",%s]`, third)
	var refused []string
	for range 3 {
		if answer := c.want(`["OK","`); !strings.Contains(answer, `",true,"`) {
			refused = append(refused, answer)
		}
	}
	if len(refused) != 1 || !strings.HasPrefix(refused[0], `["OK","`+third.ID+`",false,"rate-limited: at most 2 events a minute from one connection`) {
		t.Errorf("refused: %s", refused)
	}
	other := sys.dial(t)
	other.say(`["EVENT",%s]`, third)
	other.want(`["OK","` + third.ID + `",true,`)
	other.hears(`["OK","`+third.ID+`",false,"rate-limited: at most 3 events a minute from one address; try again in `, `["EVENT",%s]`, third)
	if !strings.Contains(sys.metrics(t), `ngit_events_rejected_total{kind="1",reason="rate_limited"} 2`) {
		t.Error("it is not counted as rejected")
	}

	c.hears(`["EOSE","a"]`, `["REQ","a",{"limit":0,"#t":["%s"]}]`, strings.Repeat("x", 2000-34))
	c.hears(`["NOTICE","invalid: message larger than 2000 bytes"]`, `["REQ","a",{"limit":0,"#t":["%s"]}]`, strings.Repeat("x", 2000))
	if code := c.closed(); code != websocket.StatusMessageTooBig {
		t.Errorf("closed with %v", code)
	}
}

// TestTooManyConnections: one client has its share, and when all WebSockets are taken, the one that
// has most of them loses the one that has been quiet longest to one that has fewer.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	sys := start(t, "--max-connections=6", "--max-connections-per-ip=4", "--trusted-proxies=127.0.0.1")
	refused := func(from string, status int) {
		t.Helper()
		_, resp, err := websocket.Dial(t.Context(), "ws://"+sys.addr, &websocket.DialOptions{HTTPHeader: http.Header{"X-Forwarded-For": {from}}})
		if err == nil || resp.StatusCode != status || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: %v, %v", from, resp, err)
		}
	}
	greet := func(c *client) { c.say(`["REQ","s",{"limit":0}]`); c.want(`["EOSE","s"]`) }
	enter := func(from string) *client {
		c := sys.from(t, from)
		greet(c) // it is counted once it is served, which is after the answer to its handshake
		return c
	}
	var crowd []*client
	for range 4 {
		crowd = append(crowd, enter("192.0.2.1"))
	}
	refused("192.0.2.1", http.StatusTooManyRequests)
	enter("192.0.2.2")
	enter("192.0.2.3")
	got := sys.metrics(t)
	for name, want := range map[string]string{"connections_active": "6", "connections_total": "6", "unique_ips": "3", "flagged_abusers": "0"} {
		if !strings.Contains(got, "\nngit_websocket_"+name+" "+want+"\n") {
			t.Errorf("%s is not %s", name, want)
		}
	}
	greet(crowd[0]) // crowd[1] is quiet now
	for n := range 3 {
		enter(fmt.Sprintf("192.0.2.%d", n+4))
		if _, err := crowd[n+1].hear(); websocket.CloseStatus(err) != websocket.StatusTryAgainLater {
			t.Fatalf("connection %d heard %v, want to be told to try again later", n+1, err)
		}
	}
	greet(crowd[0])
	refused("192.0.2.99", http.StatusServiceUnavailable) // all have as few
}

func TestStop(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	release := make(chan struct{})
	sys := judged(t, func(*nostr.Event) *proto.Verdict {
		asked <- struct{}{}
		<-release
		return accept(nil)
	}, patient, "--shutdown-wait=10m")
	idle, busy := sys.dial(t), sys.dial(t)
	idle.hears(`["EOSE","s"]`, `["REQ","s",{}]`)
	ev := signed(t, nostr.Event{Kind: 1})
	busy.say(`["EVENT",%s]`, ev)
	<-asked
	sys.stop()
	if code := idle.closed(); code != websocket.StatusGoingAway {
		t.Errorf("idle: closed with %v", code)
	}
	close(release)
	busy.want(`["OK","` + ev.ID + `",true`)
	if code := busy.closed(); code != websocket.StatusGoingAway {
		t.Errorf("busy: closed with %v", code)
	}
	if err := <-sys.ended; err != nil {
		t.Errorf("the stop: %v", err)
	}
}

func (sys *system) metrics(t testing.TB) string {
	t.Helper()
	_, body := sys.ask(t, "GET", "/metrics", "")
	return body
}
