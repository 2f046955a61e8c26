package purgatory_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

// maintained is an announcement of a repository here that names a maintainer.
func maintained(name, owner, identifier, maintainer string) *nostr.Event {
	ev := announcement(name, owner, identifier)
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
		w.announced(alice, identifier)
	}
	w.in.accept(maintained("announcement", alice, "z", carol))
	accepts := abroad("announcement", carol, "z", 1000)
	accepts.Tags = append(accepts.Tags, nostr.Tag{"maintainers", alice})
	w.in.accept(finish(accepts))
	w.announced(carol, "y")
	pr := pullFor("pull", bob, c1, repo(alice, "x"), repo(alice, "y"), repo(carol, "z"), repo(alice, "nothing"))
	w.in.waits("x", pr)
	w.pushes(alice, "x", "main:refs/nostr/"+pr.ID)
	w.released(pr)
	repositories := []string{"x", "y", "z"}
	for _, identifier := range repositories {
		w.names(alice, identifier, pr, c1)
	}
	c2 := w.work.Commit("a", "2")
	update := event("update", nostr.KindPRUpdate, bob, 2001, nostr.Tag{"E", pr.ID}, nostr.Tag{"c", c2})
	w.in.waits("x", update)
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

// TestACommitIsPushedWhereItsPullRequestNamesAnother repository: that is refused with what it
// names, and where the event comes after the push, the reference goes.
func TestACommitIsPushedWhereItsPullRequestNamesAnother(t *testing.T) {
	w := newWorld(t)
	c1 := w.work.Commit("a", "1")
	w.announced(alice, "x")
	w.announced(carol, "y")
	pr, later := pull("pull", bob, c1, alice, "x"), pull("later", bob, c1, alice, "x")
	w.in.waits("x", pr)
	w.refuses("is not for this repository; its a tags name "+npub(alice)+"/x", carol, "y", c1+":refs/nostr/"+pr.ID)
	w.pushes(carol, "y", c1+":refs/nostr/"+later.ID) // nothing is known of it yet
	w.in.waits("x", later)
	eventually(t, "the reference goes", func() bool { return w.ref(carol, "y", "refs/nostr/"+later.ID) == "" })
	w.pushes(alice, "x", c1+":refs/nostr/"+pr.ID)
	w.released(pr)
}

// TestAPullRequestIsBanned, or its author: the reference goes from every repository that it is in,
// and comes back when the ban ends.
func TestAPullRequestIsBanned(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	pr := pull("pull", bob, commit, alice, "x")
	w.in.accept(pr)
	banned := ""
	named := func(want string) {
		eventually(t, fmt.Sprintf("its reference is %q while %v is banned", want, banned), func() bool { return w.ref(alice, "x", "refs/nostr/"+pr.ID) == want })
	}
	named(commit)
	for _, subject := range []bans.Subject{{Event: pr.ID}, {PubKey: bob}} {
		banned = subject.String()
		fixture.Must(t, bans.Put(t.Context(), w.Bus.JS, subject, proto.Ban{}))
		named("")
		fixture.Must(t, bans.Lift(t.Context(), w.Bus.JS, subject, "an operator"))
		named(commit)
	}
}

// TestAPullRequestFromAForkHere: its commit is in a repository of another owner and identifier on
// this same server, which is served, and named there too. Nothing is copied from a repository that was
// given up.
func TestAPullRequestFromAForkHere(t *testing.T) {
	w := newWorld(t)
	w.pushFirst()
	fork := "https://" + domain + nostr.RepositoryURLPath(npub(bob), "fork")
	w.announced(bob, "fork")
	c2 := w.work.Commit("b", "2")
	w.pushState(bob, "fork", 1001, c2)
	pr := pull("pull", bob, c2, alice, "x", fork)
	w.in.syncs("x", pr)
	w.released(pr)
	w.names(alice, "x", pr, c2)
	w.names(bob, "fork", pr, c2) // whose address is its clone URL

	c3 := w.work.Commit("b", "3")
	w.pushState(bob, "fork", 1002, c3)
	w.in.accept(abroad("moved", bob, "fork", 3000))
	eventually(t, "the fork is given up", func() bool {
		out, err := gittest.Try(t, w.work.Dir, "ls-remote", w.address(bob, "fork"))
		return err != nil || !strings.Contains(out, c3)
	})
	late := pull("late", bob, c3, alice, "x", fork)
	w.in.syncs("x", late)
	w.told.await("x failed 0 no such repository is served here")
	if w.ref(alice, "x", "refs/nostr/"+late.ID) != "" || w.in.times(late.ID) > 0 {
		t.Error("a commit was copied from a repository that was given up")
	}
}

// TestACommitIDIsNoData: a pull request that names what the owner has removed brings it back into
// no reference, nor does a push that does not bring it, or builds on it. Any client that has the commit
// can push it.
func TestACommitIDIsNoData(t *testing.T) {
	w := newWorld(t)
	c1 := w.pushFirst()
	secret := w.work.Commit("secret", "hunter2")
	w.pushState(alice, "x", 1002, secret)
	back := state("back", alice, "x", 1003, c1)
	w.in.syncs("x", back)
	w.released(back)
	w.isAt(alice, "x", c1)
	guess := pull("guess", bob, secret, alice, "x")
	w.isNoData(c1, guess, pull("file", bob, w.work.Git("rev-parse", "main:secret"), alice, "x"),
		pull("folder", bob, w.work.Git("rev-parse", "main^{tree}"), alice, "x"))
	child := w.work.Commit("b", "of the secret")
	builds := pull("builds", bob, child, alice, "x")
	w.in.syncs("x", builds)
	for ev, pack := range map[*nostr.Event][]byte{guess: w.work.Pack("main", "^main"), builds: w.work.Pack("main", "^"+secret)} {
		command := githttp.ZeroID + " " + ev.Tags[0][1] + " refs/nostr/" + ev.ID + "\x00report-status"
		answer, err := http.Post(w.address(alice, "x")+"/git-receive-pack", "application/x-git-receive-pack-request",
			strings.NewReader(gittest.Pkt(command)+string(pack)))
		must(t, err)
		said, err := io.ReadAll(answer.Body)
		must(t, err, answer.Body.Close())
		if w.ref(alice, "x", "refs/nostr/"+ev.ID) != "" || !strings.Contains(string(said), "git fetch, then push again") {
			t.Errorf("%s: what nothing reaches is named by who does not have it: %q", ev.Content, said)
		}
	}
	for _, ev := range []*nostr.Event{guess, builds} {
		w.pushes(alice, "x", ev.Tags[0][1]+":refs/nostr/"+ev.ID)
		w.released(ev)
	}
}

// isNoData sees that pull requests are not released, and nothing is named for them, while others for a
// commit that is here are.
func (w *world) isNoData(here string, guesses ...*nostr.Event) {
	w.Helper()
	w.in.syncs("x", guesses...)
	for _, name := range []string{"one", "two"} { // each is released by a look at all that waits
		next := pull(name, bob, here, alice, "x")
		w.in.syncs("x", next)
		w.released(next)
	}
	for _, guess := range guesses {
		if w.in.times(guess.ID) > 0 || w.ref(alice, "x", "refs/nostr/"+guess.ID) != "" {
			w.Errorf("%s: what nothing reaches was taken for what is here", guess.Content)
		}
	}
}

// TestWhatCameForAStateIsNoData of a pull request when its owner has removed it.
func TestWhatCameForAStateIsNoData(t *testing.T) {
	w := newWorld(t)
	root := t.TempDir()
	secret := w.work.Commit("secret", "hunter2")
	w.work.Publish(root, "x.git")
	server := gittest.Backend(t, root)
	w.in.accept(announcement("announcement", alice, "x", server.URL+"/x.git"))
	fetched := state("fetched", alice, "x", 1001, secret)
	w.in.syncs("x", fetched)
	w.released(fetched)
	server.Close()
	w.work.Git("checkout", "--quiet", "--orphan", "other")
	c1 := w.work.Commit("a", "1")
	w.in.waits("x", state("back", alice, "x", 1002, c1))
	w.pushes(alice, "x", "+other:main")
	w.isNoData(c1, pull("guess", bob, secret, alice, "x"))
}

// TestAReferenceThatWaitsIsNotTakenAway: no other client moves what was pushed before its event. Who
// has pushed it may.
func TestAReferenceThatWaitsIsNotTakenAway(t *testing.T) {
	w := newWorld(t)
	c1 := w.pushFirst()
	c2 := w.work.Commit("a", "2")
	pr := pull("pull", bob, c2, alice, "x")
	name := "refs/nostr/" + pr.ID
	push := func(client, old, commit string) (said string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.address(alice, "x")+"/git-receive-pack",
			strings.NewReader(gittest.Pkt(old+" "+commit+" "+name+"\x00report-status")+string(w.work.Pack("main"))))
		must(t, err)
		r.Header.Set("Content-Type", "application/x-git-receive-pack-request")
		r.Header.Set(proto.HeaderClient, client)
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		must(t, err)
		return string(content)
	}
	if said := push("192.0.2.1", githttp.ZeroID, c1) + push("192.0.2.1", c1, c2); strings.Count(said, "ok "+name) != 2 {
		t.Fatalf("who pushed it first: %q", said)
	}
	if said := push("192.0.2.2", c2, c1); !strings.Contains(said, "ng "+name+" another client has pushed another commit") {
		t.Errorf("another client moves it: %q", said)
	}
	w.in.waits("x", pr)
	w.released(pr)
	w.names(alice, "x", pr, c2)
}

// TestAnAcceptedPullRequestIsData: its commit releases an announcement that waits, also when no
// event of the identifier comes any more.
func TestAnAcceptedPullRequestIsData(t *testing.T) {
	w := newWorld(t)
	pr := pull("pull", bob, w.work.Commit("a", "1"), alice, "x")
	w.in.accept(pr)
	ann := announcement("announcement", alice, "x")
	w.in.waits("x", ann)
	w.pushes(alice, "x", "main:refs/nostr/"+pr.ID)
	w.restart()
	w.released(ann)
}

// TestPullRequestsThatNobodySaw: what was accepted or deleted while no worker held the shard, and
// what is for a repository that is announced later, is found. The commit comes from a repository of
// another identifier, or from where the pull request says that it is.
func TestPullRequestsThatNobodySaw(t *testing.T) {
	w := newWorld(t)
	root := t.TempDir()
	c1 := w.work.Commit("a", "1")
	for _, identifier := range []string{"x", "y"} {
		w.announced(alice, identifier)
	}
	w.announced(carol, "fork")
	w.pushState(alice, "x", 1001, c1)
	eventually(t, "there are repositories", func() bool {
		return w.repo(alice, "y").Exists() && w.repo(carol, "fork").Exists()
	})
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
	cloned := pull("cloned", bob, c1, alice, "x", "https://"+domain+nostr.RepositoryURLPath(npub(carol), "fork"))
	gittest.Do(t, w.repo(alice, "x"), func(repo *repository.Locked) error { // by the worker of that shard
		return repo.SetRef(t.Context(), "refs/nostr/"+cloned.ID, c1)
	})
	w.in.accept(cloned)
	w.restart()
	for _, identifier := range []string{"x", "y"} {
		w.names(alice, identifier, both, c1)
	}
	w.names(alice, "y", hunted, c2)
	w.names(alice, "x", late, c1)
	w.names(carol, "fork", cloned, c1) // whose address is its clone URL
	w.announced(carol, "x")
	w.names(carol, "x", late, c1)
	c3 := w.work.Commit("a", "3") // of one that comes by a relay, while nothing else happens
	w.work.Publish(root, "later.git")
	synced := pull("synced", bob, c3, alice, "x", server.URL+"/later.git")
	packs := filepath.Join(w.repo(alice, "x").Path, "objects", "pack") // cannot be read for a while
	err := errors.Join(os.Rename(packs, packs+"s"), os.WriteFile(packs, nil, 0o600))
	w.in.syncs("x", synced)
	eventually(t, "it is not known what is missing", func() bool {
		logs, _ := os.ReadFile(w.git + ".log")
		return strings.Contains(string(logs), "missing objects could not be looked for")
	})
	if err = errors.Join(err, os.Remove(packs), os.Rename(packs+"s", packs)); err != nil {
		t.Fatal(err)
	}
	w.released(synced)
	crowd := pullFor("crowd", bob, c1, repo(alice, "x")) // of whom a few are looked at at once
	for _, one := range many {
		crowd.Tags = append(crowd.Tags, nostr.Tag{"a", repo(one, "x").String()})
		w.announced(one, "x")
	}
	for _, one := range many {
		eventually(t, "there is a repository", func() bool { return w.repo(one, "x").Exists() })
	}
	w.in.accept(finish(crowd))
	for _, one := range many {
		w.names(one, "x", crowd, c1)
	}
}

// offer is a pull request that its author offers below /prs/ for the first of these repositories.
func offer(name, author, commit string, refs ...nostr.RepoRef) *nostr.Event {
	ev := pullFor(name, author, commit, refs...)
	ev.Tags = append(ev.Tags, nostr.Tag{"clone", "https://" + domain + nostr.PRsURLPath(npub(author), refs[0].Identifier)})
	return finish(ev)
}

// prs is the address of a contributor's repository.
func (w *world) prs(contributor, identifier string) string {
	return w.door.URL + nostr.PRsURLPath(npub(contributor), identifier)
}

// contribution is a contributor's repository on disk.
func (w *world) contribution(contributor, identifier string) *repository.Repo {
	w.Helper()
	repo, err := w.store.At(repository.Place{RepoRef: repo(contributor, identifier), PRs: true})
	must(w, err)
	return repo
}

// offered is the commit that a contributor's repository names for an event; "" if it names none.
func (w *world) offered(contributor, identifier, event string) string {
	w.Helper()
	out, err := gittest.Try(w, w.git, "ls-remote", w.prs(contributor, identifier), "refs/nostr/"+event)
	if err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
	commit, _, _ := strings.Cut(out, "\t")
	return commit
}

// TestContributorsPullRequest: event first and push first, for repositories that are here, under
// the same identifier and another, in shards of several workers, and for one without an
// announcement.
func TestContributorsPullRequest(t *testing.T) {
	w := newWorld(t, "--grasp06-enable")
	start(t, "two", w.git, w.url, "--grasp06-enable").holds(t, 17)
	var refs []nostr.RepoRef
	for n := range 6 {
		refs = append(refs, repo(alice, fmt.Sprint("repo", n)))
		w.announced(alice, refs[n].Identifier)
	}
	for name, repos := range map[string][]nostr.RepoRef{"for announced ones": refs, "for an unknown one": {repo(carol, "a b/c")}} {
		for _, eventFirst := range []bool{true, false} {
			what := fmt.Sprintf("%s, event first %v", name, eventFirst)
			at := repos[0].Identifier
			commit := w.work.Commit("a", what)
			pr := offer(what, bob, commit, repos...)
			if eventFirst {
				w.in.waits(at, pr)
			}
			eventually(t, what+" is pushed", func() bool {
				_, err := gittest.Try(t, w.work.Dir, "push", w.prs(bob, at), "HEAD:refs/nostr/"+pr.ID)
				return err == nil
			})
			if released := w.in.times(pr.ID) == 1; released != eventFirst {
				t.Errorf("%s: when the push has ended its event is accepted: %t", what, released)
			}
			if !eventFirst {
				w.in.waits(at, pr)
				w.released(pr)
			}
			if got := w.offered(bob, at, pr.ID); got != commit {
				t.Errorf("%s: the reference is %q, want %s", what, got, commit)
			}
			for _, ref := range repos {
				if ref.PubKey == alice {
					w.names(alice, ref.Identifier, pr, commit)
				}
			}
			clone := t.TempDir()
			gittest.Git(t, clone, "init", "-q")
			gittest.Git(t, clone, "fetch", "-q", w.prs(bob, at), commit)
			gittest.Fsck(t, clone)
		}
	}
	// One way only.
	commit := w.work.Commit("a", "to an announced one")
	pr := offer("to an announced one", carol, commit, refs...)
	w.in.waits(refs[0].Identifier, pr)
	w.pushes(alice, refs[0].Identifier, "HEAD:refs/nostr/"+pr.ID)
	w.released(pr)
	if w.contribution(carol, refs[0].Identifier).Exists() {
		t.Error("a push to an announced repository is mirrored to the contributor's")
	}
}

// TestContributionsThatAreNotTaken: what does not match its event is refused, or goes when that
// comes, and leaves nothing behind.
func TestContributionsThatAreNotTaken(t *testing.T) {
	w := newWorld(t, "--grasp06-enable")
	commit := w.work.Commit("a", "1")
	x := repo(alice, "x")
	w.announced(alice, "x")
	good, otherCommit, otherSigner := offer("good", bob, commit, x), offer("another commit", bob, strings.Repeat("c", 40), x), offer("another signer", carol, commit, x)
	w.in.waits("x", good, otherCommit, otherSigner)
	push := func(refspec, refused string) {
		t.Helper()
		out, err := gittest.Try(t, w.work.Dir, "push", w.prs(bob, "x"), refspec)
		if (err == nil) != (refused == "") || !strings.Contains(out, refused) {
			t.Errorf("a push of %s: %v\n%s", refspec, err, out)
		}
	}
	push("HEAD:refs/nostr/"+otherCommit.ID, "names commit cccc")
	push("HEAD:refs/nostr/"+otherSigner.ID, "not signed by")
	push("HEAD:refs/heads/main", "authorisation failed: refs/heads/main cannot be pushed here")
	if w.contribution(bob, "x").Exists() {
		t.Error("refused, and a repository is there")
	}

	// Pushed first, and then the event is another's.
	late := offer("late", carol, commit, x)
	push("HEAD:refs/nostr/"+late.ID, "")
	w.in.waits("x", late)
	eventually(t, "the repository is gone with what did not match", func() bool { return !w.contribution(bob, "x").Exists() })
	if w.in.times(late.ID) != 0 {
		t.Error("the event is released by a commit in another contributor's repository")
	}

	// Deleted by its author.
	push("HEAD:refs/nostr/"+good.ID, "")
	w.released(good)
	push(":refs/nostr/"+good.ID, "delete its event")
	w.in.accept(deletion(bob, "e", good.ID))
	eventually(t, "it is gone with its event", func() bool { return !w.contribution(bob, "x").Exists() })
}

// TestContributionsThatNobodyClaims wait as long as any push without its event, and leave nothing
// behind, nor does asking for them.
func TestContributionsThatNobodyClaims(t *testing.T) {
	w := newWorld(t, "--grasp06-enable", "--daily-address-git-bytes=2MiB")
	w.work.Commit("a", "1")
	for _, path := range []string{"never", "seen/before"} {
		if out, err := gittest.Try(t, w.git, "ls-remote", w.prs(bob, path)); err != nil || out != "" {
			t.Errorf("an unknown path: %v\n%s", err, out)
		}
		if out, err := gittest.Try(t, t.TempDir(), "clone", w.prs(bob, path), "clone"); err != nil || !strings.Contains(out, "empty repository") {
			t.Errorf("a clone of an unknown path: %v\n%s", err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(w.git, "_prs")); err == nil {
		t.Error("asking has made something")
	}
	push := func(n int) (string, error) {
		return gittest.Try(t, w.work.Dir, "push", w.prs(bob, fmt.Sprint("x", n)), fmt.Sprintf("HEAD:refs/nostr/%064x", n))
	}
	for n := range 2 {
		if out, err := push(n); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if out, err := push(2); err == nil || !strings.Contains(out, "rate-limited: as much git data of your address") {
		t.Errorf("a third path of one client: %v\n%s", err, out)
	}
	w.restart("--grasp06-enable", "--purgatory-hold=1ms")
	eventually(t, "what no event claims is gone", func() bool {
		left, _ := os.ReadDir(filepath.Join(w.git, "_prs"))
		return len(left) == 0
	})
}
