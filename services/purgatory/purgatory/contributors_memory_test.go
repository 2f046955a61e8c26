package purgatory

import (
	"slices"
	"testing"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
)

// TestContributorsAreLookedAtWhenTheirTimeHasCome, once, and the earliest time counts.
func TestContributorsAreLookedAtWhenTheirTimeHasCome(t *testing.T) {
	t.Parallel()
	now := time.Now()
	x := dossier.Dossier{Identifier: "x"}
	c := newContributors(true)
	c.later("x", map[string]time.Time{"a": now.Add(time.Hour), "b": now.Add(time.Hour)})
	c.later("x", map[string]time.Time{"b": now.Add(2 * time.Hour)})
	c.note("x", "c")
	c.note("y", "d")
	for _, tc := range []struct {
		at   time.Time
		want []string
	}{
		{now, []string{"c"}},
		{now, nil},
		{now.Add(time.Hour - 1), nil},
		{now.Add(time.Hour), []string{"a", "b"}},
		{now.Add(3 * time.Hour), nil},
	} {
		if got := c.take(x, tc.at); !slices.Equal(got, tc.want) {
			t.Errorf("at %v: %v, want %v", tc.at.Sub(now), got, tc.want)
		}
	}
	c.later("x", map[string]time.Time{"a": now.Add(time.Hour)})
	c.note("x", "a")
	if got := c.take(x, now); !slices.Equal(got, []string{"a"}) {
		t.Errorf("something happened, and it is not looked at: %v", got)
	}
	c.drop(proto.ShardOf("y"))
	if len(c.by) != 0 {
		t.Errorf("left: %v", c.by)
	}
	off := newContributors(false)
	off.note("x", "a")
	if got := off.take(x, now); got != nil {
		t.Errorf("the feature is off, and it is looked at: %v", got)
	}
}
