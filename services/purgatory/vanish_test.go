package purgatory_test

import (
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repostate"
	"tendril.dev/test/fixture/gittest"
)

// TestVanish: what a maintainer who vanishes has signed counts no more, wherever it did; the
// repositories of an owner who vanishes end. A request that is meant for another relay does nothing.
func TestVanish(t *testing.T) {
	w := newWorld(t)
	vanish := func(author, relay string) {
		w.in.accept(event("vanish "+author+relay, nostr.KindVanish, author, 2500, nostr.Tag{"relay", relay}))
	}
	first := announcement("announcement", alice, "x")
	first.Tags = append(first.Tags, nostr.Tag{"maintainers", bob})
	w.in.accept(finish(first))
	c1 := w.work.Commit("a", "1")
	w.pushState(alice, "x", 1001, c1)
	c2 := w.work.Commit("a", "2")
	w.pushState(alice, "x", 1002, c2)
	w.work.Git("reset", "--hard", c1)
	last := state("state 1003", alice, "x", 1003, c1)
	w.in.waits("x", last)
	w.pushes(alice, "x", "+main")
	accepts := abroad("bob's", bob, "x", 1500)
	accepts.Tags = append(accepts.Tags, nostr.Tag{"maintainers", alice})
	w.in.accept(finish(accepts))
	w.in.accept(state("bob's state", bob, "x", 2000, c2))
	follows := func(why, commit string) {
		t.Helper()
		eventually(t, why, func() bool { return w.ref(alice, "x", mainBranch) == commit })
	}
	follows("a maintainer's state counts", c2)
	vanish(bob, "wss://other.example.org")
	w.in.accept(state("carol's", carol, "x", 2600, c2)) // of no maintainer; it comes behind the request
	w.isAt(alice, "x", c2)
	vanish(bob, "ALL_RELAYS")
	follows("the maintainer vanishes", c1)

	vanish(alice, "wss://"+domain)
	w.told.await("x ended")
	if note, err := w.repo(alice, "x").Ended(); err != nil || note == nil || note.Reason != repostate.Vanished {
		t.Errorf("how the hosting has ended: %+v, %v", note, err)
	}
	if out, err := gittest.Try(t, w.work.Dir, "ls-remote", w.address(alice, "x")); err == nil {
		t.Errorf("it is still served:\n%s", out)
	}
}
