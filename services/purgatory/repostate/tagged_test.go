package repostate_test

import (
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestTagged: a pull request is for the hosted repositories that it tags, and for those whose
// confirmed maintainers have an author among them whom it tags for this identifier.
func TestTagged(t *testing.T) {
	t.Parallel()
	const (
		deputy  = "4444444444444444444444444444444444444444444444444444444444444444" // listed by friend, announces it elsewhere
		invited = "6666666666666666666666666666666666666666666666666666666666666666" // listed by friend, announces nothing
		away    = "5555555555555555555555555555555555555555555555555555555555555555" // announces it elsewhere
	)
	elsewhere := event(nostr.KindAnnouncement, away, 1, nostr.Tag{"d", "x"}, nostr.Tag{"maintainers", owner}, nostr.Tag{"clone", "https://git.example.org/5.git"})
	deputys := event(nostr.KindAnnouncement, deputy, 1, nostr.Tag{"d", "x"}, nostr.Tag{"maintainers", friend}, nostr.Tag{"clone", "https://git.example.org/4.git"})
	accepted := []*nostr.Event{
		announcement(t, owner, 1, friend, away), announcement(t, friend, 1, owner, deputy, invited), announcement(t, other, 1), elsewhere, deputys,
	}
	for _, tc := range []struct {
		name string
		tags []string
		want []string
	}{
		{"a maintainer with a repository", []string{"30617:" + friend + ":x"}, []string{friend, owner}},
		{"a maintainer's maintainer", []string{"30617:" + deputy + ":x"}, []string{owner, friend}},
		{"one who is invited only", []string{"30617:" + invited + ":x"}, nil},
		{"a maintainer whose repository is elsewhere", []string{"30617:" + away + ":x"}, []string{owner, friend}},
		{"another identifier", []string{"30617:" + owner + ":y"}, nil},
		{"this one and another", []string{"30617:" + owner + ":y", "30617:" + other + ":x"}, []string{other}},
	} {
		tags := nostr.Tags{{"c", c1}}
		for _, tag := range tc.tags {
			tags = append(tags, nostr.Tag{"a", tag})
		}
		pr := event(nostr.KindPR, other, 9, tags...)
		v := view(accepted, held(pr))
		if got := v.Tagged(v.PullRequests[0]); !slices.Equal(got, tc.want) {
			t.Errorf("%s: for %v, want %v", tc.name, got, tc.want)
		}
		if wants := v.Wants(); len(tc.want) > 0 && (len(wants) != 1 || wants[0].Owner != tc.want[0]) {
			t.Errorf("%s: wants %+v", tc.name, wants)
		}
	}
	v := view(accepted, nil)
	if got, want := v.People(v.Hosted), []string{owner, friend, other, deputy, away}; !slices.Equal(got, want) {
		t.Errorf("people %v, want %v", got, want)
	}
}
