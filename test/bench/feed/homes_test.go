package feed_test

import (
	"fmt"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/bench/feed"
)

func TestRepository(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tags nostr.Tags
		want string
	}{
		{nostr.Tags{{"d", "mine"}}, "mine"},
		{nostr.Tags{{"p", "ann"}, {"a", "30617:ann:my:own"}, {"a", "30617:ann:other"}}, "my:own"},
		{nostr.Tags{{"E", "id"}, {"A", "30617:ann:mine"}}, "mine"},
		{nostr.Tags{{"a"}, {"a", "no address"}}, ""},
	} {
		if got := feed.Repository(&nostr.Event{Tags: c.tags}); got != c.want {
			t.Errorf("%v belongs to %q, want %q", c.tags, got, c.want)
		}
	}
}

// TestHomes: every repository has as many relays as it should, never the first one, and the relays
// have about as many repositories each.
func TestHomes(t *testing.T) {
	t.Parallel()
	const repositories, relays, copies = 1000, 101, 5
	counts := make([]int, relays)
	for i := range repositories {
		homes := feed.Homes(fmt.Sprint("repo-", i), relays, copies)
		for _, h := range homes {
			counts[h]++
		}
		if slices.Sort(homes); len(slices.Compact(homes)) != copies {
			t.Errorf("repository %d is at %v", i, homes)
		}
	}
	if counts[0] != 0 {
		t.Errorf("the first relay has %d", counts[0])
	}
	if least, most := slices.Min(counts[1:]), slices.Max(counts[1:]); least < 15 || most > 120 {
		t.Errorf("relays have from %d to %d repositories, 50 are the mean", least, most)
	}
}
