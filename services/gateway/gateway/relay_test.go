package gateway

import (
	"fmt"
	"io"
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
)

func TestStoredEvents(t *testing.T) {
	t.Parallel()
	sys := start(t, nil, "--default-limit=3", "--max-limit=5", "--max-filters=3")
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
		`{"limit":1}`:                            numbers(9),
		`{"limit":100}`:                          numbers(9, 8, 7, 6, 5),
		`{"limit":0}`:                            nil,
		`{"kinds":[1621],"limit":2}`:             numbers(8, 6),
		`{"kinds":[1621],"limit":2},{"limit":3}`: numbers(9, 8, 7, 6),
		`{"#t":["0"],"until":1700000005}`:        numbers(3, 0),
		`{"since":1700000009},{"#t":["1"]}`:      numbers(9, 7, 4, 1),
		`{"ids":["` + fake(4, 1621, nostr.Tag{"t", "1"}).ID + `"]}`: numbers(4),
		`{"ids":[]}`:              nil,
		`{"limit":0},{"limit":0}`: nil,
	} {
		c.say(`["REQ","s",%s]`, filters)
		if got := c.events("s"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", filters, got, want)
		}
	}
	for filters, want := range map[string]string{
		`{}`:                            `["COUNT","c",{"count":10}]`,
		`{"kinds":[1621],"limit":1}`:    `["COUNT","c",{"count":5}]`,
		`{"kinds":[1621]},{"#t":["0"]}`: `["COUNT","c",{"count":7}]`,
	} {
		c.say(`["COUNT","c",%s]`, filters)
		c.want(want)
	}
}

// TestNothingIsLostOrDoubled opens subscriptions while events are being committed: each event comes
// once, in the stored part or live.
func TestNothingIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	const events, clients, subscriptions = 1500, 4, 5
	sys := start(t, nil, "--max-limit=100000", "--default-limit=100000")
	var all []*nostr.Event
	for i := range events {
		all = append(all, fake(i%97, 1621, nostr.Tag{"n", fmt.Sprint(i)}))
	}
	started := make(chan struct{}, clients)
	var readers sync.WaitGroup
	for n := range clients {
		c := sys.dial(t)
		readers.Go(func() {
			started <- struct{}{}
			for i := range subscriptions {
				c.say(`["REQ","s%d",{"kinds":[1621]},{"#n":["1","2"]}]`, i)
				time.Sleep(time.Duration(n+1) * time.Millisecond) // spreads the subscriptions over the commits; nothing depends on it
			}
			seen := map[string]map[string]bool{}
			for total := 0; total < events*subscriptions; {
				got, err := c.hear()
				if err != nil {
					t.Errorf("after %d events: %v", total, err)
					return
				}
				env, ok := parse(got).(*gonostr.EventEnvelope)
				if !ok {
					continue // EOSE
				}
				id := *env.SubscriptionID
				if seen[id] == nil {
					seen[id] = map[string]bool{}
				}
				if seen[id][env.Event.ID] {
					t.Errorf("%s came twice in %s", env.Event.ID, id)
					return
				}
				seen[id][env.Event.ID] = true
				total++
			}
		})
	}
	for range clients {
		<-started
	}
	for part := range slices.Chunk(all, 20) {
		sys.store(t, part...)
	}
	readers.Wait()
}

func TestLiveEvents(t *testing.T) {
	t.Parallel()
	sys := start(t, nil)
	c := sys.dial(t)
	c.say(`["REQ","live",{"kinds":[1621],"limit":0}]`)
	c.want(`["EOSE","live"]`)
	c.say(`["REQ","two",{"kinds":[1621]},{"authors":["%s"]}]`, strings.Repeat("a", 64))
	c.want(`["EOSE","two"]`)
	sys.store(t, fake(1, 1621))
	got := []string{c.want(`["EVENT","`), c.want(`["EVENT","`)}
	slices.Sort(got)
	if c.content("live", got[0]) != "event 1" || c.content("two", got[1]) != "event 1" {
		t.Errorf("%v", got)
	}
	// A new request takes the place of the old one with its id, even one that is refused, and CLOSE
	// ends it.
	c.say(`["REQ","three",{"kinds":[7],"limit":0}]`)
	c.want(`["EOSE","three"]`)
	c.say(`["REQ","three",{"kinds":[-1]}]`)
	c.want(`["CLOSED","three","invalid: `)
	c.say(`["REQ","two",{"kinds":[7]}]`)
	c.want(`["EOSE","two"]`)
	c.say(`["CLOSE","live"]`)
	c.say(`["COUNT","c",{}]`)
	c.want(`["COUNT","c",{"count":1}]`)
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
	sys := start(t, func(ev *nostr.Event) *proto.Verdict {
		if v, ok := verdicts[ev.Content]; ok {
			return v
		}
		return &proto.Verdict{Outcome: proto.Accepted}
	}, "--event-timeout=10m")
	c := sys.dial(t)
	now := nostr.Now()
	bad := signed(t, nostr.Event{Kind: 1})
	bad.Content = "changed"
	forged := signed(t, nostr.Event{Kind: 1})
	forged.Sig = signed(t, nostr.Event{Kind: 1, Content: "another"}).Sig
	notOnCurve := fake(1, 1)
	notOnCurve.PubKey = strings.Repeat("f", 64)
	notOnCurve.ID = notOnCurve.GetID()
	for _, step := range []struct {
		ev   *nostr.Event
		want string
	}{
		{signed(t, nostr.Event{Kind: 1, Content: "é\n\"x\""}), `true,""]`},
		{signed(t, nostr.Event{Kind: 1, Content: "held"}), `true,"purgatory: won't be served until git data arrives"]`},
		{signed(t, nostr.Event{Kind: 1, Content: "duplicate"}), `true,"duplicate: known"]`},
		{signed(t, nostr.Event{Kind: 1, Content: "rejected"}), `false,"blocked: orphan"]`},
		{signed(t, nostr.Event{Kind: 1, CreatedAt: now + 880}), `true,""]`},
		{signed(t, nostr.Event{Kind: 1, CreatedAt: now + 5000}), `false,"invalid: created_at`},
		{signed(t, nostr.Event{Kind: 20001}), `false,"invalid: ephemeral`},
		{signed(t, nostr.Event{Kind: 1, Tags: nostr.Tags{{"expiration", fmt.Sprint(now - 10)}}}), `false,"invalid: the event has expired`},
		{signed(t, nostr.Event{Kind: 1, Tags: nostr.Tags{{"expiration", fmt.Sprint(now + 5000)}}}), `true,""]`},
		{bad, `false,"invalid: the id`},
		{forged, `false,"invalid: the signature`},
		{notOnCurve, `false,"invalid: the signature`},
	} {
		c.say(`["EVENT",%s]`, step.ev)
		c.want(`["OK","` + step.ev.ID + `",` + step.want)
		if strings.HasPrefix(step.want, `true,""`) {
			// Who was told OK finds the event at once.
			c.say(`["REQ","%s",{"ids":["%s"]}]`, step.ev.ID, step.ev.ID)
			if got := c.events(step.ev.ID); !slices.Equal(got, []string{step.ev.Content}) {
				t.Errorf("after OK: %v", got)
			}
			c.say(`["CLOSE","%s"]`, step.ev.ID)
		}
	}
	// A malformed message is answered and nothing else comes of it.
	c.say(`{`)
	c.want(`["NOTICE","invalid: `)
	c.say(`["EVENT",{"id":"%s"}]`, bad.ID)
	c.want(`["OK","` + bad.ID + `",false,"invalid: `)
	c.say(`["REQ","x",{"kinds":["1"]}]`)
	c.want(`["CLOSED","x","invalid: `)
	if err := c.ws.Write(t.Context(), websocket.MessageBinary, []byte(`["REQ","x",{}]`)); err != nil {
		t.Fatal(err)
	}
	c.want(`["NOTICE","invalid: messages are text`)
}

func TestNoDecisionInTime(t *testing.T) {
	t.Parallel()
	sys := start(t, func(*nostr.Event) *proto.Verdict { return nil }, "--event-timeout=50ms")
	c := sys.dial(t)
	ev := signed(t, nostr.Event{Kind: 1})
	c.say(`["EVENT",%s]`, ev)
	c.want(`["OK","` + ev.ID + `",false,"error: no decision`)
}

func TestOrderOfEventsIsKept(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var order []string
	sys := start(t, func(ev *nostr.Event) *proto.Verdict {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, ev.Content)
		return &proto.Verdict{Outcome: proto.Accepted}
	})
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
	sys := start(t, nil, "--max-subscriptions=2", "--events-per-minute-per-ip=2", "--max-message-bytes=2000")
	c := sys.dial(t)
	for _, id := range []string{"a", "b"} {
		c.say(`["REQ","%s",{"limit":0}]`, id)
		c.want(`["EOSE","` + id + `"]`)
	}
	c.say(`["REQ","c",{}]`)
	c.want(`["CLOSED","c","error: too many subscriptions: at most 2 at once on one connection; close some"]`)
	c.say(`["REQ","a",{"limit":0}]`) // in place of another
	c.want(`["EOSE","a"]`)
	c.say(`["CLOSE","b"]`)
	c.say(`["REQ","c",{"limit":0}]`)
	c.want(`["EOSE","c"]`)
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
	if len(refused) != 1 || !strings.HasPrefix(refused[0], `["OK","`+third.ID+`",false,"rate-limited: at most 2`) {
		t.Errorf("refused: %s", refused)
	}

	c.say(`["REQ","a",{"limit":0,"#t":["%s"]}]`, strings.Repeat("x", 2000-34))
	c.want(`["EOSE","a"]`)
	c.say(`["REQ","a",{"limit":0,"#t":["%s"]}]`, strings.Repeat("x", 2000))
	c.want(`["NOTICE","invalid: message larger than 2000 bytes"]`)
	if code := c.closed(); code != websocket.StatusMessageTooBig {
		t.Errorf("closed with %v", code)
	}
}

func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	sys := start(t, nil, "--max-connections=3", "--max-connections-per-ip=2", "--trusted-proxies=127.0.0.1")
	dial := func(from string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(t.Context(), "ws://"+sys.addr, &websocket.DialOptions{HTTPHeader: http.Header{"X-Forwarded-For": {from}}})
	}
	for _, step := range []struct {
		from string
		want int
	}{
		{"192.0.2.1", 101}, {"192.0.2.1", 101}, {"192.0.2.1", 429}, {"192.0.2.2", 101}, {"192.0.2.2", 503},
	} {
		ws, resp, err := dial(step.from)
		if resp == nil || resp.StatusCode != step.want {
			t.Fatalf("%v: %v, %v", step, resp, err)
		}
		if step.want == 101 {
			t.Cleanup(func() { ws.CloseNow() })
			c := &client{t: t, ws: ws} // it is counted once it is served, which is after the answer to its handshake
			c.say(`["REQ","s",{"limit":0}]`)
			c.want(`["EOSE","s"]`)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		if len(body) < 20 || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%v: %s %v", step, body, resp.Header)
		}
	}
	got := sys.metrics(t)
	for name, want := range map[string]string{"connections_active": "3", "connections_total": "3", "unique_ips": "2", "flagged_abusers": "0"} {
		if !strings.Contains(got, "\nngit_websocket_"+name+" "+want+"\n") {
			t.Errorf("%s is not %s", name, want)
		}
	}
}

// TestMostConnectionsGiveWay: when all WebSockets are taken, whoever has most of them loses the one
// that has been quiet longest to who has fewer.
func TestMostConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	sys := start(t, nil, "--max-connections=6", "--max-connections-per-ip=6", "--trusted-proxies=127.0.0.1")
	greet := func(c *client) {
		c.say(`["REQ","s",{"limit":0}]`)
		c.want(`["EOSE","s"]`)
	}
	var crowd []*client
	for range 6 {
		crowd = append(crowd, sys.from(t, "192.0.2.1"))
		greet(crowd[len(crowd)-1])
	}
	greet(crowd[0]) // crowd[1] is quiet now
	for n := range 2 {
		greet(sys.from(t, fmt.Sprintf("192.0.2.%d", n+2)))
		_, err := crowd[n+1].hear()
		if websocket.CloseStatus(err) != websocket.StatusTryAgainLater {
			t.Fatalf("connection %d heard %v, want to be told to try again later", n+1, err)
		}
	}
	for _, c := range []*client{crowd[0], crowd[3], crowd[4], crowd[5]} {
		greet(c)
	}
	// Who has no fewer does not push anybody out.
	for n := range 3 {
		greet(sys.from(t, fmt.Sprintf("192.0.2.%d", n+10)))
	}
	_, resp, err := websocket.Dial(t.Context(), "ws://"+sys.addr, &websocket.DialOptions{HTTPHeader: http.Header{"X-Forwarded-For": {"192.0.2.99"}}})
	if err == nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	release := make(chan struct{})
	sys := start(t, func(*nostr.Event) *proto.Verdict {
		asked <- struct{}{}
		<-release
		return &proto.Verdict{Outcome: proto.Accepted}
	}, "--shutdown-wait=10m", "--event-timeout=10m", "--relay-name="+t.Name())
	if !sys.listens(t) {
		t.Error("it does not say its name")
	}
	idle, busy := sys.dial(t), sys.dial(t)
	idle.say(`["REQ","s",{}]`)
	idle.want(`["EOSE","s"]`)
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
	if sys.listens(t) {
		t.Error("it still listens")
	}
}

func (sys *system) metrics(t testing.TB) string {
	t.Helper()
	_, body := sys.ask(t, "GET", "/metrics", "")
	return body
}
