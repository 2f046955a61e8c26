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

func states(n int) (list []string) {
	for _, ref := range refs(n) {
		list = append(list, session.State(ref, nil))
	}
	return list
}

func TestFilters(t *testing.T) {
	t.Parallel()
	owner, other := strings.Repeat("0", 64), strings.Repeat("1", 64)
	for name, tc := range map[string]struct {
		set  session.Set
		want []string
	}{
		"layer 1": {session.Set{First: true}, []string{`{"kinds":[30617,30618,10317]}`}},
		"nothing": {session.Set{}, nil},
		"full": {session.Set{Full: []string{"30617:a:x", "30617:a:x:y"}}, []string{
			`{"#a":["30617:a:x","30617:a:x:y"]}`, `{"#A":["30617:a:x","30617:a:x:y"]}`, `{"#q":["30617:a:x","30617:a:x:y"]}`,
		}},
		"roots": {session.Set{Roots: []string{owner}}, []string{`{"#e":["` + owner + `"]}`, `{"#E":["` + owner + `"]}`, `{"#q":["` + owner + `"]}`}},
		"states, of the owner too, and an identifier with colons": {
			session.Set{State: []string{session.State("30617:"+owner+":x:y", []string{other})}},
			[]string{`{"kinds":[30618],"authors":["` + owner + `","` + other + `"],"#d":["x:y"]}`},
		},
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

// TestHundreds: a filter names at most a hundred, every item is named, and the number of filters is
// as foretold.
func TestHundreds(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 99, 100, 101, 250} {
		s := session.Set{Full: refs(n), Roots: roots(n), State: states(n)}
		filters := slices.Concat(session.Groups(s)...)
		if len(filters) != session.Fewest(s) || session.Fewest(s) != 7*((n+99)/100) {
			t.Errorf("%d items: %d filters, foretold %d", n, len(filters), session.Fewest(s))
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

// TestManyMaintainers: how many there are is written by strangers, and must not make a filter that
// no relay takes.
func TestManyMaintainers(t *testing.T) {
	t.Parallel()
	authors := roots(1000)
	count := 0
	for _, f := range slices.Concat(session.Groups(session.Set{State: []string{session.State("30617:"+authors[0]+":x", authors)}})...) {
		if count += len(f.Authors); len(f.Authors) > 100 || len(f.Authors) == 0 || !slices.Equal(f.Tags["d"], []string{"x"}) {
			t.Errorf("a filter of %d authors and #d %v", len(f.Authors), f.Tags["d"])
		}
	}
	if count != len(authors) {
		t.Errorf("%d of %d authors are named", count, len(authors))
	}
}

// TestWideGroups name what several groups do, are bounded in values and bytes, and are cut into
// those groups again.
func TestWideGroups(t *testing.T) {
	t.Parallel()
	set := session.Set{Full: refs(150), State: states(1), Roots: roots(1050)}
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

// items are those of a set, as a plain list to compare with.
func items(s session.Set) []string {
	return slices.Concat(s.Full, []string{""}, s.State, []string{""}, s.Roots)
}

func keep(list []string, which func(item string) bool) []string {
	return slices.DeleteFunc(slices.Clone(list), func(item string) bool { return !which(item) })
}

// TestLikeSets compares with what sets should do, over many random ones, and sees that no set is
// changed by what is done with it.
func TestLikeSets(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	some := func(list []string) []string { return keep(list, func(string) bool { return rnd.IntN(3) == 0 }) }
	maintained := []string{session.State("s", nil), session.State("r", []string{"a"}), session.State("r", []string{"a", "b"})}
	each := func(sets []session.Set, choose func(in func(n int, item string) bool, item string) bool) (out session.Set) {
		for i, list := range [][]string{refs(15), maintained, roots(30)} {
			of := func(s session.Set) []string { return [][]string{s.Full, s.State, s.Roots}[i] }
			in := func(n int, item string) bool { return slices.Contains(of(sets[n]), item) }
			list = keep(list, func(item string) bool { return choose(in, item) })
			switch i {
			case 0:
				out.Full = list
			case 1:
				out.State = list
			case 2:
				out.Roots = list
			}
		}
		return out
	}
	for range 1000 {
		var sets []session.Set
		var before [][]string
		for range 3 {
			sets = append(sets, session.Set{Full: some(refs(15)), State: some(maintained), Roots: some(roots(30))})
			before = append(before, items(sets[len(sets)-1]))
		}
		type in = func(n int, item string) bool
		for name, got := range map[string][2]session.Set{
			"diff":  {session.Diff(sets[0], sets[1], sets[2]), each(sets, func(in in, r string) bool { return in(0, r) && !in(1, r) && !in(2, r) })},
			"union": {session.Union(sets...), each(sets, func(in in, r string) bool { return in(0, r) || in(1, r) || in(2, r) })},
			"only":  {session.Only(sets[0], sets[1]), each(sets, func(in in, r string) bool { return in(0, r) && in(1, r) })},
		} {
			if !slices.Equal(items(got[0]), items(got[1])) {
				t.Fatalf("%s of %v: %v, want %v", name, sets, got[0], got[1])
			}
		}
		for n, s := range sets {
			if !slices.Equal(items(s), before[n]) {
				t.Fatal("a set was changed")
			}
		}
	}
}
