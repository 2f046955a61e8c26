package purgatory_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tendril.dev/lib/nostr"
)

// openedIn counts how often a file of a folder was opened since it was asked last, by any process.
func openedIn(t testing.TB, folder string) func() int {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(watch) })
	_, err = unix.InotifyAddWatch(watch, folder, unix.IN_OPEN)
	must(t, err)
	return func() (opened int) {
		buffer := make([]byte, 1<<20)
		for {
			n, err := unix.Read(watch, buffer)
			if err != nil {
				return opened
			}
			for at := 0; at < n; { // struct inotify_event: watch, mask, cookie, length of the name, name
				if binary.NativeEndian.Uint32(buffer[at+4:])&unix.IN_ISDIR == 0 {
					opened++
				}
				at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buffer[at+12:]))
			}
		}
	}
}

// TestALookReadsNoPullRequests: the look at a repository that follows a push, or a state that came,
// reads none of the references for pull requests, and asks for none of their events. A push waits as
// long as it lasts.
func TestALookReadsNoPullRequests(t *testing.T) {
	w := newWorld(t)
	commit := w.pushFirst()
	const named, few = 300, 30 // a look that reads all of them is far from a look that reads few
	pulls := w.crowded(commit, named)
	w.in.accept(deletion(bob, "e", pulls[0].ID)) // when its reference has gone, all of them were looked at
	folder := filepath.Join(w.repo(alice, "x").Path, "refs/nostr")
	goes := func(id string) {
		t.Helper()
		eventually(t, "the deleted one is named no more", func() bool { _, err := os.Lstat(filepath.Join(folder, id)); return err != nil })
	}
	goes(pulls[0].ID)
	opened := openedIn(t, folder)
	// The looks of before may not have ended; so it is tried until one reads none.
	tried := 0
	eventually(t, "a look reads few references and asks for few events", func() bool {
		tried++
		asked := w.asked.ids.Load()
		opened()
		st := state(fmt.Sprint("the same again ", tried), alice, "x", nostr.Timestamp(1200+tried), commit)
		w.in.waits("x", st)
		w.released(st)
		return opened() <= few && w.asked.ids.Load()-asked <= few
	})
	// It is not that nothing is looked at: one that ends goes.
	w.in.accept(deletion(bob, "e", pulls[1].ID))
	goes(pulls[1].ID)
	if files := opened(); files > few {
		t.Errorf("for one that ended %d files were read", files)
	}
}
