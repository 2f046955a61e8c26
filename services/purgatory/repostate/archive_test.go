package repostate_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repostate"
)

func archiving(t *testing.T, readOnly bool) config.Rules {
	t.Helper()
	s := config.Settings{Service: config.Service{Domain: domain}, Policy: config.Policy{ArchiveWhitelist: []string{"x"}, ArchiveReadOnly: &readOnly}}
	r, err := s.Hosting()
	must(t, err)
	return r
}

// TestArchivesAreHereAndReadOnly: an archive has states, wants and sources like any repository, and
// takes no push; what lists us takes pushes in any case.
func TestArchivesAreHereAndReadOnly(t *testing.T) {
	t.Parallel()
	there := event(nostr.KindAnnouncement, owner, 1, nostr.Tag{"d", "x"}, nostr.Tag{"clone", "https://git.example.org/1.git"})
	waiting := state(owner, 3, "refs/heads/main", c1)
	pr := event(nostr.KindPR, friend, 9, nostr.Tag{"a", "30617:" + owner + ":x"}, nostr.Tag{"c", c2})
	for _, readOnly := range []bool{true, false} {
		v := repostate.New("x", archiving(t, readOnly), nil, held(there, waiting, pr))
		if !slices.Equal(v.Hosted, []string{owner}) || !v.IsArchived(owner) {
			t.Errorf("hosted %v, archived %v", v.Hosted, v.IsArchived(owner))
		}
		wants := v.Wants()
		if len(wants) != 2 || !slices.Equal(wants[0].Objects, []string{c1}) || !slices.Equal(wants[1].Objects, []string{c2}) || len(v.Sources()) != 1 {
			t.Errorf("wants %+v from %v", wants, v.Sources())
		}
		for _, c := range []repostate.Change{{"refs/heads/main", "", c1}, {"refs/nostr/" + pr.ID, "", c2}} {
			d, err := v.Authorise(repostate.Push{Owner: owner, Changes: []repostate.Change{c}, Event: func(string) (*nostr.Event, error) { return pr, nil }})
			err = cmp.Or(err, d.Err(false))
			if refused := err != nil && strings.Contains(err.Error(), "read-only archive"); refused != readOnly || !readOnly && err != nil {
				t.Errorf("read-only %t: a push of %s: %v", readOnly, c.Name, err)
			}
		}
	}
	v := repostate.New("x", archiving(t, true), []*nostr.Event{announcement(t, owner, 1)}, held(waiting))
	if v.IsArchived(owner) || !v.Hosts(owner) {
		t.Error("what lists us is taken for an archive")
	}
	if d, err := v.Authorise(repostate.Push{Owner: owner, Changes: []repostate.Change{{"refs/heads/main", "", c1}}}); cmp.Or(err, d.Err(false)) != nil {
		t.Errorf("a push to what lists us: %v", err)
	}
	if v := view(list{there}, nil); v.Hosts(owner) {
		t.Error("hosted though nothing is archived")
	}
}
