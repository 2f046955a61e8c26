package purgatory_test

import (
	"fmt"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture/gittest"
)

// TestFetchedBytesCountForTheirAuthor: what a server gives for an author's events is stored up to
// the budget of that author, for all identifiers together, and takes nothing from others.
func TestFetchedBytesCountForTheirAuthor(t *testing.T) {
	w := newWorld(t, "--daily-author-git-bytes=250KiB")
	root := t.TempDir()
	commit := w.work.Commit("noise", gittest.Noise(500 << 10)[300<<10:])
	w.work.Publish(root, "x.git")
	server := gittest.Backend(t, root)
	hold := func(owner, identifier string) (release func()) {
		ann := announcement(t, owner[:2]+identifier, owner, identifier, server.URL+"/x.git")
		w.in.waits(identifier, proto.SourceLive, ann, state("state", owner, identifier, 1001, commit))
		return func() { w.released(ann) }
	}
	hold(alice, "first")()
	hold(alice, "second")
	w.told.await("second failed")
	hold(bob, "third")()
	if w.repo(alice, "second").Exists() && w.ref(alice, "second", mainBranch) != "" {
		t.Error("an author stores more than the budget of a day")
	}
	if w.told.count("second fetched") != 0 {
		t.Error("what is over the budget was fetched")
	}
}

// TestPushedBytesCount for the author and for the client's address, before anything is stored. The
// owner of a served repository has ten times the budget.
func TestPushedBytesCount(t *testing.T) {
	w := newWorld(t, "--daily-author-git-bytes=100KiB", "--daily-address-git-bytes=3MiB")
	w.pushFirst()
	for n := range 3 { // more than 100 KiB in all
		w.pushState(alice, "x", nostr.Timestamp(1002+n), w.work.Commit("noise", gittest.Noise(60 << 10 * (n + 1))[60<<10*n:]))
	}
	pr := pull("pull", bob, w.work.Commit("noise", gittest.Noise(500 << 10)[300<<10:]), alice, "x")
	w.in.waits("x", proto.SourceUser, pr)
	w.refuses("rate-limited: as much git data of "+npub(t, bob), alice, "x", "main:refs/nostr/"+pr.ID)
	unknown := func(n int) string { return fmt.Sprintf("main~1:refs/nostr/%064x", n) }
	w.pushes(alice, "x", unknown(1))
	w.pushes(alice, "x", unknown(2))
	w.refuses("rate-limited: as much git data of your address", alice, "x", unknown(3))
}
