package e2e

import (
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

// What the field's clients send and expect, where it differs from what one would write oneself.

// TestMaintainersOfHostedRepositories are welcome though they are not on the whitelist.
func TestMaintainersOfHostedRepositories(t *testing.T) {
	t.Parallel()
	ann, bob, eve := world.NewPerson(), world.NewPerson(), world.NewPerson()
	p := world.Start(t, map[string]string{"NGIT_REPOSITORY_WHITELIST": ann.Npub})
	work := world.NewWorkTree(t)
	wantHeld(t, p, ann.Announce("ours", "ours", nil, nil, nostr.Tag{"maintainers", bob.PubKey}), ann.State("ours", work.Refs(), "refs/heads/main"))
	world.Git(t, work.Dir, "push", "-q", p.URL+"/"+ann.Npub+"/ours.git", "main")
	if ok, message := submit(t, p, eve.Announce("ours", "ours", nil, nil)); ok || !strings.HasPrefix(message, "blocked:") {
		t.Errorf("a stranger's announcement is answered %v %q", ok, message)
	}
	if ok, message := submit(t, p, bob.Announce("ours", "ours", nil, nil, nostr.Tag{"maintainers", ann.PubKey})); !ok {
		t.Errorf("a maintainer's announcement is answered %q", message)
	}
	world.Await(t, "the maintainer's repository can be cloned", func() bool {
		out, err := world.TryGit(t, work.Dir, "ls-remote", p.URL+"/"+bob.Npub+"/ours.git", "refs/heads/main")
		return err == nil && strings.HasPrefix(out, work.Refs()["refs/heads/main"])
	})
}

// TestPullRequestToAMaintainerBySync: pull requests that tag only a maintainer who has announced
// nothing here come in from a foreign relay. One that a user has brought too early is brought back
// by the owner's announcement.
func TestPullRequestToAMaintainerBySync(t *testing.T) {
	t.Parallel()
	git, work := world.NewGitServer(t), world.NewWorkTree(t)
	ann, bob, guest := world.NewPerson(), world.NewPerson(), world.NewPerson()
	refs := work.Refs()
	mine := git.Host("mine", work)
	tip := work.Commit("a fix")
	fork := git.Host("fork", work)
	ask := func(content string) *nostr.Event {
		return guest.Sign(1618, content, nostr.Tag{"a", bob.Address("ours")}, nostr.Tag{"c", tip}, nostr.Tag{"clone", fork})
	}
	early, later := ask("early"), ask("later")
	relay := world.NewRelayThat(t, outside.Behaviour{}, early)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": relay.URL})
	if ok, message := submit(t, p, early); ok {
		t.Fatalf("a pull request without a repository is answered %q", message)
	}
	relay.Publish(ann.Announce("ours", "ours", []string{mine}, []string{relay.URL}, nostr.Tag{"maintainers", bob.PubKey}),
		ann.State("ours", refs, "refs/heads/main"))
	world.Serves(t, p.Relay(), early)
	relay.Publish(later)
	world.Serves(t, p.Relay(), later)
	if out := world.Git(t, work.Dir, "ls-remote", p.URL+"/"+ann.Npub+"/ours.git", "refs/nostr/"+early.ID); !strings.HasPrefix(out, tip) {
		t.Errorf("its commit is not in the repository: %q", out)
	}
}
