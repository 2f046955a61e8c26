package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// inbox keeps what it gets.
type inbox struct {
	mu  sync.Mutex
	got []uint64
}

func (i *inbox) take(r eventdb.Record) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r.Event.Kind != markKind {
		i.got = append(i.got, r.Seq)
	}
}

func (i *inbox) list() []uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]uint64{}, i.got...)
}

func hexOf(n int) string { return fmt.Sprintf("%064x", n) }

func event(id, author, kind int, tags ...nostr.Tag) *nostr.Event {
	return &nostr.Event{ID: hexOf(id), PubKey: hexOf(author), Kind: kind, CreatedAt: nostr.Timestamp(id), Tags: tags}
}

// markKind is the kind of the events that say that all before them were delivered.
const markKind = 65535

// run starts the hub; what it gives back feeds events, with the sequences 1, 2, …, and waits until
// they are delivered.
func deliver(t testing.TB, h *hub, from uint64) (feed func(...*nostr.Event) (last uint64)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { h.run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	seq := from
	return func(events ...*nostr.Event) uint64 {
		t.Helper()
		var recs []eventdb.Record
		for _, ev := range events {
			seq++
			recs = append(recs, eventdb.Record{Seq: seq, Event: ev})
		}
		h.feed(recs)
		last := seq
		seq++
		mark := event(int(seq)+1000, 1000, markKind)
		there := make(chan struct{})
		cancel := h.subscribe([]nostr.Filter{{IDs: []string{mark.ID}}}, func(eventdb.Record) { close(there) })
		h.feed([]eventdb.Record{{Seq: seq, Event: mark}})
		<-there
		cancel()
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
			f.IDs = pick(20, hexOf)
		}
		if r.IntN(3) == 0 {
			f.Authors = pick(30, hexOf)
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
		cancel  func()
		want    []uint64
	}
	h := newHub(func() {})
	feed := deliver(t, h, 0)
	var all []*open
	for range 2000 {
		if len(all) < 60 {
			o := &open{in: &inbox{}}
			for range 1 + r.IntN(3) {
				o.filters = append(o.filters, filter())
			}
			o.cancel = h.subscribe(o.filters, o.in.take)
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
			o.cancel()
			all = append(all[:n], all[n+1:]...)
			if got := o.in.list(); fmt.Sprint(got) != fmt.Sprint(o.want) {
				t.Fatalf("%v\n got %v\nwant %v", o.filters, got, o.want)
			}
		}
	}
	for _, o := range all {
		o.cancel()
	}
	if h.count.Load() != 0 || len(h.named) != 0 {
		t.Errorf("%d subscriptions and %d names are left", h.count.Load(), len(h.named))
	}
}

// TestFloodIsTold: too many events for the queue are forgotten, which the relay hears once.
func TestFloodIsTold(t *testing.T) {
	t.Parallel()
	told, in := 0, &inbox{}
	h := newHub(func() { told++ })
	recs := make([]eventdb.Record, 1000)
	for i := range recs {
		recs[i] = eventdb.Record{Seq: uint64(i + 1), Event: event(1, 1, 1), Raw: []byte("{}")}
	}
	h.feed(recs) // for no subscription, so that it is not queued
	defer h.subscribe([]nostr.Filter{{}, {Kinds: []int{1}}}, in.take)()
	for range 70 { // and none is delivered yet
		h.feed(recs)
	}
	feed := deliver(t, h, 100_000)
	seq := feed(event(1, 1, 1))
	if got := in.list(); len(got) == 0 || got[len(got)-1] != seq || told != 1 {
		t.Errorf("after the flood: %d events, told %d times", len(got), told)
	}
}

func TestNoCallAfterCancel(t *testing.T) {
	t.Parallel()
	h := newHub(func() {})
	deliver(t, h, 0)
	ctx, cancel := context.WithCancel(context.Background())
	var feeding sync.WaitGroup
	feeding.Go(func() {
		for seq := uint64(1); ctx.Err() == nil; seq++ {
			h.feed([]eventdb.Record{{Seq: seq, Event: event(1, 1, 1), Raw: []byte("{}")}})
		}
	})
	for range 300 {
		ended := false // without a lock: the race detector watches it
		h.subscribe([]nostr.Filter{{Kinds: []int{1}}}, func(eventdb.Record) {
			if ended {
				t.Error("called after cancel")
			}
		})()
		ended = true
	}
	cancel()
	feeding.Wait()
}
