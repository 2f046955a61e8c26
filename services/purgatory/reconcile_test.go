package purgatory

import (
	"fmt"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// TestScope: of a crowd that may change with a repository a few come at once, those that are served
// first, and the rest later. Others are left alone.
func TestScope(t *testing.T) {
	t.Parallel()
	const domain = "grasp.example.com"
	key := func(n int) string { return fmt.Sprintf("%064x", n) }
	announcement := func(owner string, maintainers ...string) *nostr.Event {
		ev := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: owner, Tags: nostr.Tags{{"d", "x"}, append(nostr.Tag{"maintainers"}, maintainers...),
			{"clone", "https://" + domain + "/x.git"}, {"relays", "wss://" + domain}}}
		ev.ID = ev.GetID()
		return ev
	}
	popular, stranger := key(4000), key(5)
	waiting := []proto.Held{{Event: announcement(stranger), Identifier: "x"}}
	for n := range 40 {
		waiting = append(waiting, proto.Held{Event: announcement(key(100+n), popular), Identifier: "x"})
	}
	v := repostate.New("x", config.Rules{Home: domain}, []*nostr.Event{announcement(popular)}, waiting)
	for _, tc := range []struct {
		owner       string
		reach       reach
		scope, rest int
	}{{stranger, group, 1, 0}, {popular, alone, 1, 0}, {popular, group, maxTouched, 41 - maxTouched}, {key(9), group, 1, 0}, {"", group, 0, 0}} {
		scope, rest := scopeOf(v, task{identifier: "x", places: map[repository.Place]reach{placeOf(tc.owner, "x"): tc.reach}})
		if len(scope) != tc.scope || len(rest) != tc.rest || tc.scope > 0 && scope[0].PubKey != tc.owner {
			t.Errorf("%.4s: %v, and %d more", tc.owner, scope, len(rest))
		}
	}
}

// TestRoomForPushesWithoutEvents: one client leaves room for others in a repository.
func TestRoomForPushesWithoutEvents(t *testing.T) {
	t.Parallel()
	const most = maxClientWaiting
	for name, tc := range map[string]struct {
		clients, each int // that wait
		client        string
		more          int
		room          bool
	}{
		"nothing waits":          {0, 1, "a", most, true},
		"too many at once":       {0, 1, "a", most + 1, false},
		"the last of a client":   {1, most - 1, "0", 1, true},
		"one more of the client": {1, most, "0", 1, false},
		"one of another":         {1, most, "a", 1, true},
		"the repository is full": {4, most, "a", 1, false},
	} {
		var waiting []repository.WaitingPush
		for n := range tc.clients * tc.each {
			waiting = append(waiting, repository.WaitingPush{Event: fmt.Sprint(n), Client: fmt.Sprint(n / tc.each)})
		}
		if err := roomFor(waiting, tc.client, tc.more); (err == nil) != tc.room {
			t.Errorf("%s: %v", name, err)
		}
	}
}
