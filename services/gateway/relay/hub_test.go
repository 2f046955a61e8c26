package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

func hexOf(n int) string { return fmt.Sprintf("%064x", n) }

func event(id, author, kind int, tags ...nostr.Tag) *nostr.Event {
	return &nostr.Event{ID: hexOf(id), PubKey: hexOf(author), Kind: kind, CreatedAt: nostr.Timestamp(id), Tags: tags}
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
		maybe := func(of int, set func()) {
			if r.IntN(of) == 0 {
				set()
			}
		}
		at := nostr.Timestamp(r.IntN(6))
		maybe(5, func() { f.IDs = pick(20, hexOf) })
		maybe(3, func() { f.Authors = pick(30, hexOf) })
		maybe(3, func() { f.Kinds = []int{r.IntN(6), r.IntN(6), r.IntN(6)}[:r.IntN(4)] })
		f.Tags = nostr.TagMap{}
		for _, name := range []string{"e", "E", "a"} {
			maybe(3, func() { f.Tags[name] = pick(20, strconv.Itoa) })
		}
		maybe(5, func() { f.Since = &at })
		maybe(5, func() { f.Until = &at })
		return f
	}
	type open struct {
		filters   nostr.Filters
		cancel    func()
		got, want []uint64
	}
	h := newHub(func() {})
	var all []*open
	for seq := range uint64(2000) {
		if len(all) < 60 {
			o := &open{}
			for range 1 + r.IntN(3) {
				o.filters = append(o.filters, filter())
			}
			o.cancel = h.subscribe(o.filters, func(r eventdb.Record) { o.got = append(o.got, r.Seq) })
			all = append(all, o)
		}
		var tags nostr.Tags
		for range r.IntN(5) {
			tags = append(tags, nostr.Tag{[]string{"e", "E", "a", "x", "long"}[r.IntN(5)], strconv.Itoa(r.IntN(6))})
		}
		tags = append(tags, nostr.Tag{"e"}, nostr.Tag{"", "1"})
		ev := event(r.IntN(6), r.IntN(6), r.IntN(6), tags...)
		h.deliver(eventdb.Record{Seq: seq + 1, Event: ev})
		for _, o := range all {
			if o.filters.Match(ev) {
				o.want = append(o.want, seq+1)
			}
		}
		if r.IntN(10) == 0 {
			n := r.IntN(len(all))
			o := all[n]
			o.cancel()
			all = append(all[:n], all[n+1:]...)
			if !slices.Equal(o.got, o.want) {
				t.Fatalf("%v\n got %v\nwant %v", o.filters, o.got, o.want)
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

// running runs a hub until the test ends.
func running(t *testing.T, h *hub) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { h.run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
}

// TestFloodIsTold: too many events for the queue are forgotten, which the relay hears once.
func TestFloodIsTold(t *testing.T) {
	t.Parallel()
	told := make(chan bool, 10)
	h := newHub(func() { told <- true })
	recs := make([]eventdb.Record, 1000)
	for i := range recs {
		recs[i] = eventdb.Record{Seq: uint64(i + 1), Event: event(1, 1, 1), Raw: []byte("{}")}
	}
	got := make(chan uint64, 1000)
	h.feed(recs) // for no subscription, so that it is not queued
	defer h.subscribe([]nostr.Filter{{Kinds: []int{2}}}, func(r eventdb.Record) { got <- r.Seq })()
	for range 70 { // and none is delivered yet
		h.feed(recs)
	}
	running(t, h)
	<-told
	h.feed([]eventdb.Record{{Seq: 100_000, Event: event(1, 1, 2)}})
	if seq := <-got; seq != 100_000 || len(told) > 0 {
		t.Errorf("after the flood: event %d, told %d times more", seq, len(told))
	}
}

func TestNoCallAfterCancel(t *testing.T) {
	t.Parallel()
	h := newHub(func() {})
	running(t, h)
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
