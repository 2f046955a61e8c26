package purgatory_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// expiring is an event whose time is over in so many seconds from now.
func expiring(ev *nostr.Event, seconds nostr.Timestamp) *nostr.Event {
	ev.Tags = append(ev.Tags, nostr.Tag{"expiration", fmt.Sprint(nostr.Now() + seconds)})
	return finish(ev)
}

// TestAnAnnouncementEndsDuringItsFirstPush: the data of a repository of which no announcement was
// ever accepted does not stay.
func TestAnAnnouncementEndsDuringItsFirstPush(t *testing.T) {
	w := newWorld(t)
	commit := w.work.Commit("a", "1")
	ann, st := announcement("announcement", alice, "x"), state("state", alice, "x", 1001, commit)
	w.in.set(func() { w.in.refuse[ann.ID], w.in.refuse[st.ID] = true, true }) // as after their deletion
	w.in.waits("x", ann, st)
	if out, err := w.push(alice, "x", "main"); err == nil {
		t.Errorf("a push whose events have ended is acknowledged:\n%s", out)
	}
	eventually(t, "the repository is removed", func() bool { return !w.repo(alice, "x").Exists() })
}

// TestAnAnnouncementEndsRightAfterItsFirstPush: the folder is still marked as one of which no
// announcement was accepted, but the log has one. The data is kept for the grace period.
func TestAnAnnouncementEndsRightAfterItsFirstPush(t *testing.T) {
	w := newWorld(t)
	w.pushFirst()
	fixture.Must(t, os.WriteFile(filepath.Join(w.repo(alice, "x").Path, "unproven"), []byte("true\n"), 0o644))
	w.in.accept(deletion(alice, "a", fmt.Sprintf("30617:%s:x", alice)))
	w.told.await("x ended 0 deleted")
	if !w.ended(alice, "x") || !w.repo(alice, "x").Exists() {
		t.Error("what was pushed is gone at once")
	}
}

// TestWhatExpiresEnds: when the time of an announcement or of a pull request is over, nothing of it
// stays behind that its deletion would not leave, though no message tells.
func TestWhatExpiresEnds(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	for _, identifier := range []string{"y", "z"} {
		w.announced(alice, identifier)
	}
	// From then on no look is at all of its pull requests.
	eventually(t, "its acceptance was looked at", func() bool { return !w.repo(alice, "x").IsUnproven() })
	pr := expiring(pull("pushed", bob, commit, alice, "x"), 8)
	w.in.waits("x", pr)
	w.pushes(alice, "x", "main:refs/nostr/"+pr.ID)
	w.in.accept(expiring(again(announcement("announcement", alice, "y"), 2000), 2))
	eventually(t, "its reference goes with a pull request", func() bool { return w.ref(alice, "x", "refs/nostr/"+pr.ID) == "" })
	eventually(t, "a repository without data goes", func() bool { return !w.repo(alice, "y").Exists() })
	w.in.accept(expiring(again(announcement("announcement", alice, "x"), 2000), 2))
	w.told.await("x ended 0 expired")
	if !w.ended(alice, "x") || !w.repo(alice, "z").Exists() {
		t.Error("it is not noted that the hosting has ended, or another's has")
	}
}

// TestAnAnnouncementLeavesTheLogWhileNoWorkerIsThere, because its time is over: the next worker finds
// its empty message, and the hosting ends with grace.
func TestAnAnnouncementLeavesTheLogWhileNoWorkerIsThere(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	w.stop()
	w.in.set(func() { w.in.remove(announcement("announcement", alice, "x")) })
	w.restart()
	w.told.await("x ended 0 expired")
	if w.isAt(alice, "x", commit); !w.ended(alice, "x") {
		t.Error("it is not noted that the hosting has ended")
	}
}
