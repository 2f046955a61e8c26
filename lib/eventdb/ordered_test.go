package eventdb_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/reconcile"
)

// restless makes records of kinds that stay, replace each other, expire and delete, with a second
// that is crowded.
func restless(rnd *rand.Rand, from uint64, n int, known []*nostr.Event) (recs []eventdb.Record) {
	for i := range n {
		ev := &nostr.Event{
			PubKey: strings.Repeat(fmt.Sprint(rnd.IntN(3)), 64), CreatedAt: nostr.Timestamp(1000 + rnd.IntN(2000)),
			Content: fmt.Sprint(from, i), Tags: nostr.Tags{}, Sig: strings.Repeat("0", 128), Kind: 1621,
		}
		switch at := rnd.IntN(100); {
		case at < 30:
			ev.CreatedAt = 1777
		case at < 50:
			ev.Kind, ev.Tags = 30618, nostr.Tags{{"d", fmt.Sprint(rnd.IntN(200))}}
		case at < 55:
			ev.Tags = nostr.Tags{{"expiration", fmt.Sprint(rnd.IntN(3000))}}
		case at < 60 && len(known) > 0:
			ev.Kind = nostr.KindDeletion
			for range 1 + rnd.IntN(60) {
				other := known[rnd.IntN(len(known))]
				ev.PubKey, ev.Tags = other.PubKey, append(ev.Tags, nostr.Tag{"e", other.ID})
			}
		case at < 62:
			ev.CreatedAt = nostr.Timestamp(-rnd.IntN(10))
		}
		ev.ID = ev.GetID()
		recs = append(recs, eventdb.Record{Seq: from + uint64(i), Event: ev})
	}
	return recs
}

// matching is the naive answer, from the index's own list of ids.
func matching(t *testing.T, v *eventdb.View, f nostr.Filter) reconcile.Packed {
	t.Helper()
	var items []reconcile.Item
	for e, err := range v.IDs(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, reconcile.Item{CreatedAt: e.CreatedAt, ID: e.ID})
	}
	return reconcile.Pack(items)
}

func TestOrdered(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(11, 4))
	db, err := eventdb.Open("", eventdb.WithClock(func() nostr.Timestamp { return 1 }))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	since, until := nostr.Timestamp(1500), nostr.Timestamp(2500)
	filters := []nostr.Filter{
		{}, {Kinds: []int{1621}}, {Kinds: []int{30618, 5}}, {Kinds: []int{4711}}, {Kinds: []int{}}, {Since: &since}, {Kinds: []int{1621, 5}, Until: &until},
		{Kinds: []int{1621}, Since: &since, Until: &until},
	}
	var known []*nostr.Event
	for seq := uint64(1); seq < 5000; {
		recs := restless(rnd, seq, 1+rnd.IntN(900), known)
		if err := db.Apply(recs); err != nil {
			t.Fatal(err)
		}
		for _, r := range recs {
			known = append(known, r.Event)
		}
		seq += uint64(len(recs))
		v := db.View()
		for _, f := range filters {
			sameOrdered(t, rnd, v, f)
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		if err := db.CheckSums(); err != nil {
			t.Fatal(err)
		}
	}
}

// sameOrdered compares what is asked of an ordered set with the naive answer.
func sameOrdered(t *testing.T, rnd *rand.Rand, v *eventdb.View, f nostr.Filter) {
	t.Helper()
	want := matching(t, v, f)
	o, err := v.Ordered(f)
	if err != nil || !eventdb.IsOrdered(f) {
		t.Fatal(err)
	}
	defer o.Close()
	place := func() (i reconcile.Item) {
		if len(want) > 0 && rnd.IntN(2) == 0 {
			return want[rnd.IntN(len(want))]
		}
		i.CreatedAt = nostr.Timestamp(rnd.IntN(3200))
		if rnd.IntN(2) == 0 {
			i.ID[0] = byte(rnd.IntN(256))
		}
		return i
	}
	ranges := []reconcile.Range{reconcile.Everything}
	for range 3 {
		ranges = append(ranges, reconcile.Range{From: place(), To: place()})
	}
	for _, r := range ranges {
		got, err := o.Sum(t.Context(), r)
		if should, _ := want.Sum(t.Context(), r); err != nil || got != should {
			t.Fatalf("%+v %v: sum of %d, %v; want %d", f, r, got.Count, err, should.Count)
		}
		for _, most := range []int{1, 3000, rnd.IntN(200)} {
			items, err := o.Items(t.Context(), r, most)
			if should, _ := want.Items(t.Context(), r, most); err != nil || !slices.Equal(items, should) {
				t.Fatalf("%+v %v: %d items, %v; want %d of %d", f, r, len(items), err, len(should), most)
			}
		}
		cuts, err := o.Cut(t.Context(), r, 16)
		if err != nil || len(cuts) > 15 {
			t.Fatal(len(cuts), err)
		}
		last := r.From
		for _, at := range append(cuts, r.To) {
			s, err := o.Sum(t.Context(), reconcile.Range{From: last, To: at})
			if err != nil || at.Compare(last) <= 0 && len(cuts) > 0 {
				t.Fatalf("%v: cuts %v, %v", r, cuts, err)
			}
			if len(cuts) == 15 && got.Count > 8000 && (s.Count < got.Count/64 || s.Count > got.Count/4) {
				t.Errorf("%d of %d events in one of 16 parts", s.Count, got.Count)
			}
			last = at
		}
	}
}

// TestOrderedAnew opens an index that was closed: the sums are as before.
func TestOrderedAnew(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(2, 4))
	dir := t.TempDir()
	for round := range uint64(2) {
		db, err := eventdb.Open(dir, eventdb.WithClock(func() nostr.Timestamp { return 1 }))
		if err != nil {
			t.Fatal(err)
		}
		if err := db.CheckSums(); err != nil {
			t.Fatal(err)
		}
		v := db.View()
		sameOrdered(t, rnd, v, nostr.Filter{})
		sameOrdered(t, rnd, v, nostr.Filter{Kinds: []int{1621}})
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		if err := db.Apply(restless(rnd, 1+6000*round, 6000, nil)); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOrderedPassesOverWhatHasExpired: nothing is named that is not served, though the sums count
// it until it is swept out.
func TestOrderedPassesOverWhatHasExpired(t *testing.T) {
	t.Parallel()
	now := nostr.Timestamp(1)
	db, err := eventdb.Open("", eventdb.WithClock(func() nostr.Timestamp { return now }))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Apply(restless(rand.New(rand.NewPCG(5, 4)), 1, 2000, nil)); err != nil {
		t.Fatal(err)
	}
	now = 1500
	v := db.View()
	defer v.Close()
	o, err := v.Ordered(nostr.Filter{Kinds: []int{1621}})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	want := matching(t, v, nostr.Filter{Kinds: []int{1621}})
	if got, err := o.Items(t.Context(), reconcile.Everything, 5000); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d items, %v; want %d", len(got), err, len(want))
	}
}

func TestPacked(t *testing.T) {
	t.Parallel()
	db, err := eventdb.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Apply(restless(rand.New(rand.NewPCG(6, 4)), 1, 3000, nil)); err != nil {
		t.Fatal(err)
	}
	v := db.View()
	defer v.Close()
	many := nostr.Filter{Tags: nostr.TagMap{"d": nil}}
	for n := range 150 {
		many.Tags["d"] = append(many.Tags["d"], fmt.Sprint(n))
	}
	few := nostr.Filter{Authors: []string{strings.Repeat("1", 64)}, Kinds: []int{1621}}
	limited := nostr.Filter{Kinds: []int{1621}, Limit: 10}
	for _, f := range []nostr.Filter{many, few, limited, {LimitZero: true}} {
		if o, err := v.Ordered(f); o != nil || err == nil || eventdb.IsOrdered(f) {
			t.Errorf("%+v is kept", f)
		}
		want := matching(t, v, f)
		got, err := v.Packed(t.Context(), f, len(want))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%+v: %d, %v; want %d", f, len(got), err, len(want))
		}
		if len(want) == 0 {
			continue
		}
		if _, err := v.Packed(t.Context(), f, len(want)-1); !errors.Is(err, eventdb.ErrTooMany) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// TestOrderedIsBounded: walks count their steps, and end with the context.
func TestOrderedIsBounded(t *testing.T) {
	t.Parallel()
	db, err := eventdb.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Apply(restless(rand.New(rand.NewPCG(6, 4)), 1, 3000, nil)); err != nil {
		t.Fatal(err)
	}
	v := db.View()
	defer v.Close()
	narrow, err := v.Within(100).Ordered(nostr.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer narrow.Close()
	if _, err := narrow.Items(t.Context(), reconcile.Everything, 1000); !errors.Is(err, eventdb.ErrTooBroad) {
		t.Error(err)
	}
	wide, err := v.Ordered(nostr.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer wide.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := wide.Items(ctx, reconcile.Everything, 1000); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
