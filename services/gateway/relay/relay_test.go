package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

type bench struct {
	index *eventdb.DB
	relay *Relay
	ws    *websocket.Conn
	t     *testing.T
}

// connect serves a relay, whose hub does not run yet, to one client.
func connect(t *testing.T, set ...func(*Relay)) *bench {
	t.Helper()
	db, err := eventdb.Open("", eventdb.Options{})
	must(t, err)
	log := slog.New(slog.DiscardHandler)
	b := &bench{index: db, t: t}
	connections := limit.NewFair(10, 10)
	rejected := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rejected"}, []string{"kind", "reason"})
	metrics := NewMetrics(prometheus.NewRegistry(), connections, 10, rejected)
	r := New(Options{
		Limits: Limits{config.Front{MaxSubscriptions: 10, EventsPerMinute: 10, EventsPerMinutePerIP: 10}, Bounds{
			MaxFilters: 10, MaxFilterValues: 10, MaxMessageBytes: 10_000, MaxLimit: 100, DefaultLimit: 100,
			MaxFilterSteps: 100, EventTimeout: 10 * time.Second, MaxOpenFiltersPerIP: 10, ClientBytes: 1 << 20,
			ClientBytesPerIP: 1 << 20, MessageTime: time.Minute,
		}},
		Circle: everyone{}, Index: b.index, Connections: connections, Work: limit.NewFair(1, 1),
		Metrics: metrics, Met: limit.NewMet(log), Log: log,
	})
	for _, set := range set {
		set(r)
	}
	b.relay = r
	db.Subscribe(r.Feed)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.Serve(w, req, "192.0.2.1") }))
	b.ws, _, err = websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	must(t, err)
	t.Cleanup(func() {
		b.ws.CloseNow()
		stop, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		r.Stop(stop)
		server.Close()
		must(t, db.Close())
	})
	return b
}

func (b *bench) say(text string) {
	b.t.Helper()
	must(b.t, b.ws.Write(b.t.Context(), websocket.MessageText, []byte(text)))
}

func (b *bench) want(prefix, part string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	_, got, err := b.ws.Read(ctx)
	if err != nil || !strings.HasPrefix(string(got), prefix) || !strings.Contains(string(got), part) {
		b.t.Fatalf("heard %s, %v; want %s … %s", got, err, prefix, part)
	}
}

func (b *bench) store(seq uint64) {
	b.t.Helper()
	ev := &nostr.Event{PubKey: strings.Repeat("a", 64), Kind: 1, CreatedAt: 1, Content: fmt.Sprintf("event %d.", seq), Tags: nostr.Tags{}, Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	raw, err := ev.MarshalJSON()
	must(b.t, err)
	must(b.t, b.index.Apply([]eventdb.Record{{Seq: seq, Event: ev, Raw: raw}}))
}

// TestWaitForRoom: while the relay lets a client wait, the time for its message stands still.
func TestWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Circle: everyone{}, Limits: Limits{
			config.Front{EventsPerMinute: 1, EventsPerMinutePerIP: 1}, Bounds{MessageTime: time.Minute, MaxMessageBytes: allInbound / 4},
		}})
		c := newConnection(r, "192.0.2.1", func() { t.Error("the connection ends") })
		defer c.cancel()
		leave, err := r.inbound.Try(c.client, 1)
		must(t, err)
		time.AfterFunc(2*time.Minute, leave)
		if data, _, err := c.read(strings.NewReader(strings.Repeat(" ", smallMessage+1))); err != nil || len(data) != smallMessage+1 {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	})
}

// TestHubThatLagsDoublesNothing lets the hub deliver late: what the stored part had is not sent
// again, what came after it is.
func TestHubThatLagsDoublesNothing(t *testing.T) {
	t.Parallel()
	b := connect(t)
	b.say(`["REQ","first",{"kinds":[7]}]`) // so that the hub queues at all
	b.want(`["EOSE","first"]`, "")
	b.store(1)
	b.store(2)
	b.say(`["REQ","s",{"kinds":[1]}]`)
	for range 2 {
		b.want(`["EVENT","s",`, "")
	}
	b.want(`["EOSE","s"]`, "")
	b.store(3)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go b.relay.Run(ctx)
	b.want(`["EVENT","s",`, "event 3.")
	b.store(4)
	b.want(`["EVENT","s",`, "event 4.")
}

// TestFilterThatCostsTooMuchIsRefused: it matches next to nothing, but has to be compared with
// everything.
func TestFilterThatCostsTooMuchIsRefused(t *testing.T) {
	t.Parallel()
	b := connect(t)
	for seq := range uint64(200) {
		b.store(seq + 1)
	}
	quick := `{"authors":["` + strings.Repeat("a", 64) + `"],"#e":["` + strings.Repeat("b", 64) + `"],"kinds":[1]}`
	b.say(`["COUNT","c",{"kinds":[1]}]`)
	b.want(`["CLOSED","c"`, "too broad")
	b.say(`["REQ","a",` + quick + `]`)
	b.want(`["EOSE","a"]`, "")
}

// occupy takes all places of counts, and gives them back when free is called.
func (b *bench) occupy() (free func()) {
	var taken []func()
	for n := range runtime.GOMAXPROCS(0) {
		release, err := b.relay.gathering.Acquire(b.t.Context(), fmt.Sprint(n))
		must(b.t, err)
		taken = append(taken, release)
	}
	return func() {
		for _, release := range taken {
			release()
		}
	}
}

// TestCountsTakeTurns: only so many are made at once for all clients; the others wait, and keep no
// one's subscriptions waiting. The time that one waits is part of the time that it has.
func TestCountsTakeTurns(t *testing.T) {
	t.Parallel()
	b := connect(t)
	b.store(1)
	free := b.occupy()
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, _, err := b.relay.count(late, "192.0.2.1", message{filters: []nostr.Filter{{}}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waited for longer than it has: %v", err)
	}
	for range 5 {
		b.say(`["COUNT","c",{"kinds":[1]}]`)
	}
	b.say(`["REQ","a",{"kinds":[2]}]`)
	b.want(`["EOSE","a"]`, "")
	free()
	for range 5 {
		b.want(`["COUNT","c",{"count":1}]`, "")
	}
}

// TestWhatWaitsIsForgotten: events that were sent, and those of a connection that ended, count no
// more.
func TestWhatWaitsIsForgotten(t *testing.T) {
	t.Parallel()
	b := connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go b.relay.Run(ctx)
	b.say(`["REQ","a",{"kinds":[1]}]`)
	b.say(`["REQ","b",{"kinds":[1,2]}]`)
	b.want(`["EOSE","`, "")
	b.want(`["EOSE","`, "")
	// The index would open an iterator for each kind, which together take more than a client may.
	b.say(`["REQ","c"` + strings.Repeat(`,{"kinds":[1,2,3,4,5,6,7,8,9]}`, 8) + `]`)
	b.want(`["CLOSED","c","rate-limited: what this relay keeps for your address`, "")
	kept := func() int64 {
		bytes, _, _ := b.relay.memory.Counts(0)
		return bytes
	}
	fixture.Await(t, "what the answers took is given back", func() bool { return kept() < openRange })
	open := kept() // by the two subscriptions
	if open < 2*openQuestion+3*openValue {
		t.Errorf("two subscriptions take %d bytes", open)
	}
	for seq := range uint64(3) {
		b.store(seq + 1)
		b.want(`["EVENT",`, "")
		b.want(`["EVENT",`, "")
	}
	fixture.Await(t, "the events are forgotten", func() bool { return kept() == open })
	b.ws.CloseNow()
	for seq := range uint64(100) {
		b.store(seq + 10)
	}
	fixture.Await(t, "all is forgotten", func() bool { return kept() == 0 })
}

// TestWorkIsSharedByClients: a client whose index work is under way does not keep its own answers
// from being read, and one that has to wait for its turn has it in the end.
func TestWorkIsSharedByClients(t *testing.T) {
	t.Parallel()
	work := limit.NewFair(1, 1)
	b := connect(t, func(r *Relay) { r.Work = work })
	b.store(1)
	turn, err := work.Turn(t.Context(), "another client")
	must(t, err)
	b.say(`["REQ","a",{"kinds":[1]}]`)
	b.say(`["COUNT","c",{"kinds":[1]}]`)
	b.say(`["x"]`)
	b.want(`["NOTICE",`, "unknown type")           // neither has been answered
	b.say(`["` + strings.Repeat("x", 5000) + `"]`) // nor is a long message read
	turn.Pause()
	got := map[string]bool{}
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, text, err := b.ws.Read(ctx)
		cancel()
		must(t, err)
		got[strings.SplitN(string(text), ",", 2)[0]] = true
	}
	if !got[`["EVENT"`] || !got[`["EOSE"`] || !got[`["COUNT"`] || !got[`["NOTICE"`] {
		t.Errorf("heard %v", got)
	}
}

// everyone is the circle of a public service.
type everyone struct{}

func (everyone) IsPrivate() bool { return false }
func (everyone) Has(string) bool { return false }
func (everyone) OnChange(func()) {}
