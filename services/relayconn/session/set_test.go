package session_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/services/relayconn/session"
)

func ids(ns ...int) (out []string) {
	for _, n := range ns {
		out = append(out, fmt.Sprintf("%064x", n))
	}
	return slices.Compact(slices.Sorted(slices.Values(out)))
}

func TestNewStates(t *testing.T) {
	t.Parallel()
	with := func(authors ...string) session.Set { return session.Set{State: []string{session.State("r", authors)}} }
	for name, tc := range map[string]struct {
		wanted, pending, confirmed session.Set
		fresh                      bool
	}{
		"never asked":                  {with("a"), session.Set{}, session.Set{}, true},
		"never asked, nobody known":    {with(), session.Set{}, session.Set{}, true},
		"confirmed":                    {with("a"), session.Set{}, with("a"), false},
		"pending":                      {with("a"), with("a"), session.Set{}, false},
		"another maintainer":           {with("a", "b"), session.Set{}, with("a"), true},
		"another maintainer, pending":  {with("a", "b"), with("a", "b"), with("a"), false},
		"promoted: the whole is asked": {session.Set{Full: []string{"r"}}, session.Set{}, with("a"), true},
	} {
		if got := session.Diff(tc.wanted, tc.pending, tc.confirmed); got.Empty() == tc.fresh {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// model is a set of the plain kind, to compare with.
type model map[string]bool

func modelOf(s session.Set) model {
	m := model{}
	for _, r := range s.Full {
		m["full "+r] = true
	}
	for _, r := range s.State {
		m["state "+r] = true
	}
	for _, id := range s.Roots {
		m["root "+id] = true
	}
	return m
}

func randomSet(rnd *rand.Rand) (s session.Set) {
	for n := range 15 {
		ref := fmt.Sprintf("30617:a:%02d", n)
		switch rnd.IntN(5) {
		case 0, 1:
			s.Full = append(s.Full, ref)
		case 2:
			s.State = append(s.State, session.State(ref, []string{"a"}))
		}
	}
	var ns []int
	for range rnd.IntN(20) {
		ns = append(ns, rnd.IntN(30))
	}
	s.Roots = ids(ns...)
	return s
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
		if got := modelOf(session.Diff(a, b, c)); !maps.Equal(got, want) {
			t.Fatalf("new of %v, %v, %v: %v", ma, mb, mc, got)
		}
		want = maps.Clone(ma)
		maps.Copy(want, mb)
		union := session.Union(a, b)
		if got := modelOf(union); !maps.Equal(got, want) {
			t.Fatalf("union of %v, %v: %v", ma, mb, got)
		}
		want = maps.Clone(ma)
		maps.DeleteFunc(want, func(k string, _ bool) bool { return !mb[k] })
		only := session.Only(a, b)
		if got := modelOf(only); !maps.Equal(got, want) {
			t.Fatalf("only %v of %v: %v", mb, ma, got)
		}
		for _, s := range []session.Set{union, only} {
			if !slices.IsSorted(s.Full) || !slices.IsSorted(s.Roots) {
				t.Fatalf("not sorted: %v", s)
			}
		}
		if !maps.Equal(modelOf(a), ma) || !maps.Equal(modelOf(b), mb) || !maps.Equal(modelOf(c), mc) {
			t.Fatal("a set was changed")
		}
	}
}
