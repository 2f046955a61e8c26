package purgatory_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture/gittest"
)

// TestWhatNamesAnotherKeptRepositoryStays: what names two repositories that were given up goes with
// the second one, and so do the states of the identifier.
func TestWhatNamesAnotherKeptRepositoryStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	work := gittest.NewWork(t)
	commit := w.pushFirst(work)
	w.in.accept(announcement(t, "bob's", bob, "x"))
	bobsState := state("bob's state", bob, "x", 1002, commit)
	w.in.holds("x", bobsState, proto.SourceUser, time.Hour)
	w.pushes(work, bob, "x", "main")
	w.released(bobsState)
	issue := func(name string, tags ...nostr.Tag) *nostr.Event {
		ev := finish(&nostr.Event{Kind: 1621, PubKey: bob, CreatedAt: 1004, Content: name, Tags: tags})
		w.in.accept(ev)
		return ev
	}
	refs := map[string]string{alice: "30617:" + alice + ":x", bob: "30617:" + bob + ":x"}
	one := issue("of alice's", nostr.Tag{"a", refs[alice]})
	both := issue("of both", nostr.Tag{"a", refs[alice]}, nostr.Tag{"q", refs[bob]})
	for _, owner := range []string{alice, bob} {
		w.in.accept(deletionRequest(owner, 1500, nostr.Tag{"a", refs[owner]}))
	}
	eventually(t, "both have ended", func() bool { return w.told.count("x ended") == 2 })
	has := func(when string, want map[*nostr.Event]bool) {
		t.Helper()
		for ev, there := range want {
			if w.has(ev.ID) != there {
				t.Errorf("%s: %s is there: %t", when, ev.Content, !there)
			}
		}
	}
	if a := w.ask(proto.RepoRemove, refs[alice]); a.Error != "" {
		t.Fatal(a.Error)
	}
	has("alice's is removed", map[*nostr.Event]bool{one: false, both: true, bobsState: true})
	if a := w.ask(proto.RepoRemove, refs[bob]); a.Error != "" {
		t.Fatal(a.Error)
	}
	has("bob's is removed", map[*nostr.Event]bool{both: false, bobsState: false})
}

// TestAnOwnerComesBackDuringTheRemoval: from then on nothing more is removed, neither events nor, when
// all of these are gone, the repository.
func TestAnOwnerComesBackDuringTheRemoval(t *testing.T) {
	t.Parallel()
	for _, removed := range []int{2, 3} {
		t.Run(fmt.Sprint("after ", removed, " events"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			work := gittest.NewWork(t)
			commit := w.pushFirst(work)
			ref := "30617:" + alice + ":x"
			var ids []string
			for n := range 3 {
				ev := finish(&nostr.Event{Kind: 1621, PubKey: bob, CreatedAt: nostr.Timestamp(1004 + n), Content: "issue", Tags: nostr.Tags{{"a", ref}, {"padding", strings.Repeat("x", 600<<10)}}})
				w.in.accept(ev)
				ids = append(ids, ev.ID)
			}
			w.in.accept(deletionRequest(alice, 1500, nostr.Tag{"a", ref}))
			w.told.await("x ended")
			back := again(announcement(t, "announcement", alice, "x"), 2000)
			w.in.after("remove issue", removed, func() { w.in.append(back) })
			if a := w.ask(proto.RepoRemove, ref); !strings.Contains(a.Error, "only its owner") {
				t.Errorf("%+v", a)
			}
			left := 0
			for _, id := range ids {
				if w.has(id) {
					left++
				}
			}
			if left != len(ids)-removed || w.ref(alice, "x", "refs/heads/main") != commit {
				t.Errorf("%d of %d issues are left, main is %q", left, len(ids), w.ref(alice, "x", "refs/heads/main"))
			}
		})
	}
}

// TestAMoveOfUnknownTimesIsNone: where the list of our domains was lost, an announcement from
// before may list one of them. Only its owner's deletion request ends the hosting then.
func TestAMoveOfUnknownTimesIsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	url := w.Bus.ClientURL()
	work := gittest.NewWork(t)
	commit := w.pushFirst(work)
	w.stop()
	w.in.accept(finish(&nostr.Event{Kind: nostr.KindAnnouncement, PubKey: alice, CreatedAt: 1500, Tags: nostr.Tags{
		{"d", "x"}, {"clone", "https://old.example.com" + nostr.RepositoryURLPath(npub(t, alice), "x")}, {"relays", "wss://old.example.com"}}}))
	if err := os.Remove(filepath.Join(w.git, ".belongs")); err != nil {
		t.Fatal(err)
	}
	w.worker = start(t, "two", w.git, url, "--deletion-grace=0s")
	eventually(t, "it is listed, without an end", func() bool {
		list := w.ask(proto.RepoList, "").Repos
		return len(list) == 1 && list[0].State == proto.RepoEnded && list[0].Until.IsZero()
	})
	if w.ended(alice, "x") || w.ref(alice, "x", "refs/heads/main") != commit {
		t.Fatal("the hosting has ended")
	}
	w.in.accept(deletionRequest(alice, 1600, nostr.Tag{"a", "30617:" + alice + ":x"}))
	w.told.await("x removed")
	if n := w.told.count("x ended 0 moved"); n > 0 {
		t.Error("it has counted as moved")
	}
}
