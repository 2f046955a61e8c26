package purgatory_test

import (
	"fmt"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture/gittest"
)

// maintained is an announcement of a repository here that names a maintainer.
func maintained(t testing.TB, name, owner, identifier, maintainer string) *nostr.Event {
	ev := announcement(t, name, owner, identifier)
	ev.Tags = append(ev.Tags, nostr.Tag{"maintainers", maintainer})
	return finish(ev)
}

// names waits until a repository names a commit for an event, with all that it links to.
func (w *world) names(owner, identifier string, ev *nostr.Event, commit string) {
	w.Helper()
	name := "refs/nostr/" + ev.ID
	eventually(w, fmt.Sprintf("%s names the commit of %s", identifier, ev.Content), func() bool { return w.ref(owner, identifier, name) == commit })
	gittest.Git(w, w.repo(owner, identifier).Path, "rev-list", "--objects", commit)
}

// TestPullRequestOfSeveralIdentifiers: its commit is named in every hosted repository that it tags,
// of all identifiers, and in those where it tags a maintainer; so is that of an update; and no
// more when they are deleted.
func TestPullRequestOfSeveralIdentifiers(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	for _, identifier := range []string{"x", "y"} {
		w.in.accept(announcement(t, "announcement", alice, identifier))
	}
	w.in.accept(maintained(t, "announcement", alice, "z", carol))
	w.in.accept(abroad("announcement", carol, "z", 1000))
	w.in.accept(announcement(t, "a stranger's", carol, "y"))
	pr := pullFor("pull", bob, c1, repo(alice, "x"), repo(alice, "y"), repo(carol, "z"), repo(alice, "nothing"))
	w.in.waits("x", proto.SourceUser, pr)
	w.pushes(alice, "x", "main:refs/nostr/"+pr.ID)
	w.released(pr)
	repositories := []string{"x", "y", "z"}
	for _, identifier := range repositories {
		w.names(alice, identifier, pr, c1)
	}
	c2 := w.work.Commit("a", "2")
	update := event("update", nostr.KindPRUpdate, bob, 2001, nostr.Tag{"E", pr.ID}, nostr.Tag{"c", c2})
	w.in.waits("x", proto.SourceUser, update)
	w.pushes(alice, "x", "main:refs/nostr/"+update.ID)
	w.released(update)
	for _, identifier := range repositories {
		w.names(alice, identifier, update, c2)
	}
	if got := w.ref(carol, "y", "refs/nostr/"+pr.ID); got != "" {
		t.Errorf("a repository that is not tagged names %s", got)
	}
	w.in.accept(deletion(carol, "e", pr.ID)) // not hers
	w.in.accept(deletion(bob, "e", update.ID))
	for _, identifier := range repositories {
		eventually(t, identifier+" names the update no more", func() bool { return w.ref(alice, identifier, "refs/nostr/"+update.ID) == "" })
		w.names(alice, identifier, pr, c1)
	}
}

// TestAPullRequestsCommitIsPushedToAnotherIdentifier than the one for which it waits: it is released
// without a hunt.
func TestAPullRequestsCommitIsPushedToAnotherIdentifier(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	for _, identifier := range []string{"x", "y"} {
		w.in.accept(announcement(t, "announcement", alice, identifier))
	}
	pr := pullFor("pull", bob, c1, repo(alice, "x"), repo(alice, "y"))
	w.in.waits("x", proto.SourceUser, pr)
	w.refuses("names commit "+c1, alice, "y", w.work.Commit("a", "2")+":refs/nostr/"+pr.ID)
	w.pushes(alice, "y", c1+":refs/nostr/"+pr.ID)
	w.released(pr)
	w.names(alice, "x", pr, c1)
}

// TestPullRequestsThatNobodySaw: what was accepted or deleted while no worker held the shard, and
// what is for a repository that is announced later, is found. The commit comes from a repository of
// another identifier, or from where the pull request says that it is.
func TestPullRequestsThatNobodySaw(t *testing.T) {
	w := newWorld(t)
	root := t.TempDir()
	c1 := w.work.Commit("a", "1")
	for _, identifier := range []string{"x", "y"} {
		w.in.accept(announcement(t, "announcement", alice, identifier))
	}
	w.pushState(alice, "x", 1001, c1)
	eventually(t, "there is a repository y", func() bool { return w.repo(alice, "y").Exists() })
	w.stop()
	c2 := w.work.Commit("a", "2")
	w.work.Publish(root, "fork.git")
	server := gittest.Backend(t, root)
	both := pullFor("both", bob, c1, repo(alice, "x"), repo(alice, "y"))
	w.in.accept(both)
	hunted := pull("hunted", bob, c2, alice, "y", server.URL+"/fork.git")
	w.in.accept(hunted)
	late := pullFor("late", bob, c1, repo(alice, "x"), repo(carol, "x"))
	w.in.accept(late)
	w.restart()
	for _, identifier := range []string{"x", "y"} {
		w.names(alice, identifier, both, c1)
	}
	w.names(alice, "y", hunted, c2)
	w.names(alice, "x", late, c1)
	w.in.accept(announcement(t, "announcement", carol, "x"))
	w.names(carol, "x", late, c1)
	c3 := w.work.Commit("a", "3") // of one that comes by a relay, while nothing else happens
	w.work.Publish(root, "later.git")
	synced := pull("synced", bob, c3, alice, "x", server.URL+"/later.git")
	w.in.waits("x", proto.SourceLive, synced)
	w.released(synced)
}
