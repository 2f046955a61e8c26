package session_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// named makes as many different items.
func named(format string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return list
}

func refs(n int) []string { return named("30617:"+strings.Repeat("7", 64)+":r%04d", n) }

func roots(n int) []string { return named("%064x", n) }

func states(n int) []string { return named("r%04d", n) }

func TestFilters(t *testing.T) {
	t.Parallel()
	owner, other := strings.Repeat("0", 64), strings.Repeat("1", 64)
	for name, tc := range map[string]struct {
		set  session.Set
		want []string
	}{
		"layer 1": {session.Set{First: true}, []string{`{"kinds":[10317,30617]}`}},
		"nothing": {session.Set{}, nil},
		"full": {session.Set{Full: []string{"30617:a:x", "30617:a:x:y"}}, []string{
			`{"#a":["30617:a:x","30617:a:x:y"]}`, `{"#A":["30617:a:x","30617:a:x:y"]}`, `{"#q":["30617:a:x","30617:a:x:y"]}`,
		}},
		"roots":   {session.Set{Roots: []string{owner}}, []string{`{"#e":["` + owner + `"]}`, `{"#E":["` + owner + `"]}`, `{"#q":["` + owner + `"]}`}},
		"states":  {session.Set{States: []string{"x:y", "z"}}, []string{`{"kinds":[30618],"#d":["x:y","z"]}`}},
		"people":  {session.Set{People: []string{owner}}, []string{`{"kinds":[0,10002],"authors":["` + owner + `"]}`}},
		"replies": {session.Set{Replies: []string{other}}, []string{`{"#e":["` + other + `"]}`, `{"#E":["` + other + `"]}`, `{"#q":["` + other + `"]}`}},
	} {
		var got []string
		for _, f := range slices.Concat(session.Groups(tc.set)...) {
			data, err := json.Marshal(f)
			if got = append(got, string(data)); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestHundreds: a filter names at most a hundred, every item is named, and there are no more
// filters than that takes.
func TestHundreds(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 99, 100, 101, 250} {
		s := session.Set{Full: refs(n), Roots: roots(n), States: states(n)}
		filters := slices.Concat(session.Groups(s)...)
		if len(filters) != 7*((n+99)/100) {
			t.Errorf("%d items of each: %d filters", n, len(filters))
		}
		named := map[string]int{}
		for _, f := range filters {
			for tag, values := range f.Tags {
				if named[tag] += len(values); len(values) > 100 {
					t.Errorf("a filter names %d", len(values))
				}
			}
			if data, err := json.Marshal(f); err != nil || len(data) > (session.Group{f}).Bytes() {
				t.Errorf("a filter of %d bytes is thought to be of %d (%v)", len(data), (session.Group{f}).Bytes(), err)
			}
		}
		for tag, want := range map[string]int{"a": n, "A": n, "d": n, "e": n, "E": n, "q": 2 * n} {
			if named[tag] != want {
				t.Errorf("#%s names %d of %d", tag, named[tag], want)
			}
		}
	}
}

// TestWideGroups name what several groups do, are bounded in values and bytes, and are cut into
// those groups again.
func TestWideGroups(t *testing.T) {
	t.Parallel()
	set := session.Set{Full: refs(150), States: states(1), Roots: roots(1050)}
	for bytes, want := range map[int]int{1 << 20: 1 + 1 + 2, 6400: 2 + 1 + 11} {
		if got := session.Wide(set, bytes); len(got) != want {
			t.Errorf("%d groups of %d bytes at most, want %d", len(got), bytes, want)
		}
	}
	var all, some []session.Group
	for _, wide := range session.Wide(set, 1<<20) {
		all = append(all, wide.Narrow([]bool{true, true, true})...)
		some = append(some, wide.Narrow([]bool{true, false, true})...)
		if none := wide.Narrow(make([]bool, 3)); len(none) > 0 {
			t.Errorf("no filter of a group is %v", none)
		}
	}
	groups := session.Groups(set)
	if !reflect.DeepEqual(all, groups) {
		t.Errorf("cut into %d groups, want those %d", len(all), len(groups))
	}
	for n, g := range groups {
		if len(g) == 3 {
			g = append([]nostr.Filter{}, g[0], g[2])
		}
		if !reflect.DeepEqual(some[n], g) {
			t.Errorf("group %d: two filters of three are %v", n, some[n])
		}
	}
}

// lists are those of a set.
func lists(s session.Set) [][]string {
	return [][]string{s.Full, s.States, s.Roots, s.Replies, s.People}
}

// TestLikeSets compares with what sets should do, over many random ones.
func TestLikeSets(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	keep := func(list []string, which func(item string) bool) []string {
		return slices.DeleteFunc(slices.Clone(list), func(item string) bool { return !which(item) })
	}
	some := func(list []string) []string { return keep(list, func(string) bool { return rnd.IntN(3) == 0 }) }
	all := session.Set{
		Full: refs(15), Roots: roots(30), States: states(10), Replies: roots(9), People: roots(7),
	}
	for range 1000 {
		var sets, clones [3]session.Set
		for n := range sets {
			sets[n] = session.Set{Full: some(all.Full), States: some(all.States), Roots: some(all.Roots), Replies: some(all.Replies), People: some(all.People)}
			clones[n] = session.Set{Full: slices.Clone(sets[n].Full), States: slices.Clone(sets[n].States), Roots: slices.Clone(sets[n].Roots), Replies: slices.Clone(sets[n].Replies), People: slices.Clone(sets[n].People)}
		}
		for name, tc := range map[string]struct {
			got session.Set
			has func(a, b, c bool) bool
		}{
			"diff":    {session.Diff(sets[0], sets[1], sets[2]), func(a, b, c bool) bool { return a && !b && !c }},
			"union":   {session.Union(sets[:]...), func(a, b, c bool) bool { return a || b || c }},
			"only":    {session.Only(sets[0], sets[1]), func(a, b, _ bool) bool { return a && b }},
			"no more": {sets[0], func(a, _, _ bool) bool { return a }}, // it is not changed
		} {
			for i, got := range lists(tc.got) {
				in := func(n int, item string) bool { return slices.Contains(lists(clones[n])[i], item) }
				want := keep(lists(all)[i], func(item string) bool { return tc.has(in(0, item), in(1, item), in(2, item)) })
				if !slices.Equal(got, want) {
					t.Fatalf("%s of %v: %v, want %v", name, clones, got, want)
				}
			}
		}
	}
}
