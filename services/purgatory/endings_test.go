package purgatory_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture/gittest"
)

// ended is whether it is noted that a repository is not hosted any more.
func (w *world) ended(owner, identifier string) bool {
	w.Helper()
	note, err := w.repo(owner, identifier).Ended()
	must(w, err)
	return note != nil
}

func (w *world) has(id string) bool {
	w.Helper()
	view := w.Index.View()
	defer view.Close()
	_, err := view.Kind(id)
	if err != nil && !errors.Is(err, eventdb.ErrNotFound) {
		w.Fatal(err)
	}
	return err == nil
}

// again is an announcement that is newer.
func again(ev *nostr.Event, at nostr.Timestamp) *nostr.Event {
	newer := *ev
	newer.Content, newer.CreatedAt = "again", at
	return finish(&newer)
}

// TestAnOwnerComesBack: whichever way an owner ends the hosting, it ends at once and the git data
// stays; a new announcement brings it back with its references as they were.
func TestAnOwnerComesBack(t *testing.T) {
	t.Parallel()
	first := announcement("announcement", alice, "x")
	for name, ending := range map[string]*nostr.Event{
		"deleted by address": deletion(alice, "a", alicesX),
		"deleted by id":      deletion(alice, "e", first.ID),
		"moved away":         abroad("moved", alice, "x", 1500),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			commit := w.pushFirst()
			w.in.accept(ending)
			w.told.await("x ended")
			if !w.ended(alice, "x") {
				t.Fatal("it is not noted that the hosting has ended")
			}
			if out, err := gittest.Try(t, w.work.Dir, "ls-remote", w.address(alice, "x")); err == nil {
				t.Fatalf("it is still served:\n%s", out)
			}
			w.refuses("not found", alice, "x", "main:other")
			w.restart() // the next worker of the shard goes on
			w.isAt(alice, "x", commit)
			w.in.waits("x", again(first, 2000))
			w.released(again(first, 2000))
			w.told.await("x returned")
			if w.ended(alice, "x") {
				t.Error("it is still noted that the hosting has ended")
			}
			if out, err := gittest.Try(t, w.work.Dir, "ls-remote", w.address(alice, "x")); err != nil || !strings.Contains(out, commit+"\trefs/heads/main") {
				t.Errorf("it is not served as it was: %v\n%s", err, out)
			}
		})
	}
}

// TestAnOwnerWhoDeletedTheStateComesBack: what the repository had is there still, and a new state needs
// no push.
func TestAnOwnerWhoDeletedTheStateComesBack(t *testing.T) {
	w := newWorld(t)
	commit := w.work.Commit("a", "1")
	w.announced(alice, "x")
	st := w.pushState(alice, "x", 1001, commit)
	w.in.accept(deletion(alice, "e", st.ID))
	eventually(t, "its branch is gone", func() bool { return w.ref(alice, "x", mainBranch) == "" })
	w.in.accept(deletion(alice, "a", alicesX))
	w.told.await("x ended")
	comes, back := again(announcement("announcement", alice, "x"), 2000), state("back", alice, "x", 2000, commit)
	w.in.waits("x", comes, back)
	w.released(comes)
	w.released(back)
	w.isAt(alice, "x", commit)
}

// TestAnEndedRepositoryIsRemoved: after the grace period a repository goes, with the events and
// objects that only it needed; that of another owner of the identifier stays whole. What hangs on a
// deleted announcement is hidden, and ingest removes it. Workers may be
// replaced at any time meanwhile. What names two repositories that were given up goes with the
// second one, and so do the states of the identifier.
func TestAnEndedRepositoryIsRemoved(t *testing.T) {
	w := newWorld(t, "--deletion-grace=24h")
	alicesRef, bobsRef := alicesX, repo(bob, "x").String()
	shared := w.pushFirst()
	w.announced(bob, "x")
	w.announced(carol, "x")
	bobs, carols := w.pushState(bob, "x", 1002, shared), w.pushState(carol, "x", 1002, shared)
	alices := w.pushState(alice, "x", 1003, w.work.Commit("only", gittest.Noise(4096)))
	one, both := issue("issue", nostr.Tag{"a", alicesRef}), issue("of both", nostr.Tag{"a", alicesRef}, nostr.Tag{"q", bobsRef})
	w.in.accept(one)
	w.in.accept(both)
	w.in.set(func() { w.in.refuse[one.ID] = true })
	has := func(when string, there bool, events ...*nostr.Event) {
		t.Helper()
		for _, ev := range events {
			if w.has(ev.ID) != there {
				t.Errorf("%s: %s is there: %t", when, ev.Content, !there)
			}
		}
	}
	w.in.accept(abroad("bob has moved", bob, "x", 1500))
	w.told.await("x ended")
	if s, err := w.workers().Restore(t.Context(), about(t, bobsRef)); err != nil || !s.Kept {
		t.Fatalf("%+v, %v", s, err)
	}
	w.in.accept(abroad("alice has moved", alice, "x", 1500))
	eventually(t, "both have ended", func() bool { return w.told.count("x ended") == 2 })
	w.restart("--deletion-grace=0s")
	// Nothing goes before it can go whole.
	eventually(t, "the removal is tried again", func() bool { return w.in.requests()["remove issue"] > 1 })
	if w.told.count("x removed") > 0 || !w.repo(alice, "x").Exists() {
		t.Fatal("it is removed though its events are not")
	}
	w.in.set(func() { w.in.refuse[one.ID] = false })
	w.told.await("x removed")
	if _, err := os.Stat(w.repo(alice, "x").Path); !os.IsNotExist(err) {
		t.Fatalf("the repository is still there: %v", err)
	}
	if asked := w.in.requests(); asked["remove announcement"] > 0 {
		t.Errorf("ingest was asked %v", asked)
	}
	has("alice's is removed", false, one)
	has("alice's is removed", true, both, alices, bobs, carols)
	if _, err := w.workers().Remove(t.Context(), about(t, bobsRef)); err != nil {
		t.Fatal(err)
	}
	has("bob's is removed", false, both, alices, bobs)
	gittest.Fsck(t, w.repo(carol, "x").Path)
	if out, err := gittest.Try(t, t.TempDir(), "clone", w.address(carol, "x"), "clone"); err != nil {
		t.Fatalf("carol's repository: %v\n%s", err, out)
	}
}

// TestNobodyWasThere: a deletion and a return that no worker heard of are found on the disk. What
// no owner has given up is kept, also when the log lacks its announcement. Where the list of our
// domains was lost, an announcement from before may list one of them: only a deletion request ends
// the hosting then.
func TestNobodyWasThere(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	lost := w.repo(alice, "unknown")
	gittest.Do(t, lost, func(repo *repository.Locked) error { return errors.Join(repo.Ensure(t.Context()), repo.SetProven()) })
	gittest.Git(t, w.work.Dir, "push", lost.Path, "main")
	w.stop() // for the next one to find
	w.in.accept(deletion(alice, "e", announcement("announcement", alice, "x").ID))
	w.restart()
	w.told.await("x ended")
	noEnd := func(ref nostr.RepoRef) {
		t.Helper()
		eventually(t, "it is listed as not hosted, without an end", func() bool {
			list, err := w.workers().List(t.Context())
			must(t, err)
			return slices.ContainsFunc(list, func(s proto.RepoStatus) bool {
				return s.Ref == ref.String() && s.State == proto.RepoEnded && s.Until.IsZero()
			})
		})
	}
	noEnd(lost.RepoRef)
	w.stop()
	w.in.accept(again(announcement("announcement", alice, "x"), 2000))
	w.restart("--deletion-grace=0s")
	w.told.await("x returned")
	w.isAt(alice, "x", commit)
	w.isAt(alice, "unknown", commit)
	w.stop()
	w.in.accept(abroad("old", alice, "x", 2500))
	must(t, os.Remove(filepath.Join(w.git, ".belongs")))
	w.restart("--deletion-grace=0s")
	noEnd(repo(alice, "x"))
	if w.told.count("x removed")+w.told.count("unknown") > 0 || w.ended(alice, "x") {
		t.Fatal("something was removed, or will be")
	}
	w.in.accept(event("deletion", nostr.KindDeletion, alice, 3000, nostr.Tag{"a", alicesX}))
	w.told.await("x removed")
	if w.told.count("x ended 0 moved") > 0 {
		t.Error("it has counted as moved")
	}
}

// TestNothingIsRemovedOnOldNews: a worker without an index removes nothing while no index says
// which events are accepted, nor while who says it has not read the log to its end: its owner has
// come back meanwhile. Not even an operator can make it.
func TestNothingIsRemovedOnOldNews(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	ref := alicesX
	w.in.accept(issue("issue", nostr.Tag{"a", ref}))
	w.in.accept(deletion(alice, "a", ref))
	w.told.await("x ended")
	w.stop() // its index stays where it is
	w.in.accept(again(announcement("announcement", alice, "x"), 2000))
	asks := []node.Service{{Name: "purgatory", Run: purgatory.Run, Asks: true}}
	two := run(t, "two", open(t, "two", w.git, w.url, asks, "--deletion-grace=0s"))
	two.holds(t, proto.Shards)
	refuses := func(when string) {
		t.Helper()
		if _, err := w.workers().Remove(t.Context(), about(t, ref)); err == nil || !strings.Contains(err.Error(), "accepted") {
			t.Errorf("%s: %v", when, err)
		}
		if asked := w.in.requests(); asked["remove issue"]+asked["remove state 1001"] > 0 || w.told.count("x removed") > 0 {
			t.Errorf("%s: ingest was asked %v", when, asked)
		}
		w.isAt(alice, "x", commit)
	}
	refuses("no index answers")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	log := slog.New(slog.DiscardHandler)
	running.Go(func() {
		if err := query.Serve(ctx, query.NewIndex(w.Index, w.Bus), w.Bus.Conn, log); err != nil {
			t.Error(err)
		}
	})
	refuses("who answers is behind")
	running.Go(func() {
		if err := eventdb.Follow(ctx, w.Bus.JS, w.Index, log); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	w.told.await("x returned")
	if _, err := w.workers().Remove(t.Context(), about(t, ref)); err == nil || !strings.Contains(err.Error(), "only its owner") {
		t.Errorf("when it has come back: %v", err)
	}
}

// TestAnOwnerComesBackDuringTheRemoval: from then on nothing more is removed, neither events nor,
// when all of these are gone, the repository.
func TestAnOwnerComesBackDuringTheRemoval(t *testing.T) {
	t.Parallel()
	for _, removed := range []int{2, 3} {
		t.Run(fmt.Sprint("after ", removed, " events"), func(t *testing.T) {
			w := newWorld(t)
			commit := w.pushFirst()
			ref := alicesX
			var ids []string
			for n := range 3 {
				ev := issue("issue", nostr.Tag{"a", ref}, nostr.Tag{fmt.Sprint("padding", n), strings.Repeat("x", 600<<10)})
				w.in.accept(ev)
				ids = append(ids, ev.ID)
			}
			w.in.accept(abroad("moved", alice, "x", 1500))
			w.told.await("x ended")
			back := again(announcement("announcement", alice, "x"), 2000)
			w.in.after("remove issue", removed, func() { w.in.append(back) })
			if _, err := w.workers().Remove(t.Context(), about(t, ref)); err == nil || !strings.Contains(err.Error(), "only its owner") {
				t.Error(err)
			}
			left := 0
			for _, id := range ids {
				if w.has(id) {
					left++
				}
			}
			if left != len(ids)-removed || w.ref(alice, "x", mainBranch) != commit {
				t.Errorf("%d of %d issues are left, main is %q", left, len(ids), w.ref(alice, "x", mainBranch))
			}
		})
	}
}

// TestWhatAnOwnerDeletedIsNotServedAgain: neither does a stranger who announces the identifier and
// pushes nothing serve it, by reference or by object id, nor is a third key's state released that
// names it.
func TestWhatAnOwnerDeletedIsNotServedAgain(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	tree := w.work.Git("rev-parse", "main^{tree}")

	served := func(owner, id string) (string, bool) {
		out, err := gittest.Try(t, gittest.NewWork(t).Dir, "-c", "protocol.version=2", "fetch", w.address(owner, "x"), id)
		return out, err == nil
	}
	if out, ok := served(alice, commit); !ok {
		t.Fatalf("it is not served before: %s", out)
	}
	w.in.accept(deletion(alice, "a", alicesX))
	w.told.await("x ended")

	w.announced(bob, "x")
	w.announced(carol, "x")
	stranger := state("bob's state", bob, "x", 2001, commit)
	third := state("carol's state", carol, "x", 2002, commit)
	w.in.waits("x", stranger, third)

	// What is held after them has been decided when this is.
	w.work = gittest.NewWork(t)
	w.pushState(bob, "x", 2003, w.work.Commit("b", "bob's own"))
	if w.in.times(stranger.ID)+w.in.times(third.ID) > 0 {
		t.Error("a state of strangers is released for data that its owner deleted")
	}
	for _, owner := range []string{alice, bob, carol} {
		for _, id := range []string{commit, tree} {
			if out, ok := served(owner, id); ok {
				t.Errorf("%s is served at the address of %.4s: %s", id, owner, out)
			}
		}
		if out, err := gittest.Try(t, w.work.Dir, "ls-remote", w.address(owner, "x")); err == nil && strings.Contains(out, commit) {
			t.Errorf("a reference of %.4s names it: %s", owner, out)
		}
	}
}

// workers are asked as an operator asks.
func (w *world) workers() gitquery.Client {
	return gitquery.Client{Conn: w.Bus.Conn, Patience: patience}
}

// about is what an operator names.
func about(t testing.TB, ref string) nostr.RepoRef {
	parsed, err := nostr.ParseRepoRef(ref)
	must(t, err)
	return parsed
}

// TestAnOperatorAsks: an operator sees what is not hosted any more, and may keep it or remove it at
// once, also where its references cannot be read; what is hosted stays.
func TestAnOperatorAsks(t *testing.T) {
	w := newWorld(t)
	w.pushFirst()
	first, ref := announcement("announcement", alice, "x"), alicesX
	workers, alices := w.workers(), about(t, ref)
	one := func(s proto.RepoStatus, err error) proto.RepoStatus {
		t.Helper()
		if err != nil || s.Ref != ref {
			t.Fatalf("%+v, %v", s, err)
		}
		return s
	}
	if s := one(workers.Show(t.Context(), alices)); s.State != proto.RepoHosted || s.References != 1 || s.Changed.IsZero() || s.States != 1 || !s.Until.IsZero() {
		t.Errorf("a hosted repository: %+v", s)
	}
	for page, err := range workers.References(t.Context(), alices) {
		must(t, err)
		if len(page.References) != 1 || page.Head != page.References[0].Name || w.ref(alice, "x", page.Head) != page.References[0].Object || page.More {
			t.Errorf("references: %+v", page)
		}
	}
	if s := one(workers.Restore(t.Context(), alices)); s.State != proto.RepoHosted {
		t.Errorf("a hosted repository, restored: %+v", s)
	}
	if _, err := workers.Remove(t.Context(), alices); err == nil || !strings.Contains(err.Error(), "only its owner") {
		t.Errorf("a hosted repository, removed: %v", err)
	}
	if _, err := workers.Show(t.Context(), repo(bob, "x")); err == nil || !strings.Contains(err.Error(), "nothing of") {
		t.Errorf("one that is not here: %v", err)
	}
	listed := func(state proto.RepoState) (s proto.RepoStatus) {
		t.Helper()
		eventually(t, string("it is listed as "+state), func() bool {
			list, err := workers.List(t.Context())
			if err != nil || len(list) != 1 {
				t.Fatalf("listed: %+v, %v", list, err)
			}
			s = list[0]
			return s.State == state
		})
		return s
	}
	if s := listed(proto.RepoHosted); s.Ref != ref || s.References != 1 || s.Bytes == 0 || s.Changed.IsZero() {
		t.Errorf("listed where it is hosted: %+v", s)
	}
	w.in.accept(deletion(alice, "a", ref))
	w.told.await("x ended")
	if s := listed(proto.RepoEnded); s.Reason != "deleted" || s.Announcement != first.ID || s.Until.Sub(s.Since) != 90*24*time.Hour {
		t.Errorf("listed when it has ended: %+v", s)
	}
	if s := one(workers.Restore(t.Context(), alices)); !s.Kept || !s.Until.IsZero() || s.State != proto.RepoEnded {
		t.Errorf("restored: %+v", s)
	}
	if s := listed(proto.RepoEnded); !s.Kept || !s.Until.IsZero() {
		t.Errorf("listed when it was restored: %+v", s)
	}
	path := w.repo(alice, "x").Path
	must(t, os.WriteFile(filepath.Join(path, "packed-refs"), []byte("garbage\x00\n"), 0o644), os.RemoveAll(filepath.Join(path, "objects")))
	if s := one(workers.Show(t.Context(), alices)); s.Reason != "deleted" || s.Damage == "" {
		t.Errorf("damaged: %+v", s)
	}
	if one(workers.Remove(t.Context(), alices)); w.repo(alice, "x").Exists() {
		t.Error("it is still there")
	}
}

// TestTwoLeadsKeepWhatNoReferenceReaches: the whole way from an announcement to housekeeping. While
// no one has authority nothing is removed; when a key has, it is.
func TestTwoLeadsKeepWhatNoReferenceReaches(t *testing.T) {
	w := newWorld(t)
	lost := w.pushFirst()
	w.work.Git("checkout", "-q", "--orphan", "other")
	kept := w.work.Commit("b", "other")
	w.work.Git("branch", "-M", "main")
	w.in.waits("x", state("the second", alice, "x", 1100, kept))
	w.pushes(alice, "x", "+main")
	path := w.repo(alice, "x").Path
	tidied := func() bool {
		info, err := os.Stat(filepath.Join(path, "last-gc"))
		return err == nil && time.Since(info.ModTime()) < 24*time.Hour
	}
	isThere := func(commit string) bool {
		_, err := gittest.Try(t, path, "cat-file", "-e", commit)
		return err == nil
	}
	announce := func(at nostr.Timestamp, leads []string) {
		ev := announcement("with leads", alice, "x")
		ev.CreatedAt = at
		for _, lead := range leads {
			ev.Tags = append(ev.Tags, nostr.Tag{"M", lead})
		}
		w.in.accept(finish(ev))
	}
	lead := func(at nostr.Timestamp, noAuthority bool, leads ...string) {
		t.Helper()
		announce(at, leads)
		eventually(t, "it is known who has authority", func() bool {
			list, err := w.workers().List(t.Context())
			return err == nil && len(list) == 1 && (list[0].NoAuthority != "") == noAuthority
		})
		err := filepath.WalkDir(path, func(file string, _ fs.DirEntry, err error) error {
			age := 3 * 24 * time.Hour
			if name := filepath.Base(file); name == "config" || name == "last-gc" { // the last housekeeping was before all that
				age *= 2
			}
			return errors.Join(err, os.Chtimes(file, time.Now().Add(-age), time.Now().Add(-age)))
		})
		must(t, err)
		announce(at+1, leads) // it is looked at again
		eventually(t, "it is tidied up", tidied)
	}
	lead(1200, true, bob, carol)
	if !isThere(lost) || !isThere(kept) {
		t.Error("no one has authority, and something was removed")
	}
	lead(1300, false, alice)
	if isThere(lost) || !isThere(kept) {
		t.Error("what no reference reaches is there still, or too much is gone")
	}
}
