package relay

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// filled opens an index with events made at random from few values, many of them of the same
// second.
func filled(t *testing.T, r *rand.Rand, n int) (*eventdb.View, []*nostr.Event) {
	t.Helper()
	db, err := eventdb.Open("", eventdb.Options{})
	must(t, err)
	var recs []eventdb.Record
	var all []*nostr.Event
	for i := range n {
		ev := &nostr.Event{ID: hexOf(r.IntN(1 << 40)), PubKey: hexOf(r.IntN(5)), Kind: 1621 + r.IntN(4), CreatedAt: nostr.Timestamp(r.IntN(50)),
			Tags: nostr.Tags{{"e", hexOf(r.IntN(5))}}, Sig: hexOf(0) + hexOf(0)}
		recs = append(recs, eventdb.Record{Seq: uint64(i + 1), Event: ev})
		all = append(all, ev)
	}
	must(t, db.Apply(recs))
	v := db.View()
	t.Cleanup(func() { must(t, errors.Join(v.Close(), db.Close())) })
	slices.SortFunc(all, func(a, b *nostr.Event) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return v, all
}

// naive answers filters by looking at every event.
func naive(all []*nostr.Event, filters []nostr.Filter) (ids []string) {
	left := make([]int, len(filters))
	for i, f := range filters {
		left[i] = f.Limit
	}
	for _, ev := range all {
		given := false
		for i, f := range filters {
			if left[i] > 0 && f.Matches(ev) {
				left[i]--
				given = true
			}
		}
		if given {
			ids = append(ids, ev.ID)
		}
	}
	return ids
}

func TestFiltersBecomeOneSequence(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	v, all := filled(t, r, 500)
	for range 300 {
		var filters []nostr.Filter
		for range 1 + r.IntN(5) {
			f := nostr.Filter{Limit: r.IntN(60)}
			f.LimitZero = f.Limit == 0
			if r.IntN(2) == 0 {
				f.Kinds = []int{1620 + r.IntN(5), 1620 + r.IntN(5)}
			}
			if r.IntN(2) == 0 {
				f.Authors, f.Tags = []string{hexOf(r.IntN(6)), hexOf(r.IntN(6))}, nostr.TagMap{"e": {hexOf(r.IntN(6)), hexOf(r.IntN(6))}}
			}
			filters = append(filters, f)
		}
		var got []string
		for raw, err := range storedEvents(t.Context(), v, filters) {
			must(t, err)
			var ev nostr.Event
			must(t, ev.UnmarshalJSON(raw.JSON))
			got = append(got, ev.ID)
		}
		if want := naive(all, filters); !slices.Equal(got, want) {
			t.Fatalf("%v: got %d events, want %d in their order", filters, len(got), len(want))
		}
		unlimited := slices.Clone(filters)
		for i := range unlimited {
			unlimited[i].Limit = len(all)
		}
		most, all := r.IntN(600), len(naive(all, unlimited))
		n, approximate, err := countStored(t.Context(), v, filters, most)
		if err != nil || n != min(all, most) || approximate != (all > most) {
			t.Fatalf("%v: counted %d (%v, %v) up to %d, want %d", filters, n, approximate, err, most, all)
		}
	}
}

// TestCountKeepsFewMatches: the memory that it takes depends on where it stops, and not on how much
// matches.
func TestCountKeepsFewMatches(t *testing.T) {
	const matching, authors, most = 20_000, 100, 50
	db, err := eventdb.Open("", eventdb.Options{})
	must(t, err)
	defer db.Close()
	var recs []eventdb.Record
	for i := range matching {
		recs = append(recs, eventdb.Record{Seq: uint64(i + 1), Event: &nostr.Event{ID: hexOf(i), PubKey: hexOf(i % authors), Kind: 1,
			CreatedAt: nostr.Timestamp(i), Tags: nostr.Tags{}, Sig: hexOf(0) + hexOf(0)}})
	}
	must(t, db.Apply(recs))
	v := db.View()
	defer v.Close()
	var many nostr.Filter // more authors than the index walks at once
	for i := range authors {
		many.Authors = append(many.Authors, hexOf(i))
	}
	// What the index does in the background is counted too, so the least of some tries is meant.
	least := uint64(math.MaxUint64)
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, approximate, err := countStored(t.Context(), v, slices.Repeat([]nostr.Filter{many}, 20), most)
		runtime.ReadMemStats(&after)
		if n != most || !approximate || err != nil {
			t.Fatalf("counted %d (%v, %v)", n, approximate, err)
		}
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	if least > 1<<20 {
		t.Errorf("took %d bytes", least)
	}
}
