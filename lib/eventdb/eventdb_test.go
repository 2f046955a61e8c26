package eventdb

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
)

func open(t testing.TB, dir string, opts ...Options) *DB {
	t.Helper()
	db, err := Open(dir, append(opts, Options{})[0])
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func closeDB(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// compare asks index and model the same filter in every way the index can answer it.
func compare(t *testing.T, v *View, m *model, f nostr.Filter) {
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
	if n := count(t, v, f); !slices.Equal(want, got) || !slices.Equal(want, raw) || !slices.Equal(want, ids) || n != len(want) {
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
			clock := Options{Now: func() nostr.Timestamp { return m.now }}
			dir := t.TempDir()
			db := open(t, dir, clock)
			defer func() { closeDB(t, db) }()
			seq := uint64(0)
			var recent []Record
			for round := range 120 {
				m.now += nostr.Timestamp(w.rnd.IntN(2))
				batch := slices.Clone(recent[len(recent)-min(len(recent), w.rnd.IntN(5)):]) // some that were applied already
				for range 1 + w.rnd.IntN(25) {
					seq += 1 + uint64(w.rnd.IntN(3)) // the log has gaps where it was compacted
					r := Record{Seq: seq}
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
				checkLookUps(t, w, db, v, m)
				if err := v.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func idOf(t *testing.T, ev *nostr.Event) [32]byte {
	t.Helper()
	entry, err := EntryOf(ev)
	if err != nil {
		t.Fatal(err)
	}
	return entry.ID
}

// checkLookUps compares what is asked by identity.
func checkLookUps(t *testing.T, w *world, db *DB, v *View, m *model) {
	t.Helper()
	for range 5 {
		ev := w.event()
		present := slices.ContainsFunc(m.events, func(o *nostr.Event) bool { return o.ID == ev.ID && !expired(o, m.now) })
		if has, err := db.HasEach([][32]byte{idOf(t, ev)}); err != nil || has[0] != present {
			t.Fatalf("has %s now: %v, %v; want %v", ev.ID, has, err, present)
		}
		if kind, err := v.Kind(ev.ID); present != (err == nil) || !present && !errors.Is(err, ErrNotFound) || present && kind != ev.Kind {
			t.Fatalf("kind of %s: %d, %v; want it %v", ev.ID, kind, err, present)
		}
		if got, err := v.Event(ev.ID); present != (err == nil) || !present && !errors.Is(err, ErrNotFound) || present && got.ID != ev.ID {
			t.Fatalf("event %s: %v, %v; want it %v", ev.ID, got, err, present)
		}
		if deleted, err := v.Deleted(ev); err != nil || deleted != m.deleted(ev) {
			t.Fatalf("deleted %s: %v, %v; want %v", ev.ID, deleted, err, m.deleted(ev))
		}
		d := ev.Tags.GetD()
		var want, holds string
		for _, o := range m.events {
			if !sameCoordinate(o, ev) {
				continue
			}
			if holds = o.ID; !expired(o, m.now) {
				want = o.ID
			}
		}
		holder, held, err := v.Holder(ev.Kind, ev.PubKey, d)
		if err != nil || held != (holds != "") || held && hex.EncodeToString(holder.ID[:]) != holds {
			t.Fatalf("%d:%s:%s is held by %x, %v, %v; want %q", ev.Kind, ev.PubKey, d, holder.ID, held, err, holds)
		}
		got, err := v.Replaceable(ev.Kind, ev.PubKey, d)
		if (err == nil) != (want != "") || err == nil && got.ID != want {
			t.Fatalf("holder of %d:%s:%s: %v, %v; want %q", ev.Kind, ev.PubKey, d, got, err, want)
		}
	}
}
