package purgatory_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory"
	"tendril.dev/test/fixture/gittest"
)

// ended is whether it is noted that a repository is not hosted any more.
func (w *world) ended(owner, identifier string) bool {
	w.Helper()
	note, err := w.repo(owner, identifier).Ended()
	if err != nil {
		w.Fatal(err)
	}
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

func deletionRequest(author string, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	return finish(&nostr.Event{Kind: nostr.KindDeletion, PubKey: author, CreatedAt: at, Content: "deletion", Tags: tags})
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
	first := announcement(t, "announcement", alice, "x")
	moved := *first
	moved.Tags = nostr.Tags{{"d", "x"}, {"clone", "https://other.example.org/x.git"}, {"relays", "wss://other.example.org"}}
	moved.CreatedAt = 1500
	for name, ending := range map[string]*nostr.Event{
		"deleted by address": deletionRequest(alice, 1500, nostr.Tag{"a", "30617:" + alice + ":x"}),
		"deleted by id":      deletionRequest(alice, 1500, nostr.Tag{"e", first.ID}),
		"moved away":         finish(&moved),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			work := gittest.NewWork(t)
			commit := w.pushFirst(work)
			w.in.accept(ending)
			w.told.await("x ended")
			if !w.ended(alice, "x") {
				t.Fatal("it is not noted that the hosting has ended")
			}
			if out, err := gittest.Try(t, work.Dir, "ls-remote", w.address(alice, "x")); err == nil {
				t.Fatalf("it is still served:\n%s", out)
			}
			if out, err := w.push(work, alice, "x", "main:other"); err == nil {
				t.Fatalf("it still takes pushes:\n%s", out)
			}
			w.stop() // the next worker of the shard goes on
			w.worker = start(t, "two", w.git, w.Bus.ClientURL())
			eventually(t, "the next worker lists it", func() bool {
				list := w.ask(proto.RepoList, "").Repos
				return len(list) == 1 && list[0].State == proto.RepoEnded && !list[0].Until.IsZero()
			})
			if got := w.ref(alice, "x", "refs/heads/main"); got != commit {
				t.Fatalf("main is %q, want %q", got, commit)
			}
			w.openDoor()
			w.in.holds("x", again(first, 2000), proto.SourceUser, time.Hour)
			w.released(again(first, 2000))
			w.told.await("x returned")
			if w.ended(alice, "x") {
				t.Error("it is still noted that the hosting has ended")
			}
			if out, err := gittest.Try(t, work.Dir, "ls-remote", w.address(alice, "x")); err != nil || !strings.Contains(out, commit+"\trefs/heads/main") {
				t.Errorf("it is not served as it was: %v\n%s", err, out)
			}
			eventually(t, "it is listed as what is here", func() bool {
				list := w.ask(proto.RepoList, "").Repos
				return len(list) == 1 && list[0].State != proto.RepoEnded
			})
		})
	}
}

// TestAnEndedRepositoryIsRemoved: after the grace period a repository goes, with the events and
// objects that only it needed; that of another owner of the identifier stays whole. Workers may be
// replaced at any time meanwhile.
func TestAnEndedRepositoryIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--deletion-grace=24h")
	work := gittest.NewWork(t)
	shared := w.pushFirst(work)
	w.in.accept(announcement(t, "bob's", bob, "x"))
	bobs := state("bob's state", bob, "x", 1002, shared)
	w.in.holds("x", bobs, proto.SourceUser, time.Hour)
	w.pushes(work, bob, "x", "main")
	w.released(bobs)
	own := work.Commit("only", gittest.Noise(4096))
	alices := state("alice's next", alice, "x", 1003, own)
	w.in.holds("x", alices, proto.SourceUser, time.Hour)
	w.pushes(work, alice, "x", "main")
	issue := finish(&nostr.Event{Kind: 1621, PubKey: bob, CreatedAt: 1004, Content: "issue", Tags: nostr.Tags{{"a", "30617:" + alice + ":x"}}})
	w.in.accept(issue)
	w.in.refuses(issue.ID, true)
	w.in.accept(deletionRequest(alice, 1500, nostr.Tag{"a", "30617:" + alice + ":x"}))
	w.told.await("x ended")
	w.stop()
	w.worker = start(t, "two", w.git, w.Bus.ClientURL(), "--deletion-grace=0s")
	w.openDoor()
	// An ingest of an earlier version: nothing goes before it can go whole.
	eventually(t, "the removal is tried again", func() bool { return w.in.requests()["remove issue"] > 1 })
	if w.told.count("x removed") > 0 || !w.repo(alice, "x").Exists() {
		t.Fatal("it is removed though its events are not")
	}
	w.in.refuses(issue.ID, false)
	w.told.await("x removed")
	if _, err := os.Stat(w.repo(alice, "x").Path); !os.IsNotExist(err) {
		t.Fatalf("the repository is still there: %v", err)
	}
	asked := w.in.requests()
	if asked["remove issue"] == 0 || asked["remove alice's next"] == 0 || asked["remove announcement"] > 0 {
		t.Errorf("ingest was asked %v", asked)
	}
	if w.has(issue.ID) || w.has(alices.ID) {
		t.Error("events of the repository are still there")
	}
	gittest.Fsck(t, w.repo(bob, "x").Path)
	clone := filepath.Join(t.TempDir(), "clone")
	if out, err := gittest.Try(t, "", "clone", w.address(bob, "x"), clone); err != nil {
		t.Fatalf("bob's repository: %v\n%s", err, out)
	}
}

// TestNobodyWasThere: a deletion and a return that no worker heard of are found on the disk. What
// no owner has given up is kept, also when the log lacks its announcement.
func TestNobodyWasThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	url := w.Bus.ClientURL()
	work := gittest.NewWork(t)
	commit := w.pushFirst(work)
	lost := w.repo(alice, "unknown")
	if err := lost.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	gittest.Git(t, work.Dir, "push", lost.Path, "main")
	w.stop()
	w.in.accept(deletionRequest(alice, 1500, nostr.Tag{"e", announcement(t, "announcement", alice, "x").ID}))
	w.worker = start(t, "two", w.git, url)
	w.told.await("x ended")
	eventually(t, "it is listed as not hosted, without an end", func() bool {
		return slices.ContainsFunc(w.ask(proto.RepoList, "").Repos, func(s proto.RepoStatus) bool {
			return s.Ref == lost.RepoRef.String() && s.State == proto.RepoEnded && s.Until.IsZero()
		})
	})
	w.stop()
	w.in.accept(again(announcement(t, "announcement", alice, "x"), 2000))
	w.worker = start(t, "three", w.git, url, "--deletion-grace=0s")
	w.told.await("x returned")
	if got := w.ref(alice, "x", "refs/heads/main"); got != commit {
		t.Errorf("main of the one that came back is %q, want %q", got, commit)
	}
	if got := w.ref(alice, "unknown", "refs/heads/main"); got != commit {
		t.Errorf("main of the unknown one is %q, want %q", got, commit)
	}
	if w.told.count("x removed")+w.told.count("unknown") > 0 {
		t.Error("something was removed")
	}
}

// TestNothingIsRemovedOnOldNews: a worker without an index removes nothing while no index says which
// events are accepted, nor while who says it has not read the log to its end: its owner has come
// back meanwhile. Not even an operator can make it.
func TestNothingIsRemovedOnOldNews(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	work := gittest.NewWork(t)
	commit := w.pushFirst(work)
	issue := finish(&nostr.Event{Kind: 1621, PubKey: bob, CreatedAt: 1004, Content: "issue", Tags: nostr.Tags{{"a", "30617:" + alice + ":x"}}})
	w.in.accept(issue)
	w.in.accept(deletionRequest(alice, 1500, nostr.Tag{"a", "30617:" + alice + ":x"}))
	w.told.await("x ended")
	w.stop() // its index stays where it is
	w.in.accept(again(announcement(t, "announcement", alice, "x"), 2000))
	asks := []node.Service{{Name: "purgatory", Run: purgatory.Run, Asks: true}}
	two := run(t, "two", openFor(t, "two", w.git, w.Bus.ClientURL(), asks, "--deletion-grace=0s"))
	eventually(t, "all shards are held", func() bool { return two.metric("purgatory_shards_held") == proto.Shards })
	refuses := func(when string) {
		t.Helper()
		if a := w.ask(proto.RepoRemove, "30617:"+alice+":x"); !strings.Contains(a.Error, "accepted") || len(a.Repos) > 0 {
			t.Errorf("%s: %+v", when, a)
		}
		if asked := w.in.requests(); asked["remove issue"]+asked["remove state"] > 0 || w.told.count("x removed") > 0 {
			t.Errorf("%s: ingest was asked %v", when, asked)
		}
		if got := w.ref(alice, "x", "refs/heads/main"); got != commit {
			t.Errorf("%s: main is %q", when, got)
		}
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
	if a := w.ask(proto.RepoRemove, "30617:"+alice+":x"); !strings.Contains(a.Error, "only its owner") {
		t.Errorf("when it has come back: %+v", a)
	}
}
