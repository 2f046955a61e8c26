package purgatory_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
)

// TestTimeThatNobodySawIsNoTime: a note of long ago, from a backup or by a clock that was wrong,
// has nothing removed; a day of it counts. What an operator keeps is kept when its owner announces
// it elsewhere once more.
func TestTimeThatNobodySawIsNoTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	url := w.Bus.ClientURL()
	work := gittest.NewWork(t)
	commit := w.pushFirst(work)
	elsewhere := func(at nostr.Timestamp) *nostr.Event {
		return finish(&nostr.Event{Kind: nostr.KindAnnouncement, PubKey: alice, CreatedAt: at, Tags: nostr.Tags{
			{"d", "x"}, {"clone", "https://other.example.org/x.git"}, {"relays", "wss://other.example.org"}}})
	}
	w.in.accept(elsewhere(1500))
	w.told.await("x ended")
	w.stop()
	note, err := w.repo(alice, "x").Ended()
	if err != nil {
		t.Fatal(err)
	}
	month := 30 * 24 * time.Hour
	note.Since, note.Seen, note.Counted = note.Since.Add(-month), note.Since.Add(-month), 2*24*time.Hour
	if err := w.repo(alice, "x").SetEnded(*note); err != nil {
		t.Fatal(err)
	}
	w.worker = start(t, "two", w.git, url)
	eventually(t, "time is counted", func() bool {
		note, err = w.repo(alice, "x").Ended()
		return err != nil || note.Counted != 2*24*time.Hour
	})
	if err != nil || note.Counted != 3*24*time.Hour || time.Since(note.Seen) > time.Hour {
		t.Fatalf("%+v, %v", note, err)
	}
	ref := "30617:" + alice + ":x"
	if a := w.ask(proto.RepoRestore, ref); a.Error != "" || !a.Repos[0].Kept {
		t.Fatalf("%+v", a)
	}
	w.stop()
	w.in.accept(elsewhere(2000))
	w.worker = start(t, "three", w.git, url, "--deletion-grace=0s")
	eventually(t, "it is known", func() bool { return w.metric("purgatory_repositories_ended", "kept") == 1 })
	if a := w.ask(proto.RepoShow, ref); a.Error != "" || !a.Repos[0].Kept || !a.Repos[0].Until.IsZero() {
		t.Errorf("%+v", a)
	}
	if got := w.ref(alice, "x", "refs/heads/main"); got != commit || w.told.count("x removed") > 0 {
		t.Errorf("main is %q", got)
	}
}

// TestWhatNamesAnotherKeptRepositoryStays: what names two repositories that were given up goes with
// the second one; what names a maintainer only goes with the last repository that he or she
// maintains.
func TestWhatNamesAnotherKeptRepositoryStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	work := gittest.NewWork(t)
	commit := w.pushFirst(work)
	carol := strings.Repeat("c0", 32)
	bobs := announcement(t, "bob's", bob, "x")
	bobs.Tags = append(bobs.Tags, nostr.Tag{"maintainers", carol})
	w.in.accept(finish(bobs))
	bobsState := state("bob's state", bob, "x", 1002, commit)
	w.in.holds("x", bobsState, proto.SourceUser, time.Hour)
	if out, err := w.push(work, bob, "x", "main"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.released(bobsState)
	issue := func(name string, tags ...nostr.Tag) *nostr.Event {
		ev := finish(&nostr.Event{Kind: 1621, PubKey: bob, CreatedAt: 1004, Content: name, Tags: tags})
		w.in.accept(ev)
		return ev
	}
	refs := map[string]string{alice: "30617:" + alice + ":x", bob: "30617:" + bob + ":x", carol: "30617:" + carol + ":x"}
	one := issue("of alice's", nostr.Tag{"a", refs[alice]}, nostr.Tag{"a", refs[carol]})
	both := issue("of both", nostr.Tag{"a", refs[alice]}, nostr.Tag{"q", refs[bob]})
	maintained := issue("of carol's", nostr.Tag{"A", refs[carol]})
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
	has("alice's is removed", map[*nostr.Event]bool{one: false, both: true, maintained: true, bobsState: true})
	if a := w.ask(proto.RepoRemove, refs[bob]); a.Error != "" {
		t.Fatal(a.Error)
	}
	has("bob's is removed", map[*nostr.Event]bool{both: false, maintained: false, bobsState: false})
}

// TestAnOwnerComesBackDuringTheRemoval: from then on nothing more is removed.
func TestAnOwnerComesBackDuringTheRemoval(t *testing.T) {
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
	w.in.after("remove issue", 2, func() { w.in.append(back) })
	if a := w.ask(proto.RepoRemove, ref); !strings.Contains(a.Error, "only its owner") {
		t.Errorf("%+v", a)
	}
	left := 0
	for _, id := range ids {
		if w.has(id) {
			left++
		}
	}
	if left != 1 || w.ref(alice, "x", "refs/heads/main") != commit {
		t.Errorf("%d of %d issues are left, main is %q", left, len(ids), w.ref(alice, "x", "refs/heads/main"))
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
	eventually(t, "it is kept", func() bool { return w.metric("purgatory_repositories_ended", "kept") == 1 })
	if w.ended(alice, "x") || w.ref(alice, "x", "refs/heads/main") != commit {
		t.Fatal("the hosting has ended")
	}
	w.in.accept(deletionRequest(alice, 1600, nostr.Tag{"a", "30617:" + alice + ":x"}))
	w.told.await("x removed")
}
