package purgatory

import (
	"fmt"
	"slices"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// TestScope: an event touches only the repositories for which its author speaks, and those with
// which they share states and pull requests. Of a crowd a few come at once, those that are served
// first, and the rest later.
func TestScope(t *testing.T) {
	t.Parallel()
	const domain = "grasp.example.com"
	key := func(n int) string { return fmt.Sprintf("%064x", n) }
	event := func(kind int, author string, tags ...nostr.Tag) *nostr.Event {
		ev := &nostr.Event{Kind: kind, PubKey: author, CreatedAt: 1000, Tags: tags}
		ev.ID = ev.GetID()
		return ev
	}
	announcement := func(owner string, maintainers ...string) *nostr.Event {
		return event(nostr.KindAnnouncement, owner, nostr.Tag{"d", "x"}, append(nostr.Tag{"maintainers"}, maintainers...),
			nostr.Tag{"clone", "https://" + domain + "/x.git"}, nostr.Tag{"relays", "wss://" + domain})
	}
	held := func(events ...*nostr.Event) (list []proto.Held) {
		for _, ev := range events {
			list = append(list, proto.Held{Event: ev, Identifier: "x", Phase: proto.PhaseWaiting})
		}
		return list
	}
	owner, deputy, friend, popular, stranger := key(1000), key(2), key(3), key(4000), key(5)
	accepted := []*nostr.Event{announcement(owner, deputy), announcement(popular)}
	pull := event(nostr.KindPR, stranger, nostr.Tag{"c", fmt.Sprintf("%040x", 1)}, nostr.Tag{"a", "30617:" + friend + ":x"},
		nostr.Tag{"a", "30617:" + deputy + ":x"}, nostr.Tag{"clone", "https://" + domain + nostr.PRsURLPath("npub1", "x")})
	waiting := held(announcement(deputy), announcement(friend), announcement(stranger), pull)
	for n := range 40 {
		waiting = append(waiting, held(announcement(key(100+n), popular))...)
	}
	v := repostate.New("x", config.Rules{Home: domain}, accepted, waiting)
	look := func(pubkey string, how reach) task {
		return task{identifier: "x", places: map[repository.Place]reach{placeOf(pubkey, "x"): how}}
	}
	for name, tc := range map[string]struct {
		task   task
		owners []string
	}{
		"a stranger":                          {look(stranger, group), []string{stranger}},
		"a deputy, and who shares a pull":     {look(deputy, group), []string{owner, deputy, friend}},
		"one repository alone":                {look(owner, alone), []string{owner}},
		"the identifier itself":               {task{identifier: "x", places: map[repository.Place]reach{itself("x"): group}}, nil},
		"a pull request":                      {task{identifier: "x", pulls: []string{pull.ID}}, []string{owner, deputy, friend}},
		"one who is not announced (any more)": {look(key(9), group), []string{key(9)}},
	} {
		scope, rest := scopeOf(v, tc.task)
		var owners []string
		for _, at := range scope {
			if !at.PRs {
				owners = append(owners, at.PubKey)
			}
		}
		if !slices.Equal(slices.Sorted(slices.Values(owners)), slices.Sorted(slices.Values(tc.owners))) || len(rest) > 0 {
			t.Errorf("%s: %v and %d more, want %v", name, owners, len(rest), tc.owners)
		}
	}
	scope, rest := scopeOf(v, look(popular, group))
	if len(scope) != maxTouched || scope[0].PubKey != popular || len(rest) != 41-maxTouched {
		t.Errorf("of a crowd %v, and %d more", scope, len(rest))
	}
}

// TestRoomForPushesWithoutEvents: one client leaves room for others in a repository.
func TestRoomForPushesWithoutEvents(t *testing.T) {
	t.Parallel()
	wait := func(clients, each int) (list []repository.WaitingPush) {
		for n := range clients * each {
			list = append(list, repository.WaitingPush{Event: fmt.Sprint(n), Client: fmt.Sprint(n / each)})
		}
		return list
	}
	for name, tc := range map[string]struct {
		waiting []repository.WaitingPush
		client  string
		more    int
		room    bool
	}{
		"nothing waits":          {nil, "a", maxClientWaiting, true},
		"too many at once":       {nil, "a", maxClientWaiting + 1, false},
		"the last of a client":   {wait(1, maxClientWaiting-1), "0", 1, true},
		"one more of the client": {wait(1, maxClientWaiting), "0", 1, false},
		"one of another":         {wait(1, maxClientWaiting), "a", 1, true},
		"the repository is full": {wait(4, maxClientWaiting), "a", 1, false},
	} {
		if err := roomFor(tc.waiting, tc.client, tc.more); (err == nil) != tc.room {
			t.Errorf("%s: %v", name, err)
		}
	}
}
