package e2e

import (
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

// What the field's clients send and expect, where it differs from what one would write oneself.

// TestPullRequestToAMaintainerBySync: pull requests that tag only a maintainer who has announced
// nothing here come in from a foreign relay. One that a user has brought too early is brought back
// by the owner's announcement.
func TestPullRequestToAMaintainerBySync(t *testing.T) {
	t.Parallel()
	git, work := world.NewGitServer(t), world.NewWorkTree(t)
	ann, bob, guest := fixture.NewPerson(), fixture.NewPerson(), fixture.NewPerson()
	refs := work.Refs()
	mine := git.Host("mine", work)
	tip := work.Commit("a fix")
	fork := git.Host("fork", work)
	ask := func(content string) *nostr.Event {
		return guest.Pull(content, tip, bob.Repo("ours"), nostr.Tag{"clone", fork})
	}
	early, later := ask("early"), ask("later")
	relay := world.NewRelayThat(t, outside.Behaviour{}, early)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": relay.URL})
	if ok, message := submit(t, p, early); ok {
		t.Fatalf("a pull request without a repository is answered %q", message)
	}
	relay.Publish(ann.Announce("ours", mine, relay.URL, bob.PubKey),
		ann.State("ours", refs))
	world.Serves(t, p.Relay(), early)
	relay.Publish(later)
	world.Serves(t, p.Relay(), later)
	if out := world.Git(t, work.Dir, "ls-remote", p.URL+"/"+ann.Npub+"/ours.git", "refs/nostr/"+early.ID); !strings.HasPrefix(out, tip) {
		t.Errorf("its commit is not in the repository: %q", out)
	}
}
