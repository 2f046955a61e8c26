package e2e

import (
	"fmt"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestEphemeral: what a client of one gateway publishes reaches subscribers of both, over the
// logins of a cluster, in the order in which it was published, and no client that asks later.
func TestEphemeral(t *testing.T) {
	t.Parallel()
	bus := world.GuardedNATS(t)
	replicas := bus.StartAs(world.Folder(t), nil, slices.Concat(world.Services, []string{"gateway"})...)
	doors := []world.Door{replicas[len(replicas)-2].Door(), replicas[len(replicas)-1].Door()}
	repo := doors[0].Host("ephemeral", world.Hosting{})
	filter := map[string]any{"kinds": []int{29846}}
	var subscribers []*world.Socket
	for _, door := range doors {
		s := door.Dial()
		s.Send("REQ", "live", filter)
		if m := s.Next(); m[0] != "EOSE" {
			t.Fatalf("heard %v", m)
		}
		subscribers = append(subscribers, s)
	}
	secret := func(n int) *nostr.Event {
		return repo.Owner.Sign(29846, fmt.Sprint("secret ", n), repo.Owner.Repo("ephemeral"))
	}
	for n := range 10 {
		ev := secret(n)
		if ok, message := doors[n%2].Submit(ev); !ok || message != "" {
			t.Fatalf("published: %v, %q", ok, message)
		}
		for i, s := range subscribers {
			if m := s.Next(); m[0] != "EVENT" || world.EventID(m) != ev.ID {
				t.Errorf("the subscriber of gateway %d heard %v", i, m)
			}
		}
	}
	doors[0].Refuses("", fixture.NewPerson().Sign(29846, "about nothing"))
	doors[0].Refuses("", repo.Owner.Sign(22242, "", repo.Owner.Repo("ephemeral")))
	doors[0].Refuses("", repo.Owner.Sign(27235, "", repo.Owner.Repo("ephemeral")))
	for _, door := range doors {
		if found := door.Fetch(nostr.Filter{Kinds: []int{29846}}); len(found) != 0 {
			t.Errorf("%d are stored", len(found))
		}
	}
	world.Stop(t, replicas)
}
