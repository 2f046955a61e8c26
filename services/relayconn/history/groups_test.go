package history_test

import (
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
)

// TestGroups: the filters of one hundred are one group, and no others are.
func TestGroups(t *testing.T) {
	t.Parallel()
	state := map[string][]string{"30617:a:x": {"a"}}
	for name, tc := range map[string]struct {
		filters []nostr.Filter
		want    []int
	}{
		"nothing":         {nil, nil},
		"layer 1":         {history.Layer1(), []int{1}},
		"two hundreds":    {history.FiltersOf(history.Set{Full: refs(150), Roots: roots(50)}), []int{3, 3, 3}},
		"states":          {history.FiltersOf(history.Set{State: state, Roots: roots(1)}), []int{1, 3}},
		"small additions": {append(history.FiltersOf(history.Set{Full: refs(1)}), history.FiltersOf(history.Set{Full: refs(2)})...), []int{3, 3}},
		"the same twice":  {append(history.FiltersOf(history.Set{Full: refs(1)}), history.FiltersOf(history.Set{Full: refs(1)})...), []int{3, 3}},
		"live":            {history.Live(history.FiltersOf(history.Set{Roots: roots(101)})), []int{3, 3}},
	} {
		groups := history.Groups(tc.filters)
		n := 0
		for i, g := range groups {
			if i < len(tc.want) && len(g) != tc.want[i] {
				t.Errorf("%s: group %d has %d filters, want %d", name, i, len(g), tc.want[i])
			}
			n += len(g)
		}
		if len(groups) != len(tc.want) || n != len(tc.filters) {
			t.Errorf("%s: %d groups of %d filters, want %d of %d", name, len(groups), n, len(tc.want), len(tc.filters))
		}
	}
}
