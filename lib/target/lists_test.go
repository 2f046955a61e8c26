package target_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// stored is a stream of lists: what is at a sequence, if it is still there.
type stored map[uint64]proto.RootsChange

func (s stored) get(_ context.Context, at uint64) (proto.RootsChange, bool, error) {
	c, found := s[at]
	return c, found, nil
}

func unknown(uint64) ([]target.ID, bool) { return nil, false }

func randomList(rnd *rand.Rand, most int) []target.ID {
	var ids []target.ID
	for range rnd.IntN(most) {
		ids = append(ids, id(rnd.Uint64N(uint64(most))))
	}
	return target.SortIDs(ids)
}

// write appends changes to a stream of one list, as discovery does, and returns the last sequence.
func (s stored) write(t *testing.T, last uint64, limit int, changes []proto.RootsChange) uint64 {
	t.Helper()
	for i, c := range changes {
		if c.Snapshot {
			clear(s)
		} else {
			c.Prev = last
		}
		if c.More != (i < len(changes)-1) {
			t.Fatalf("change %d of %d says more: %v", i+1, len(changes), c.More)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > limit {
			t.Fatalf("a change of %d bytes", len(text))
		}
		var read proto.RootsChange
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		last += 1 + uint64(len(text)%3)
		s[last] = read
	}
	return last
}

// TestListsLeadThere: the messages of a list say what it was after each of them that completes a
// change, whatever is known already, and snapshots too; those before a snapshot are gone.
func TestListsLeadThere(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 40 {
		s, last, limit := stored{}, uint64(0), []int{300, 5000, 512 << 10}[rnd.IntN(3)]
		var list []target.ID
		was := map[uint64][]target.ID{}
		for range 12 {
			to := randomList(rnd, 200)
			changes := target.ListDiff("30617:aa:x", list, to, limit)
			if rnd.IntN(4) == 0 {
				changes = target.ListSnapshot("30617:aa:x", to, limit)
				clear(was)
			}
			if last = s.write(t, last, limit, changes); last > 0 {
				list, was[last] = to, to
			}
		}
		known := func(at uint64) ([]target.ID, bool) {
			ids, ok := was[at]
			return ids, ok && rnd.IntN(2) == 0
		}
		for at, want := range was {
			for _, k := range []func(uint64) ([]target.ID, bool){unknown, known} {
				if got, whole, err := target.List(t.Context(), at, k, s.get); err != nil || !whole || !slices.Equal(got, want) {
					t.Fatalf("at %d: %d ids, %v, %v; want %d", at, len(got), whole, err, len(want))
				}
			}
		}
		if again := target.ListDiff("30617:aa:x", list, list, limit); len(again) != 0 {
			t.Fatalf("a list differs from itself: %v", again)
		}
	}
}

func TestAListIsNotWhole(t *testing.T) {
	t.Parallel()
	hex := func(n uint64) []string { return []string{id(n).String()} }
	for name, s := range map[string]stored{
		"nothing is there":             {},
		"the first is gone":            {7: {Prev: 3, Roots: hex(1)}},
		"withdrawn":                    {7: {Gone: true}},
		"it comes before itself":       {7: {Prev: 7, Roots: hex(1)}},
		"withdrawn before":             {3: {Gone: true}, 7: {Prev: 3, Roots: hex(1)}},
		"one points to a later one":    {7: {Prev: 9, Roots: hex(1)}, 9: {Snapshot: true}},
		"in the middle one is missing": {2: {Roots: hex(1)}, 7: {Prev: 4, Roots: hex(2)}},
	} {
		if list, whole, err := target.List(t.Context(), 7, unknown, s.get); err != nil || whole {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	broken := errors.New("broken")
	if _, _, err := target.List(t.Context(), 7, unknown, func(context.Context, uint64) (proto.RootsChange, bool, error) {
		return proto.RootsChange{}, false, broken
	}); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
}

// TestChangesThatNameLists lead where the others do, if the lists are what they should be: large
// changes by a list, small ones after it as they are.
func TestChangesThatNameLists(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(7, 8))
	named := 0
	for range 12 {
		var folded target.Folded
		var at target.Target
		lists, seq := map[uint64][]target.ID{}, uint64(0)
		for range 8 {
			to := randomTarget(rnd)
			for ref, r := range at.Repos { // most stay nearly as they are
				if _, has := to.Repos[ref]; has && to.Exists() && rnd.IntN(3) > 0 {
					r.Roots = target.Without(target.Union(r.Roots, randomList(rnd, 8)), randomList(rnd, 8))
					to.Repos[ref] = target.Repo{Level: r.Level, Authors: r.Authors, Roots: r.Roots}
				}
			}
			from := at
			if snapshot := rnd.IntN(4) == 0 && to.Exists(); snapshot {
				from = target.Target{}
			}
			use := target.Lists{}
			for ref, r := range to.Repos {
				if target.Others(from.Repos[ref].Roots, r.Roots, 10) {
					seq++
					use[ref], lists[seq] = seq, r.Roots
				}
			}
			changes := use.Diff(from, to, 20_000)
			if from.Repos == nil && at.Repos != nil && to.Exists() {
				changes = use.Snapshot(to, 20_000)
			}
			for _, c := range changes {
				for _, r := range c.Repos {
					if r.RootsAt > 0 {
						named++
					}
					if r.RootsAt > 0 && len(r.Roots)+len(r.RootsGone) > 0 {
						t.Fatalf("a change names a list and root events: %+v", r)
					}
				}
				folded.Take(c)
			}
			found := map[string][]target.ID{}
			for ref, n := range folded.Named() {
				if _, has := folded.Target().Repos[ref]; !has {
					t.Fatalf("%s has a list and is not wanted", ref)
				}
				found[ref] = n.Roots(lists[n.At])
			}
			if got := folded.Target().With(found); !equal(got, to) {
				t.Fatalf("from %v to %v leads to %v", at, to, got)
			}
			at = to
		}
	}
	if named < 50 {
		t.Errorf("only %d lists are named: the test needs more", named)
	}
}

func TestOthers(t *testing.T) {
	t.Parallel()
	list := func(from, to uint64) (ids []target.ID) {
		for n := from; n < to; n++ {
			ids = append(ids, id(n))
		}
		return ids
	}
	for _, tc := range []struct {
		name     string
		from, to []target.ID
		large    bool
	}{
		{"none", nil, nil, false},
		{"the same", list(0, 500), list(0, 500), false},
		{"99 more", list(0, 500), list(0, 599), false},
		{"100 more", list(0, 500), list(0, 600), true},
		{"100 fewer", list(0, 500), list(100, 500), true},
		{"50 others", list(0, 500), list(50, 550), true},
		{"49 others", list(0, 500), list(49, 549), false},
		{"100 of a new one", nil, list(0, 100), true},
	} {
		if got := target.Others(tc.from, tc.to, 100); got != tc.large {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
