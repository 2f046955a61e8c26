package wanted_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/wanted"
)

func id(n uint64) (id target.ID) {
	binary.BigEndian.PutUint64(id[:], n%5) // some begin alike
	binary.BigEndian.PutUint64(id[8:], n)
	id[31] = byte(n)
	return id
}

// randomTarget is a target with whole ids.
func randomTarget(rnd *rand.Rand) target.Target {
	if rnd.IntN(10) == 0 {
		return target.Target{}
	}
	t := target.Target{URL: fmt.Sprintf("wss://r%d.example.com", rnd.IntN(2)), Bootstrap: rnd.IntN(4) == 0, Repos: map[string]target.Repo{}}
	for range rnd.IntN(6) {
		r := target.Repo{Level: proto.LevelFull}
		if rnd.IntN(3) == 0 {
			r = target.Repo{Level: proto.LevelStateOnly, Authors: []string{"a", fmt.Sprint("b", rnd.IntN(3))}}
		}
		var ids []target.ID
		for range rnd.IntN(20) {
			ids = append(ids, id(rnd.Uint64N(30)))
		}
		r.Roots = target.SortIDs(ids)
		t.Repos[fmt.Sprint("30617:a:r", rnd.IntN(5))] = r
	}
	return t
}

func same(a, b wanted.Target) bool {
	return a.URL == b.URL && a.Bootstrap == b.Bootstrap && maps.EqualFunc(a.Repos, b.Repos, wanted.Repo.Equal)
}

// TestDiffIsThatOfWholeIDs: between random targets the changes are those between the targets with
// whole ids, and no more ids are needed for them than those that come and go.
func TestDiffIsThatOfWholeIDs(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		from, to := randomTarget(rnd), randomTarget(rnd)
		if rnd.IntN(4) == 0 {
			from = to
		}
		a, b := wanted.Of(from), wanted.Of(to)
		added, gone := map[string][]target.ID{}, map[string][]target.ID{}
		for ref, r := range b.Repos {
			came, went := wanted.RootChanges(a.Repos[ref], r)
			var unknown, lost []wanted.Short
			added[ref], unknown = wanted.Find(to.Repos[ref].Roots, came)
			gone[ref], lost = wanted.Find(from.Repos[ref].Roots, went)
			if len(unknown)+len(lost) > 0 {
				t.Fatalf("not found: %x and %x", unknown, lost)
			}
		}
		got, want := wanted.Diff(a, b, added, gone, nil, 2000), target.Diff(from, to, 2000)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("from %v to %v: got %v, want %v", from, to, got, want)
		}
		if none := len(want) == 0; none != same(a, b) {
			t.Fatalf("%v and %v are the same: %v", a, b, same(a, b))
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	list := target.SortIDs([]target.ID{{1}, {2, 15: 1}, {2, 15: 2, 16: 9}, {4}})
	short := []wanted.Short{{0}, {1}, {2}, {2, 15: 2}, {3}, {4}, {5}}
	found, missing := wanted.Find(list, short)
	if !slices.Equal(found, []target.ID{{1}, {2, 15: 2, 16: 9}, {4}}) || !slices.Equal(missing, []wanted.Short{{0}, {2}, {3}, {5}}) {
		t.Errorf("found %x, missing %x", found, missing)
	}
	if found, missing := wanted.Find(nil, short); found != nil || !slices.Equal(missing, short) {
		t.Errorf("in no ids: found %x, missing %x", found, missing)
	}
	if found, missing := wanted.Find(list, nil); found != nil || missing != nil {
		t.Errorf("no ids: found %x, missing %x", found, missing)
	}
}

func TestWithoutRoots(t *testing.T) {
	t.Parallel()
	before := wanted.Target{URL: "wss://a", Bootstrap: true, Repos: map[string]wanted.Repo{
		"x": {Level: proto.LevelFull, Roots: []wanted.Short{{1}, {2}, {3}}}, "y": {Level: proto.LevelFull, Roots: []wanted.Short{{2}}},
		"z": {Level: proto.LevelFull, Roots: []wanted.Short{{2}, {4}}},
	}}
	sum := before.Sum()
	after := before.WithoutRoots(map[string][]wanted.Short{"x": {{2}}, "z": {{2}, {4}}})
	want := wanted.Target{URL: "wss://a", Bootstrap: true, Repos: map[string]wanted.Repo{
		"x": {Level: proto.LevelFull, Roots: []wanted.Short{{1}, {3}}}, "y": {Level: proto.LevelFull, Roots: []wanted.Short{{2}}},
		"z": {Level: proto.LevelFull},
	}}
	if !same(after, want) || after.Sum() != want.Sum() {
		t.Errorf("got %v", after)
	}
	if before.Sum() != sum || len(before.Repos["x"].Roots) != 3 {
		t.Errorf("it was changed: %v", before)
	}
	if after := before.WithoutRoots(nil); !same(after, before) {
		t.Errorf("without nothing: %v", after)
	}
}

// TestSumsTellTargetsApart: random targets have the same sum if and only if they are the same,
// whether it was worked out in part before or not.
func TestSumsTellTargetsApart(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	var before wanted.Target
	for range 200 {
		to := wanted.Of(randomTarget(rnd))
		if same := before.Sum() == to.Sum(); same != alike(before, to) {
			t.Fatalf("%v and %v: the same sum: %v", before, to, same)
		}
		sum := to.Sum()
		for ref, r := range to.Repos {
			to.Repos[ref] = r.Summed()
		}
		if to.Sum() != sum {
			t.Fatal("another sum when it was worked out before")
		}
		before = to
	}
}

// alike reports whether two targets are the same; all that do not exist are.
func alike(a, b wanted.Target) bool { return !a.Exists() && !b.Exists() || same(a, b) }

// TestSumsOfNearlyTheSame: every part counts, and none can be taken for another.
func TestSumsOfNearlyTheSame(t *testing.T) {
	t.Parallel()
	with := func(ref string, r wanted.Repo) wanted.Target {
		return wanted.Target{URL: "wss://a", Repos: map[string]wanted.Repo{ref: r}}
	}
	id := wanted.Short{1}
	seen := map[string]int{}
	for n, x := range []wanted.Target{
		{}, {URL: "wss://a"}, {URL: "wss://b"}, {URL: "wss://a", Bootstrap: true},
		with("x", wanted.Repo{}), with("y", wanted.Repo{}), with("x", wanted.Repo{Level: proto.LevelFull}), with("x", wanted.Repo{Level: proto.LevelStateOnly}),
		with("x", wanted.Repo{Level: proto.LevelStateOnly, Authors: []string{"ab"}}), with("x", wanted.Repo{Level: proto.LevelStateOnly, Authors: []string{"a", "b"}}),
		with("x", wanted.Repo{Level: proto.LevelFull, Roots: []wanted.Short{id}}), with("x", wanted.Repo{Level: proto.LevelFull, Roots: []wanted.Short{id, {2}}}),
		with("x", wanted.Repo{Authors: []string{string(id[:])}}), with("x", wanted.Repo{Roots: []wanted.Short{id}}),
	} {
		if other, known := seen[x.Sum()]; known {
			t.Errorf("%d has the sum of %d", n, other)
		}
		seen[x.Sum()] = n
	}
}

// TestLists: root events of a repository that are in a list are named by that where they differ,
// and their ids are not needed.
func TestLists(t *testing.T) {
	t.Parallel()
	roots := func(from, to uint64) (list []target.ID) {
		for n := from; n < to; n++ {
			list = append(list, id(n))
		}
		return target.SortIDs(list)
	}
	of := func(x, y []target.ID) wanted.Target {
		return wanted.Of(target.Target{URL: "wss://a", Repos: map[string]target.Repo{
			"30617:a:x": {Level: proto.LevelFull, Roots: x}, "30617:a:y": {Level: proto.LevelFull, Roots: y},
		}})
	}
	from, to := of(roots(0, 20), roots(0, 20)), of(roots(5, 25), roots(0, 21))
	if refs := wanted.Large(from, to, 10); !slices.Equal(refs, []string{"30617:a:x"}) {
		t.Errorf("many others in %v", refs)
	}
	if refs := wanted.Large(from, from, 0); len(refs) > 0 {
		t.Errorf("others in what is the same: %v", refs)
	}
	changes := wanted.Diff(from, to, map[string][]target.ID{"30617:a:y": roots(20, 21)}, nil, target.Lists{"30617:a:x": 7}, 2000)
	want := []proto.RepoChange{{Ref: "30617:a:x", RootsAt: 7}, {Ref: "30617:a:y", Roots: []string{id(20).String()}}}
	if len(changes) != 1 || fmt.Sprint(changes[0].Repos) != fmt.Sprint(want) {
		t.Errorf("changes %+v", changes)
	}
	if changes := wanted.Diff(from, from, nil, nil, target.Lists{"30617:a:x": 7}, 2000); len(changes) > 0 {
		t.Errorf("changes to the same %+v", changes)
	}
}
