package purgatory_test

import (
	"testing"

	"tendril.dev/lib/nostr"
)

// TestReferencesFollowWhoSpeaks: acceptance, leaving, removal and deletion move the references at
// once, without a new state or push, also where the maintainer has no repository here.
func TestReferencesFollowWhoSpeaks(t *testing.T) {
	w := newWorld(t)
	at := nostr.Timestamp(3000)
	// says publishes an announcement: alice's lists us, bob's does not.
	says := func(author string, tags ...nostr.Tag) {
		at++
		ev := abroad("bob's", author, "x", at)
		if author == alice {
			ev = announcement("alice's", author, "x")
			ev.CreatedAt = at
		}
		ev.Tags = append(ev.Tags, tags...)
		w.in.accept(finish(ev))
	}
	lists := func(key string) nostr.Tag { return nostr.Tag{"maintainers", key} }
	moves := func(why, commit string) {
		t.Helper()
		eventually(t, why, func() bool { return w.ref(alice, "x", mainBranch) == commit })
	}
	says(alice, lists(bob))
	c1 := w.work.Commit("a", "1")
	w.pushState(alice, "x", 1001, c1)
	c2 := w.work.Commit("a", "2")
	w.pushState(alice, "x", 1002, c2)
	w.work.Git("reset", "--hard", c1)
	last := state("state 1003", alice, "x", 1003, c1)
	w.in.waits("x", last)
	w.pushes(alice, "x", "+main")
	says(bob)
	bobs := state("bob's state", bob, "x", 2000, c2)
	w.in.accept(bobs) // for his own repository, which is elsewhere
	says(bob, lists(alice))
	moves("acceptance lets an older state count", c2)
	says(bob, nostr.Tag{"m", bob, "1", "2"}, nostr.Tag{"m", alice})
	moves("a maintainer leaves", c1)
	says(bob, lists(alice))
	moves("and comes back", c2)
	says(alice)
	moves("the owner removes a maintainer", c1)
	says(alice, lists(bob))
	moves("and invites again", c2)
	says(alice, nostr.Tag{"M", alice}, nostr.Tag{"M", bob})
	says(bob, nostr.Tag{"m", alice})
	w.refuses("names two leads", alice, "x", "+"+c1+":"+mainBranch)
	w.isAt(alice, "x", c2)
	says(alice, lists(bob))
	w.in.accept(deletion(bob, "a", nostr.Address{Kind: nostr.KindState, PubKey: bob, Identifier: "x"}.String())) // older than the state
	w.in.accept(deletion(bob, "e", bobs.ID))
	moves("the state is deleted", c1)
	w.in.accept(deletion(alice, "e", last.ID))
	moves("the only state is deleted", "")
}
