package purgatory_test

import (
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture/gittest"
)

// TestWhatAnOwnerDeletedIsNotServedAgain: neither does a stranger who announces the identifier and
// pushes nothing serve it, by reference or by object id, nor is a third key's state released that
// names it.
func TestWhatAnOwnerDeletedIsNotServedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	work := gittest.NewWork(t)
	commit := w.pushFirst(work)
	tree := work.Git("rev-parse", "main^{tree}")

	served := func(owner, id string) (string, bool) {
		out, err := gittest.Try(t, gittest.NewWork(t).Dir, "-c", "protocol.version=2", "fetch", w.address(owner, "x"), id)
		return out, err == nil
	}
	if out, ok := served(alice, commit); !ok {
		t.Fatalf("it is not served before: %s", out)
	}
	w.in.accept(deletionRequest(alice, 1500, nostr.Tag{"a", "30617:" + alice + ":x"}))
	w.told.await("x ended")

	carol := strings.Repeat("c0", 32)
	w.in.accept(announcement(t, "bob's", bob, "x"))
	w.in.accept(announcement(t, "carol's", carol, "x"))
	stranger := state("bob's state", bob, "x", 2001, commit)
	third := state("carol's state", carol, "x", 2002, commit)
	w.in.waits("x", proto.SourceUser, stranger, third)

	// What is held after them has been decided when this is.
	proof := gittest.NewWork(t)
	own := proof.Commit("b", "bob's own")
	newer := state("bob's next", bob, "x", 2003, own)
	w.in.holds("x", newer, proto.SourceUser, time.Hour)
	w.pushes(proof, bob, "x", "main")
	w.released(newer)
	if w.in.times(stranger.ID)+w.in.times(third.ID) > 0 {
		t.Error("a state of strangers is released for data that its owner deleted")
	}
	for _, owner := range []string{alice, bob, carol} {
		for _, id := range []string{commit, tree} {
			if out, ok := served(owner, id); ok {
				t.Errorf("%s is served at the address of %.4s: %s", id, owner, out)
			}
		}
		if out, err := gittest.Try(t, work.Dir, "ls-remote", w.address(owner, "x")); err == nil && strings.Contains(out, commit) {
			t.Errorf("a reference of %.4s names it: %s", owner, out)
		}
	}
}
