package e2e

import (
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestConversationsElsewhere: answers to an issue that lie only on a relay which its author lists
// come, those of before and those that are new, with services in processes of their own that have
// logins (GRASP-03). The list comes from an index relay. Both relays are khatru's.
func TestConversationsElsewhere(t *testing.T) {
	t.Parallel()
	guest, other := fixture.NewPerson(), fixture.NewPerson()
	index, elsewhere := world.NewKhatru(t, true), world.NewKhatru(t, false)
	replicas := world.GuardedNATS(t).StartAs(world.Folder(t), map[string]string{
		"NGIT_SYNC_PLUS_ENABLED": "true", "NGIT_USER_INDEX_RELAYS": index.URL, "NGIT_SYNC_PLUS_FALLBACK_RELAYS": "none",
	}, "ingest", "purgatory", "discovery", "relayconn", "relayconn", "gateway")
	door := replicas[len(replicas)-1].Door()
	repo := door.Host("mine", world.Hosting{})
	issue := guest.Sign(nostr.KindIssue, "it breaks", repo.Owner.Repo("mine"))
	before := other.Comment("so it does here", issue, issue)
	elsewhere.Publish(before)
	index.Publish(guest.Sign(nostr.KindRelayList, "", nostr.Tag{"r", elsewhere.URL}))
	if ok, why := door.Submit(issue); !ok {
		t.Fatalf("the issue is refused: %s", why)
	}
	served := func(what string, ev *nostr.Event) {
		t.Helper()
		await(t, what+" is served", func() bool { return door.Count(nostr.Filter{IDs: []string{ev.ID}}) == 1 })
	}
	served("an answer of before", before)
	after := other.Comment("and today", issue, before)
	await(t, "the issue is followed live", func() bool {
		elsewhere.Publish(after)
		return door.Count(nostr.Filter{IDs: []string{after.ID}}) == 1
	})
	world.Stop(t, replicas)
}
