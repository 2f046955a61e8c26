package purgatory_test

import (
	"testing"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
)

// TestFetchedBytesCountForTheirAuthor: what a server gives for an author's events is stored up to
// the budget of that author, whatever the identifier, and takes nothing from others.
func TestFetchedBytesCountForTheirAuthor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--daily-author-git-bytes=250KiB")
	work, root := gittest.NewWork(t), t.TempDir()
	commit := work.Commit("noise", gittest.Noise(150<<10))
	work.Publish(root, "x.git")
	server := gittest.Backend(t, root)
	hold := func(owner, identifier string) (release func()) {
		ann := announcement(t, owner[:2]+identifier, owner, identifier, server.URL+"/x.git")
		w.in.holds(identifier, ann, proto.SourceLive, time.Hour)
		w.in.holds(identifier, state("state", owner, identifier, 1001, commit), proto.SourceLive, time.Hour)
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
