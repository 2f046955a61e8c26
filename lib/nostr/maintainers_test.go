package nostr

import (
	"maps"
	"slices"
	"testing"
)

// trust is an announcement by the owner that names maintainers.
func trust(t testing.TB, owner string, maintainers ...string) *Announcement {
	return announce(t, owner, "x", append(Tag{"maintainers"}, maintainers...))
}

func TestMaintainerSets(t *testing.T) {
	t.Parallel()
	newer := trust(t, alice, carol)
	newer.Event.CreatedAt++
	lower := trust(t, alice, carol)
	lower.Event.ID = key('1')
	for _, c := range []struct {
		name          string
		announcements []*Announcement
		sets          map[string]string // owner → set, as their letters
	}{
		{"no announcement", nil, map[string]string{alice: ""}},
		{"alone", []*Announcement{trust(t, alice)}, map[string]string{alice: "a", bob: ""}},
		{"one maintainer who announced nothing", []*Announcement{trust(t, alice, bob)}, map[string]string{alice: "ab", bob: ""}},
		{"trust is not mutual", []*Announcement{trust(t, alice, bob), trust(t, bob)}, map[string]string{alice: "ab", bob: "b"}},
		{"a chain", []*Announcement{trust(t, alice, bob), trust(t, bob, carol), trust(t, carol, dave)}, map[string]string{alice: "abcd", bob: "bcd", carol: "cd"}},
		{"a chain with a missing link", []*Announcement{trust(t, alice, bob), trust(t, carol, dave)}, map[string]string{alice: "ab", carol: "cd"}},
		{"a loop", []*Announcement{trust(t, alice, bob), trust(t, bob, carol), trust(t, carol, alice)}, map[string]string{alice: "abc", bob: "abc", carol: "abc"}},
		{"a newer announcement takes trust back", []*Announcement{newer, trust(t, alice, bob)}, map[string]string{alice: "ac"}},
		{"at the same second the lower id counts", []*Announcement{trust(t, alice, bob), lower}, map[string]string{alice: "ac"}},
	} {
		for owner, want := range c.sets {
			got := ""
			for _, key := range slices.Sorted(maps.Keys(MaintainerSet(owner, c.announcements))) {
				got += key[:1]
			}
			if got != want {
				t.Errorf("%s: the set of %s is %q, want %q", c.name, owner[:1], got, want)
			}
		}
	}
}
