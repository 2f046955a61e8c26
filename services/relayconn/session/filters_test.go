package session_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

func refs(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("30617:%064d:r%04d", 7, i))
	}
	return list
}

func roots(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("%064x", i))
	}
	return list
}

func text(t *testing.T, filters []nostr.Filter) (lines []string) {
	t.Helper()
	for _, f := range filters {
		data, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(data))
	}
	return lines
}

func filtersOf(s session.Set) []nostr.Filter { return slices.Concat(session.Groups(s)...) }

func TestFilters(t *testing.T) {
	t.Parallel()
	owner, other := strings.Repeat("0", 64), strings.Repeat("1", 64)
	id := strings.Repeat("1", 64)
	for name, tc := range map[string]struct {
		filters []nostr.Filter
		want    []string
	}{
		"layer 1": {session.Groups(session.Set{First: true})[0], []string{`{"kinds":[30617,30618,10317]}`}},
		"nothing": {filtersOf(session.Set{}), nil},
		"full": {filtersOf(session.Set{Full: []string{"30617:a:x", "30617:a:x:y"}}), []string{
			`{"#a":["30617:a:x","30617:a:x:y"]}`, `{"#A":["30617:a:x","30617:a:x:y"]}`, `{"#q":["30617:a:x","30617:a:x:y"]}`,
		}},
		"roots": {filtersOf(session.Set{Roots: []string{id}}), []string{
			`{"#e":["` + id + `"]}`, `{"#E":["` + id + `"]}`, `{"#q":["` + id + `"]}`,
		}},
		"states, of the owner too, and an identifier with colons": {
			filtersOf(session.Set{State: []string{session.State("30617:"+owner+":x:y", []string{other})}}),
			[]string{`{"kinds":[30618],"authors":["` + owner + `","` + other + `"],"#d":["x:y"]}`},
		},
	} {
		if got := text(t, tc.filters); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestHundreds: a filter names at most a hundred, every item is named, and the number of filters is
// as foretold.
func TestHundreds(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 99, 100, 101, 250} {
		s := session.Set{Full: refs(n), Roots: roots(n)}
		for _, ref := range refs(n) {
			s.State = append(s.State, session.State(ref, nil))
		}
		filters := filtersOf(s)
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
		for _, tag := range []string{"a", "A", "d", "e", "E"} {
			if named[tag] != n {
				t.Errorf("#%s names %d of %d", tag, named[tag], n)
			}
		}
		if named["q"] != 2*n {
			t.Errorf("#q names %d, want references and ids", named["q"])
		}
	}
}

// TestManyMaintainers: how many there are is written by strangers, and must not make a filter that
// no relay takes.
func TestManyMaintainers(t *testing.T) {
	t.Parallel()
	var authors []string
	for i := range 1000 {
		authors = append(authors, fmt.Sprintf("%064d", i))
	}
	filters := filtersOf(session.Set{State: []string{session.State("30617:"+authors[0]+":x", authors)}})
	named := 0
	for _, f := range filters {
		if named += len(f.Authors); len(f.Authors) > 100 || len(f.Authors) == 0 || !slices.Equal(f.Tags["d"], []string{"x"}) {
			t.Errorf("a filter of %d authors and #d %v", len(f.Authors), f.Tags["d"])
		}
	}
	if named != len(authors) {
		t.Errorf("%d of %d authors are named", named, len(authors))
	}
}
