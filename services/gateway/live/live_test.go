package live_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/gateway/live"
)

var quiet = slog.New(slog.DiscardHandler)

// inbox is a subscriber that keeps what it gets.
type inbox struct {
	mu   sync.Mutex
	got  []uint64
	lost int
	on   func(e *live.Event)
}

func (i *inbox) Deliver(e *live.Event) {
	if e.Event.Kind == markKind && i.on == nil {
		return
	}
	i.mu.Lock()
	i.got = append(i.got, e.Seq)
	i.mu.Unlock()
	if i.on != nil {
		i.on(e)
	}
}

func (i *inbox) Lost() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lost++
}

func (i *inbox) list() []uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]uint64{}, i.got...)
}

func hex(n int) string { return fmt.Sprintf("%064x", n) }

func event(id, author, kind int, tags ...nostr.Tag) *nostr.Event {
	return &nostr.Event{ID: hex(id), PubKey: hex(author), Kind: kind, CreatedAt: nostr.Timestamp(id), Tags: tags}
}

// markKind is the kind of the events that say that all before them were delivered.
const markKind = 65535

// run starts the hub; what it gives back feeds events, with the sequences 1, 2, …, and waits until
// they are delivered.
func run(t testing.TB, h *live.Hub, from uint64) (feed func(...*nostr.Event) (last uint64)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { h.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	seq := from
	return func(events ...*nostr.Event) uint64 {
		t.Helper()
		var recs []eventdb.Record
		for _, ev := range events {
			seq++
			recs = append(recs, eventdb.Record{Seq: seq, Event: ev})
		}
		h.Feed(recs)
		last := seq
		seq++
		mark := event(int(seq)+1000, 1000, markKind)
		there := make(chan struct{})
		sub := h.Subscribe([]nostr.Filter{{IDs: []string{mark.ID}}}, &inbox{on: func(*live.Event) { close(there) }})
		h.Feed([]eventdb.Record{{Seq: seq, Event: mark}})
		<-there
		sub.Cancel()
		return last
	}
}

// TestEveryFilterFindsWhatItMatches holds the index to nostr.Filter.Matches with filters and events
// made at random from few values, while subscriptions come and go.
func TestEveryFilterFindsWhatItMatches(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(most int, value func(int) string) []string {
		list := []string{}
		for range r.IntN(most) {
			list = append(list, value(r.IntN(6)))
		}
		return list
	}
	filter := func() (f nostr.Filter) {
		if r.IntN(5) == 0 {
			f.IDs = pick(20, hex)
		}
		if r.IntN(3) == 0 {
			f.Authors = pick(30, hex)
		}
		if r.IntN(3) == 0 {
			f.Kinds = []int{}
			for range r.IntN(20) {
				f.Kinds = append(f.Kinds, r.IntN(6))
			}
		}
		for _, name := range []string{"e", "E", "a"} {
			if r.IntN(3) == 0 {
				if f.Tags == nil {
					f.Tags = nostr.TagMap{}
				}
				f.Tags[name] = pick(20, strconv.Itoa)
			}
		}
		if r.IntN(5) == 0 {
			since := nostr.Timestamp(r.IntN(6))
			f.Since = &since
		}
		if r.IntN(5) == 0 {
			until := nostr.Timestamp(r.IntN(6))
			f.Until = &until
		}
		return f
	}
	type open struct {
		filters nostr.Filters
		in      *inbox
		sub     *live.Subscription
		want    []uint64
	}
	h := live.NewHub(quiet)
	feed := run(t, h, 0)
	var all []*open
	for range 2000 {
		if len(all) < 60 {
			o := &open{in: &inbox{}}
			for range 1 + r.IntN(3) {
				o.filters = append(o.filters, filter())
			}
			o.sub = h.Subscribe(o.filters, o.in)
			all = append(all, o)
		}
		var tags nostr.Tags
		for range r.IntN(5) {
			tags = append(tags, nostr.Tag{[]string{"e", "E", "a", "x", "long"}[r.IntN(5)], strconv.Itoa(r.IntN(6))})
		}
		tags = append(tags, nostr.Tag{"e"}, nostr.Tag{"", "1"})
		ev := event(r.IntN(6), r.IntN(6), r.IntN(6), tags...)
		seq := feed(ev)
		for _, o := range all {
			if o.filters.Match(ev) {
				o.want = append(o.want, seq)
			}
		}
		if r.IntN(10) == 0 {
			n := r.IntN(len(all))
			o := all[n]
			o.sub.Cancel()
			all = append(all[:n], all[n+1:]...)
			if got := o.in.list(); fmt.Sprint(got) != fmt.Sprint(o.want) {
				t.Fatalf("%v\n got %v\nwant %v", o.filters, got, o.want)
			}
		}
	}
	for _, o := range all {
		o.sub.Cancel()
	}
	if h.Len() != 0 {
		t.Errorf("%d subscriptions are left", h.Len())
	}
	live.CheckEmpty(t, h)
}

func TestEventWithoutJSONIsEncoded(t *testing.T) {
	t.Parallel()
	h := live.NewHub(quiet)
	feed := run(t, h, 0)
	var json string
	in := &inbox{on: func(e *live.Event) { json = string(e.JSON) }}
	defer h.Subscribe([]nostr.Filter{{Kinds: []int{3}}}, in).Cancel()
	feed(event(1, 2, 3))
	if !strings.Contains(json, hex(1)) {
		t.Errorf("JSON: %s", json)
	}
}

func TestFloodIsTold(t *testing.T) {
	t.Parallel()
	h := live.NewHub(quiet)
	in := &inbox{}
	defer h.Subscribe([]nostr.Filter{{}, {Kinds: []int{1}}}, in).Cancel()
	// Nobody delivers yet.
	recs := make([]eventdb.Record, 1000)
	for i := range recs {
		recs[i] = eventdb.Record{Seq: uint64(i + 1), Event: event(1, 1, 1), Raw: []byte("{}")}
	}
	for range 70 {
		h.Feed(recs)
	}
	feed := run(t, h, 100_000)
	feed()
	if in.lost != 1 {
		t.Errorf("told %d times, want once", in.lost)
	}
	seq := feed(event(1, 1, 1))
	if got := in.list(); len(got) == 0 || got[len(got)-1] != seq || in.lost != 1 {
		t.Errorf("after the flood: %d events, told %d times", len(got), in.lost)
	}
}

func TestNothingIsQueuedForNobody(t *testing.T) {
	t.Parallel()
	h := live.NewHub(quiet)
	h.Feed([]eventdb.Record{{Seq: 1, Event: event(1, 1, 1)}})
	in := &inbox{}
	defer h.Subscribe([]nostr.Filter{{}}, in).Cancel()
	run(t, h, 1)()
	if got := in.list(); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestNoCallAfterCancel(t *testing.T) {
	t.Parallel()
	h := live.NewHub(quiet)
	run(t, h, 0)
	ctx, cancel := context.WithCancel(context.Background())
	var feeding sync.WaitGroup
	feeding.Go(func() {
		for seq := uint64(1); ctx.Err() == nil; seq++ {
			h.Feed([]eventdb.Record{{Seq: seq, Event: event(1, 1, 1), Raw: []byte("{}")}})
		}
	})
	for range 300 {
		ended := false // without a lock: the race detector watches it
		in := &inbox{on: func(*live.Event) {
			if ended {
				t.Error("called after Cancel")
			}
		}}
		sub := h.Subscribe([]nostr.Filter{{Kinds: []int{1}}}, in)
		sub.Cancel()
		ended = true
	}
	cancel()
	feeding.Wait()
}

// nobody takes events without looking at them.
type nobody struct{ n int }

func (s *nobody) Deliver(*live.Event) { s.n++ }
func (s *nobody) Lost()               {}

// BenchmarkFanOut delivers one event among many subscriptions: to all of them, or to the ten of
// them that ask for it while the others ask for other repositories, as the subscriptions of git
// clients do.
func BenchmarkFanOut(b *testing.B) {
	for _, subscriptions := range []int{1000, 10_000} {
		for name, filter := range map[string]func(i int) nostr.Filter{
			"all match": func(int) nostr.Filter { return nostr.Filter{Kinds: []int{1621}} },
			"ten match": func(i int) nostr.Filter {
				return nostr.Filter{Kinds: []int{1617, 1618, 1621}, Tags: nostr.TagMap{"a": {"30617:" + hex(i/10) + ":repo"}}}
			},
		} {
			b.Run(fmt.Sprintf("%s of %d", name, subscriptions), func(b *testing.B) {
				h := live.NewHub(quiet)
				for i := range subscriptions {
					h.Subscribe([]nostr.Filter{filter(i)}, &nobody{})
				}
				ev := event(1, 1, 1621, nostr.Tag{"a", "30617:" + hex(7) + ":repo"}, nostr.Tag{"p", hex(3)}, nostr.Tag{"subject", "x"})
				seq := uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					seq++
					live.DeliverNow(h, &live.Event{Seq: seq, Event: ev, JSON: []byte("{}")})
				}
			})
		}
	}
}

func BenchmarkSubscribe(b *testing.B) {
	h := live.NewHub(quiet)
	for i := range 10_000 {
		h.Subscribe([]nostr.Filter{{Kinds: []int{1621, i}}}, &nobody{})
	}
	b.ReportAllocs()
	for b.Loop() {
		h.Subscribe([]nostr.Filter{{Kinds: []int{1621}}}, &nobody{}).Cancel()
	}
}
