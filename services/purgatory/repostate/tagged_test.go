package repostate_test

import (
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestTagged: a pull request is for the hosted repositories that it tags, for those whose confirmed
// maintainers have an author among them whom it tags for this identifier, and for the one whose address
// it names as a clone URL. That one neither lets it go nor is hunted for.
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
	address := func(key string) string { return "https://" + domain + nostr.RepositoryURLPath(nostr.Npub(key), "x") }
	for _, tc := range []struct {
		name string
		tags []string // in `a`, or as a clone URL
		want []string
	}{
		{"a maintainer with a repository", []string{"30617:" + friend + ":x"}, []string{friend, owner}},
		{"a maintainer's maintainer", []string{"30617:" + deputy + ":x"}, []string{owner, friend}},
		{"one who is invited only", []string{"30617:" + invited + ":x"}, nil},
		{"a maintainer whose repository is elsewhere", []string{"30617:" + away + ":x"}, []string{owner, friend}},
		{"another identifier", []string{"30617:" + owner + ":y"}, nil},
		{"this one and another", []string{"30617:" + owner + ":y", "30617:" + other + ":x"}, []string{other}},
		{"a clone URL", []string{"30617:" + owner + ":y", address(other)}, []string{other}},
		{"one that is tagged too", []string{"30617:" + owner + ":x", address(friend), address(away), address(other) + "/more"}, []string{owner, friend}},
	} {
		tags, clone := nostr.Tags{{"c", c1}}, nostr.Tag{"clone"}
		for _, tag := range tc.tags {
			if strings.HasPrefix(tag, "https://") {
				clone = append(clone, tag)
			} else {
				tags = append(tags, nostr.Tag{"a", tag})
			}
		}
		pr := event(nostr.KindPR, other, 9, append(tags, clone)...)
		v := view(accepted, held(pr))
		if got := v.Tagged(v.PullRequests[0]); !slices.Equal(got, tc.want) {
			t.Errorf("%s: for %v, want %v", tc.name, got, tc.want)
		}
		onlyCloned := tc.name == "a clone URL"
		if wants := v.Wants(); len(tc.want) > 0 && !onlyCloned && (len(wants) != 1 || wants[0].Owner != tc.want[0]) || onlyCloned && len(wants) > 0 {
			t.Errorf("%s: wants %+v", tc.name, wants)
		}
		if len(tc.want) > 0 && v.Releases(v.PullRequests[0], tc.want[0]) == onlyCloned {
			t.Errorf("%s: it is released: %t", tc.name, !onlyCloned)
		}
	}
	v := view(accepted, nil)
	if got, want := v.People(v.Hosted), []string{owner, friend, other, deputy, away}; !slices.Equal(got, want) {
		t.Errorf("people %v, want %v", got, want)
	}
}
