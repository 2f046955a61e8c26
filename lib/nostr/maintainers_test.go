package nostr

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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
		owners        map[string]string // author → owners who trust the author
	}{
		{"nobody announced", nil, map[string]string{alice: ""}, map[string]string{alice: ""}},
		{"alone", []*Announcement{trust(t, alice)},
			map[string]string{alice: "a", bob: ""}, map[string]string{alice: "a", bob: ""}},
		{"one maintainer who announced nothing", []*Announcement{trust(t, alice, bob)},
			map[string]string{alice: "ab", bob: ""}, map[string]string{alice: "a", bob: "a"}},
		{"trust is not mutual", []*Announcement{trust(t, alice, bob), trust(t, bob)},
			map[string]string{alice: "ab", bob: "b"}, map[string]string{alice: "a", bob: "ab"}},
		{"a chain", []*Announcement{trust(t, alice, bob), trust(t, bob, carol), trust(t, carol, dave)},
			map[string]string{alice: "abcd", bob: "bcd", carol: "cd"}, map[string]string{dave: "abc", carol: "abc", bob: "ab", alice: "a"}},
		{"a chain with a missing link", []*Announcement{trust(t, alice, bob), trust(t, carol, dave)},
			map[string]string{alice: "ab", carol: "cd"}, map[string]string{dave: "c", carol: "c", bob: "a"}},
		{"a loop", []*Announcement{trust(t, alice, bob), trust(t, bob, carol), trust(t, carol, alice)},
			map[string]string{alice: "abc", bob: "abc", carol: "abc"}, map[string]string{alice: "abc", bob: "abc", dave: ""}},
		{"a newer announcement takes trust back", []*Announcement{newer, trust(t, alice, bob)},
			map[string]string{alice: "ac"}, map[string]string{bob: "", carol: "a"}},
		{"at the same second the lower id counts", []*Announcement{trust(t, alice, bob), lower},
			map[string]string{alice: "ac"}, map[string]string{bob: "", carol: "a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for owner, want := range c.sets {
				if got := letters(slices.Sorted(maps.Keys(MaintainerSet(owner, c.announcements)))); got != want {
					t.Errorf("the set of %s is %q, want %q", owner[:1], got, want)
				}
			}
			for author, want := range c.owners {
				if got := letters(AuthorizedOwners(author, c.announcements)); got != want {
					t.Errorf("%s speaks for %q, want %q", author[:1], got, want)
				}
			}
		})
	}
}

func letters(keys []string) string {
	var b strings.Builder
	for _, k := range keys {
		b.WriteByte(k[0])
	}
	return b.String()
}

// FuzzAuthorizedOwners builds any graph of trust among five people and compares the walk backwards
// with every owner's set.
func FuzzAuthorizedOwners(f *testing.F) {
	f.Add([]byte{0x01, 0x12, 0x20}, byte(0b10011))
	f.Fuzz(func(t *testing.T, edges []byte, silent byte) {
		person := func(n byte) string { return fmt.Sprintf("%064x", n%5) }
		named := make(map[string][]string)
		for _, edge := range edges[:min(len(edges), 40)] {
			named[person(edge>>4)] = append(named[person(edge>>4)], person(edge&15))
		}
		var announcements []*Announcement
		for n := range byte(5) {
			if silent>>n&1 == 0 {
				announcements = append(announcements, trust(t, person(n), named[person(n)]...))
			}
		}
		for author := range byte(5) {
			var want []string
			for owner := range byte(5) {
				if MaintainerSet(person(owner), announcements)[person(author)] {
					want = append(want, person(owner))
				}
			}
			if got := AuthorizedOwners(person(author), announcements); !slices.Equal(got, want) {
				t.Fatalf("%d speaks for %v, want %v", author, got, want)
			}
		}
	})
}

func TestReplaces(t *testing.T) {
	t.Parallel()
	old := &Event{ID: key('5'), CreatedAt: 1}
	newer := &Event{ID: key('6'), CreatedAt: 2}
	lower := &Event{ID: key('4'), CreatedAt: 1}
	for _, c := range []struct {
		a, b *Event
		want bool
	}{{newer, old, true}, {old, newer, false}, {lower, old, true}, {old, lower, false}, {old, old, false}, {old, nil, true}, {nil, old, false}, {nil, nil, false}} {
		if got := Replaces(c.a, c.b); got != c.want {
			t.Errorf("Replaces(%v, %v) = %v", c.a, c.b, got)
		}
	}
}
