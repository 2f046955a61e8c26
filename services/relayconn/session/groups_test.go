package session_test

import (
	"reflect"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// TestWideGroups name what several groups do, are bounded in values and bytes, and are cut into
// those groups again.
func TestWideGroups(t *testing.T) {
	t.Parallel()
	set := session.Set{Full: refs(150), State: []string{session.State("30617:a:x", []string{"a"})}, Roots: roots(1050)}
	for bytes, want := range map[int]int{1 << 20: 1 + 1 + 2, 6400: 2 + 1 + 11} {
		if got := session.Wide(set, bytes); len(got) != want {
			t.Errorf("%d groups of %d bytes at most, want %d", len(got), bytes, want)
		}
	}
	var all, some []session.Group
	for _, wide := range session.Wide(set, 1<<20) {
		all = append(all, wide.Narrow([]bool{true, true, true})...)
		some = append(some, wide.Narrow([]bool{true, false, true})...)
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
