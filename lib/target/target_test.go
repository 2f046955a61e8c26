package target_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

func id(n uint64) target.ID {
	var out target.ID
	for i := range 8 {
		out[31-i] = byte(n >> (8 * i))
	}
	return out
}

func randomTarget(rnd *rand.Rand) target.Target {
	if rnd.IntN(10) == 0 {
		return target.Target{}
	}
	t := target.Target{URL: fmt.Sprintf("wss://r%d.example.com", rnd.IntN(2)), Bootstrap: rnd.IntN(4) == 0, Repos: map[string]target.Repo{}}
	for range rnd.IntN(8) {
		r := target.Repo{Level: proto.LevelFull}
		if rnd.IntN(3) == 0 {
			r = target.Repo{Level: proto.LevelStateOnly, Authors: []string{"a", fmt.Sprint("b", rnd.IntN(3))}}
			for n := range rnd.IntN(40) {
				r.Authors = append(r.Authors, fmt.Sprintf("c%063d", n))
			}
		}
		most := 20
		if rnd.IntN(20) == 0 {
			most = 10_000
		}
		var ids []target.ID
		for range rnd.IntN(most) {
			ids = append(ids, id(rnd.Uint64N(uint64(most))))
		}
		r.Roots = target.SortIDs(ids)
		t.Repos[fmt.Sprint("30617:a:r:<&\"\u2028é>", rnd.IntN(10))] = r
	}
	return t
}

func equal(a, b target.Target) bool {
	return a.URL == b.URL && a.Bootstrap == b.Bootstrap && maps.EqualFunc(a.Repos, b.Repos, func(x, y target.Repo) bool {
		return x.Level == y.Level && slices.Equal(x.Authors, y.Authors) && slices.Equal(x.Roots, y.Roots)
	})
}

// TestChangesLeadThere: folding a diff into where it starts gives where it leads, over the wire and
// in bounded messages; a diff between equals is nothing; a snapshot leads there from anywhere.
func TestChangesLeadThere(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		from, to := randomTarget(rnd), randomTarget(rnd)
		limit := []int{1000, 20_000, 512 << 10}[rnd.IntN(3)]
		fold := func(at target.Target, changes []proto.TargetChange) target.Target {
			for i, c := range changes {
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
				var read proto.TargetChange
				if err := json.Unmarshal(text, &read); err != nil {
					t.Fatal(err)
				}
				at = at.Apply(read)
			}
			return at
		}
		if got := fold(from, target.Diff(from, to, limit)); !equal(got, to) {
			t.Fatalf("from %v to %v leads to %v", from, to, got)
		}
		if got := fold(from, target.Snapshot(to, limit)); to.Exists() && !equal(got, to) {
			t.Fatalf("the snapshot of %v leads to %v", to, got)
		}
		if again := target.Diff(to, to, limit); len(again) != 0 {
			t.Fatalf("from %v to itself: %v", to, again)
		}
	}
}

// TestFoldedIsWhatApplyGives: changes that are folded in lead where applying them one by one does,
// and what was looked at in between stays what it was.
func TestFoldedIsWhatApplyGives(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		var folded target.Folded
		var at target.Target
		type look struct{ is, was target.Target }
		var looks []look
		for range 6 {
			to := randomTarget(rnd)
			changes := target.Diff(at, to, 20_000)
			if rnd.IntN(3) == 0 && to.Exists() {
				changes = target.Snapshot(to, 20_000)
			}
			for _, c := range changes {
				folded.Take(c)
				at = at.Apply(c)
				if folded.Exists() != at.Exists() {
					t.Fatalf("exists: %v, want %v", folded.Exists(), at.Exists())
				}
				if rnd.IntN(3) == 0 {
					is := folded.Target()
					was := is
					was.Repos = maps.Clone(is.Repos)
					looks = append(looks, look{is, was})
				}
			}
			if !equal(folded.Target(), to) || !equal(at, to) {
				t.Fatalf("folded to %v and %v, want %v", folded.Target(), at, to)
			}
		}
		for _, l := range looks {
			if !equal(l.is, l.was) {
				t.Fatalf("%v became %v", l.was, l.is)
			}
		}
	}
}

// TestUnion: both lists together, sorted and each once, as a map says.
func TestUnion(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		all := map[target.ID]bool{}
		list := func() (ids []target.ID) {
			for range rnd.IntN(10) {
				ids = append(ids, id(rnd.Uint64N(12)<<uint(8*rnd.IntN(8))))
				all[ids[len(ids)-1]] = true
			}
			return target.SortIDs(ids)
		}
		a, b := list(), list()
		var want []target.ID
		for id := range all {
			want = append(want, id)
		}
		if got := target.Union(a, b); !slices.Equal(got, target.SortIDs(want)) {
			t.Fatalf("union of %v and %v is %v", a, b, got)
		}
	}
}

func TestPromotionForgetsTheAuthors(t *testing.T) {
	t.Parallel()
	held := target.Target{URL: "wss://r", Repos: map[string]target.Repo{"30617:a:x": {Level: proto.LevelStateOnly, Authors: []string{"a"}}}}
	full := target.Target{URL: "wss://r", Repos: map[string]target.Repo{"30617:a:x": {Level: proto.LevelFull}}}
	changes := target.Diff(held, full, 1000)
	if len(changes) != 1 || len(changes[0].Repos) != 1 || changes[0].Repos[0].Level != proto.LevelFull {
		t.Fatalf("changes %v", changes)
	}
	if got := held.Apply(changes[0]); !equal(got, full) {
		t.Fatalf("got %v", got)
	}
}
