package e2e

import (
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestAcceptanceBringsWhatWasRejected: a state that came from a relay before its author had
// accepted the invitation is rejected, and kept whole no more. When the acceptance comes, the relay
// of the owner's announcement is asked for the state by its id.
func TestAcceptanceBringsWhatWasRejected(t *testing.T) {
	t.Parallel()
	relay := world.NewRelay(t)
	p := world.Start(t, map[string]string{"NGIT_REJECTED_HOT_CACHE_DURATION_SECS": "0"})
	ann, bob, work := p.Person(), p.Person(), world.NewWorkTree(t)
	p.Holds(ann.Announce("late", relay.URL, bob.PubKey), ann.State("late", work.Refs()))
	work.Git("push", "-q", p.Repo(ann, "late"), "main")
	state := bob.At(nostr.Now()-100).State("late", work.Refs())
	relay.Publish(state)
	fixture.Await(t, "the state is rejected", func() bool {
		out, _ := p.Tool("why", state.ID)
		return strings.Contains(out, "author not authorized for this repository")
	})
	p.Accepts(bob.Sign(nostr.KindAnnouncement, "", nostr.Tag{"d", "late"}, nostr.Tag{"maintainers", ann.PubKey}))
	p.Serves(state)
}
