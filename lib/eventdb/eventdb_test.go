package eventdb_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

func open(t testing.TB, dir string, opts ...eventdb.Options) *eventdb.DB {
	t.Helper()
	db, err := eventdb.Open(dir, append(opts, eventdb.Options{})[0])
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func closeDB(t testing.TB, db *eventdb.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// compare asks index and model the same filter in every way the index can answer it.
func compare(t *testing.T, v *eventdb.View, m *model, f nostr.Filter) {
	t.Helper()
	var want, got, raw, ids []string
	wanted := m.query(f)
	for _, ev := range wanted {
		want = append(want, ev.ID)
	}
	for ev, err := range v.Query(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev.ID)
	}
	for b, err := range v.QueryRaw(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		var ev nostr.Event
		if err := ev.UnmarshalJSON(b.JSON); err != nil {
			t.Fatal(err)
		}
		raw = append(raw, ev.ID)
	}
	for e, err := range v.IDs(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, hex.EncodeToString(e.ID[:]))
		if n := len(ids); n <= len(want) && ids[n-1] == want[n-1] && (e.Kind != wanted[n-1].Kind || e.CreatedAt != wanted[n-1].CreatedAt) {
			t.Fatalf("entry %+v is of %v", e, wanted[n-1])
		}
	}
	n, err := countOf(t, v, f)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(want, got) || !slices.Equal(want, raw) || !slices.Equal(want, ids) || n != len(want) {
		t.Fatalf("filter %.2000s\nwant  %q\nquery %q\nraw   %q\nids   %q\ncount %d", f.String(), want, got, raw, ids, n)
	}
}

// TestAgainstNaiveMatcher is the heart of the package's tests: thousands of random events, in
// batches, with replays, restarts and a moving clock, and after each a handful of random filters
// whose every answer must be the naive matcher's.
func TestAgainstNaiveMatcher(t *testing.T) {
	t.Parallel()
	seeds := []uint64{1, 2, 3, rand.Uint64()}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(rand.New(rand.NewPCG(seed, 7)))
			m := &model{now: 1000}
			clock := eventdb.Options{Now: func() nostr.Timestamp { return m.now }}
			dir := t.TempDir()
			db := open(t, dir, clock)
			defer func() { closeDB(t, db) }()
			seq := uint64(0)
			var recent []eventdb.Record
			for round := range 120 {
				m.now += nostr.Timestamp(w.rnd.IntN(2))
				batch := slices.Clone(recent[len(recent)-min(len(recent), w.rnd.IntN(5)):]) // some that were applied already
				for range 1 + w.rnd.IntN(25) {
					seq += 1 + uint64(w.rnd.IntN(3)) // the log has gaps where it was compacted
					r := eventdb.Record{Seq: seq}
					if w.rnd.IntN(15) == 0 {
						r.Removed = w.id()
						m.remove(r.Removed)
					} else {
						r.Event = w.event()
						m.apply(r.Event)
					}
					batch, recent = append(batch, r), append(recent, r)
				}
				if err := db.Apply(batch); err != nil {
					t.Fatal(err)
				}
				if w.rnd.IntN(25) == 0 {
					closeDB(t, db)
					db = open(t, dir, clock)
				}
				v := db.View()
				if v.Seq() != seq || db.Seq() != seq {
					t.Fatalf("round %d: view at %d, index at %d, want %d", round, v.Seq(), db.Seq(), seq)
				}
				for range 10 {
					compare(t, v, m, w.filter())
				}
				checkLookUps(t, w, v, m)
				if err := v.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// checkLookUps compares what is asked by identity.
func checkLookUps(t *testing.T, w *world, v *eventdb.View, m *model) {
	t.Helper()
	for range 5 {
		ev := w.event()
		present := slices.ContainsFunc(m.events, func(o *nostr.Event) bool { return o.ID == ev.ID && !expired(o, m.now) })
		if has, err := v.Has(ev.ID); err != nil || has != present {
			t.Fatalf("has %s: %v, %v; want %v", ev.ID, has, err, present)
		}
		if kind, err := v.Kind(ev.ID); present != (err == nil) || !present && !errors.Is(err, eventdb.ErrNotFound) || present && kind != ev.Kind {
			t.Fatalf("kind of %s: %d, %v; want it %v", ev.ID, kind, err, present)
		}
		if got, err := v.Event(ev.ID); present != (err == nil) || !present && !errors.Is(err, eventdb.ErrNotFound) || present && got.ID != ev.ID {
			t.Fatalf("event %s: %v, %v; want it %v", ev.ID, got, err, present)
		}
		if deleted, err := v.Deleted(ev); err != nil || deleted != m.deleted(ev) {
			t.Fatalf("deleted %s: %v, %v; want %v", ev.ID, deleted, err, m.deleted(ev))
		}
		d := ev.Tags.GetD()
		var want string
		for _, o := range m.events {
			if sameCoordinate(o, ev) && !expired(o, m.now) {
				want = o.ID
			}
		}
		got, err := v.Replaceable(ev.Kind, ev.PubKey, d)
		if (err == nil) != (want != "") || err == nil && got.ID != want {
			t.Fatalf("holder of %d:%s:%s: %v, %v; want %q", ev.Kind, ev.PubKey, d, got, err, want)
		}
	}
}

func TestViewStaysWhereItWasTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(11, 11)))
	db := open(t, "")
	defer closeDB(t, db)
	first := &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 1, CreatedAt: 10}
	second := &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 1, CreatedAt: 11}
	if err := db.Apply([]eventdb.Record{{Seq: 1, Event: first}}); err != nil {
		t.Fatal(err)
	}
	v := db.View()
	defer v.Close()
	deletion := &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 5, CreatedAt: 12, Tags: nostr.Tags{{"e", first.ID}}}
	if err := db.Apply([]eventdb.Record{{Seq: 2, Event: second}, {Seq: 3, Event: deletion}}); err != nil {
		t.Fatal(err)
	}
	if n, err := countOf(t, v, nostr.Filter{}); err != nil || n != 1 || v.Seq() != 1 {
		t.Fatalf("the old view counts %d at %d, %v; want 1 at 1", n, v.Seq(), err)
	}
	if has, err := v.Has(first.ID); err != nil || !has {
		t.Fatalf("the old view lost an event that was deleted later: %v", err)
	}
}

func TestSubscribersHearWhatWasStoredInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(5, 5)))
	db := open(t, "", eventdb.Options{Now: func() nostr.Timestamp { return 0 }})
	defer closeDB(t, db)
	var heard []uint64
	db.Subscribe(func(recs []eventdb.Record) {
		v := db.View()
		defer v.Close()
		for _, r := range recs {
			heard = append(heard, r.Seq)
			if has, err := v.Has(r.Event.ID); err != nil || !has {
				t.Errorf("heard of %d before it could be seen: %v", r.Seq, err)
			}
		}
	})
	m := &model{}
	var want []uint64
	for seq := uint64(1); seq <= 300; seq++ {
		ev := w.event()
		if m.apply(ev) {
			want = append(want, seq)
		}
		if err := db.Apply([]eventdb.Record{{Seq: seq, Event: ev}}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(heard, want) {
		t.Fatalf("heard %d, want %d", heard, want)
	}
}

func TestWhatLeavesInItsOwnBatchIsNotHeard(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(6, 6)))
	db := open(t, "")
	defer closeDB(t, db)
	var heard []uint64
	db.Subscribe(func(recs []eventdb.Record) {
		for _, r := range recs {
			heard = append(heard, r.Seq)
		}
	})
	old := &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 30617, CreatedAt: 1, Tags: nostr.Tags{{"d", "x"}}}
	replacement := &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 30617, CreatedAt: 2, Tags: nostr.Tags{{"d", "x"}}}
	if err := db.Apply([]eventdb.Record{{Seq: 1, Event: old}, {Seq: 2, Event: replacement}}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(heard, []uint64{2}) {
		t.Fatalf("heard %d, want only 2", heard)
	}
	v := db.View()
	defer v.Close()
	if n, err := countOf(t, v, nostr.Filter{}); err != nil || n != 1 {
		t.Fatalf("%d events, %v; want 1", n, err)
	}
}

func TestApplyRefusesBadRecordsWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(8, 8)))
	good := &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 1}
	for name, recs := range map[string][]eventdb.Record{
		"no event":     {{Seq: 1, Event: good}, {Seq: 2}},
		"bad id":       {{Seq: 1, Event: good}, {Seq: 2, Event: &nostr.Event{ID: "xyz", PubKey: w.authors[0]}}},
		"bad pubkey":   {{Seq: 1, Event: good}, {Seq: 2, Event: &nostr.Event{ID: w.hex(), PubKey: "0"}}},
		"not in order": {{Seq: 2, Event: good}, {Seq: 1, Event: good}},
	} {
		db := open(t, "")
		if err := db.Apply(recs); err == nil {
			t.Errorf("%s: applied", name)
		}
		v := db.View()
		if n, err := countOf(t, v, nostr.Filter{}); err != nil || n != 0 || db.Seq() != 0 {
			t.Errorf("%s: %d events at %d, %v; want none of them", name, n, db.Seq(), err)
		}
		v.Close()
		closeDB(t, db)
	}
}

func TestDeletionsDisrespected(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(9, 9)))
	db := open(t, "", eventdb.Options{KeepDeleted: true})
	defer closeDB(t, db)
	ev := &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 1}
	deletion := &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 5, Tags: nostr.Tags{{"e", ev.ID}}}
	if err := db.Apply([]eventdb.Record{{Seq: 1, Event: ev}, {Seq: 2, Event: deletion}}); err != nil {
		t.Fatal(err)
	}
	v := db.View()
	defer v.Close()
	if n, err := countOf(t, v, nostr.Filter{}); err != nil || n != 2 {
		t.Fatalf("%d events, %v; want both", n, err)
	}
	if deleted, err := v.Deleted(ev); err != nil || deleted {
		t.Fatalf("deleted: %v, %v", deleted, err)
	}
}

func TestQueryStopsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(10, 10)))
	db := open(t, "")
	defer closeDB(t, db)
	var recs []eventdb.Record
	for seq := range uint64(5000) {
		recs = append(recs, eventdb.Record{Seq: seq + 1, Event: &nostr.Event{ID: w.hex(), PubKey: w.authors[0], Kind: 1}})
	}
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
	v := db.View()
	defer v.Close()
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	var end error
	for _, err := range v.Query(ctx, nostr.Filter{}) {
		if err != nil {
			end = err
			break
		}
		if seen++; seen == 10 {
			cancel()
		}
	}
	cancel()
	if !errors.Is(end, context.Canceled) || seen > 1000 {
		t.Fatalf("ended with %v after %d events", end, seen)
	}
}

func TestWaitFor(t *testing.T) {
	t.Parallel()
	db := open(t, "")
	defer closeDB(t, db)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := db.WaitFor(t.Context(), 7); err != nil {
			t.Error(err)
		}
	})
	for _, seq := range []uint64{3, 7} {
		if err := db.Apply([]eventdb.Record{{Seq: seq, Event: note(int(seq))}}); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := db.WaitFor(ctx, 8); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait for what does not come: %v", err)
	}
}

// countOf is how many events a filter is answered with.
func countOf(t testing.TB, v *eventdb.View, f nostr.Filter) (n int, err error) {
	for _, err := range v.IDs(t.Context(), f) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
