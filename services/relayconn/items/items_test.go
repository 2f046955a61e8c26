package items_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
)

func id(n int) (id target.ID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n)*0x9e3779b97f4a7c15)
	return id
}

func ids(ns ...int) []target.ID {
	var out []target.ID
	for _, n := range ns {
		out = append(out, id(n))
	}
	return target.SortIDs(out)
}

func TestOf(t *testing.T) {
	t.Parallel()
	s := items.Of(target.Target{Repos: map[string]target.Repo{
		"30617:a:y": {Level: proto.LevelFull, Roots: ids(1, 2)},
		"30617:a:x": {Level: proto.LevelFull, Roots: ids(2, 3)},
		"30617:a:z": {Level: proto.LevelStateOnly, Authors: []string{"a"}, Roots: ids(4)},
	}})
	if !slices.Equal(s.Full, []string{"30617:a:x", "30617:a:y"}) || !slices.Equal(s.Roots, ids(1, 2, 3)) || !slices.Equal(s.State["30617:a:z"], []string{"a"}) || s.Repos() != 3 {
		t.Errorf("%+v", s)
	}
	if !items.Of(target.Target{URL: "wss://r"}).Empty() || s.Empty() {
		t.Error("what is empty is not, or the other way round")
	}
}

func TestNewStates(t *testing.T) {
	t.Parallel()
	with := func(authors ...string) items.Set { return items.Set{State: map[string][]string{"r": authors}} }
	for name, tc := range map[string]struct {
		wanted, pending, confirmed items.Set
		fresh                      bool
	}{
		"never asked":                  {with("a"), items.Set{}, items.Set{}, true},
		"never asked, nobody known":    {with(), items.Set{}, items.Set{}, true},
		"confirmed":                    {with("a"), items.Set{}, with("a"), false},
		"pending":                      {with("a"), with("a"), items.Set{}, false},
		"another maintainer":           {with("a", "b"), items.Set{}, with("a"), true},
		"another maintainer, pending":  {with("a", "b"), with("a", "b"), with("a"), false},
		"promoted: the whole is asked": {items.Set{Full: []string{"r"}}, items.Set{}, with("a"), true},
	} {
		if got := items.New(tc.wanted, tc.pending, tc.confirmed); got.Empty() == tc.fresh {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// model is a set of the plain kind, to compare with.
type model map[string]bool

func modelOf(s items.Set) model {
	m := model{}
	for _, r := range s.Full {
		m["full "+r] = true
	}
	for r, a := range s.State {
		m[fmt.Sprint("state ", r, a)] = true
	}
	for _, id := range s.Roots {
		m["root "+id.String()] = true
	}
	return m
}

func randomSet(rnd *rand.Rand) items.Set {
	t := target.Target{Repos: map[string]target.Repo{}}
	for range rnd.IntN(12) {
		r := target.Repo{Level: proto.LevelFull}
		if rnd.IntN(3) == 0 {
			r = target.Repo{Level: proto.LevelStateOnly, Authors: []string{"a"}}
		}
		var ns []int
		for range rnd.IntN(6) {
			ns = append(ns, rnd.IntN(15))
		}
		r.Roots = ids(ns...)
		t.Repos[fmt.Sprint("30617:a:", rnd.IntN(15))] = r
	}
	return items.Of(t)
}

// TestLikeSets compares with what sets should do, over many random ones, and sees that no set is
// changed by what is done with it.
func TestLikeSets(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		a, b, c := randomSet(rnd), randomSet(rnd), randomSet(rnd)
		ma, mb, mc := modelOf(a), modelOf(b), modelOf(c)
		want := model{}
		for k := range ma {
			if !mb[k] && !mc[k] {
				want[k] = true
			}
		}
		if got := modelOf(items.New(a, b, c)); !maps.Equal(got, want) {
			t.Fatalf("new of %v, %v, %v: %v", ma, mb, mc, got)
		}
		want = maps.Clone(ma)
		maps.Copy(want, mb)
		union := items.Union(a, b)
		if got := modelOf(union); !maps.Equal(got, want) {
			t.Fatalf("union of %v, %v: %v", ma, mb, got)
		}
		want = maps.Clone(ma)
		maps.DeleteFunc(want, func(k string, _ bool) bool { return !mb[k] })
		only := items.Only(a, b)
		if got := modelOf(only); !maps.Equal(got, want) {
			t.Fatalf("only %v of %v: %v", mb, ma, got)
		}
		for _, s := range []items.Set{union, only} {
			if !slices.IsSorted(s.Full) || !slices.IsSortedFunc(s.Roots, func(a, b target.ID) int { return slices.Compare(a[:], b[:]) }) {
				t.Fatalf("not sorted: %v", s)
			}
		}
		if !maps.Equal(modelOf(a), ma) || !maps.Equal(modelOf(b), mb) || !maps.Equal(modelOf(c), mc) {
			t.Fatal("a set was changed")
		}
	}
}

// many is a target of one repository in ten with roots in all.
func many(roots int) target.Target {
	t := target.Target{Repos: map[string]target.Repo{}}
	for i := range 10 {
		var ns []int
		for n := i; n < roots; n += 10 {
			ns = append(ns, n)
		}
		t.Repos[fmt.Sprint("30617:a:", i)] = target.Repo{Level: proto.LevelFull, Roots: ids(ns...)}
	}
	return t
}

// TestSameCostsNothing: what is shared stays shared, so the everyday cases copy nothing.
func TestSameCostsNothing(t *testing.T) {
	s, other := items.Of(many(10_000)), items.Of(many(10_000))
	for name, fn := range map[string]func() items.Set{
		"new of what is confirmed": func() items.Set { return items.New(s, items.Set{}, s) },
		"new, equal but not same":  func() items.Set { return items.New(s, items.Set{}, other) },
		"union with itself":        func() items.Set { return items.Union(s, other) },
		"all of it still wanted":   func() items.Set { return items.Only(s, other) },
	} {
		if n := testing.AllocsPerRun(3, func() { fn() }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkDiff(b *testing.B) {
	wanted := items.Of(many(10_001))
	for name, confirmed := range map[string]items.Set{"10000 roots, one new": items.Of(many(10_000)), "10000 roots, all new": {}, "10000 roots, nothing new": wanted} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				items.New(wanted, items.Set{}, confirmed)
			}
		})
	}
}

func BenchmarkOf(b *testing.B) {
	t := many(10_000)
	b.ReportAllocs()
	for b.Loop() {
		items.Of(t)
	}
}
