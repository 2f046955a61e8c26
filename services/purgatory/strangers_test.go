package purgatory_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
)

// held returns a git that does not take a push to an owner's repositories before open is called,
// and tells when one waits.
func held(t *testing.T, owner string) (program string, waits func() bool, open func()) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	program, waiting, opened := filepath.Join(folder, "git"), filepath.Join(folder, "waiting"), filepath.Join(folder, "opened")
	script := fmt.Sprintf(`#!/bin/sh
case "$1 $3 $GIT_DIR" in
"receive-pack . "*/%s/*) touch '%s'; while [ ! -e '%s' ]; do sleep 0.05; done ;;
esac
exec '%s' "$@"
`, npub(t, owner), waiting, opened, git)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	return program, func() bool { return exists(waiting) }, func() {
		if err := os.WriteFile(opened, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAStrangersPushDoesNotHoldUpTheOwner: a push to another repository of the same identifier, of
// any length, does not keep the owner's from being taken and released.
func TestAStrangersPushDoesNotHoldUpTheOwner(t *testing.T) {
	program, waits, open := held(t, bob)
	w := newWorld(t, "--git-binary="+program)
	work, other := gittest.NewWork(t), gittest.NewWork(t)
	w.pushFirst(work)
	w.in.accept(announcement(t, "bob's announcement", bob, "x"))
	w.in.holds("x", state("bob's state", bob, "x", 1001, other.Commit("a", "other")), proto.SourceUser, time.Hour)
	pushed := make(chan error, 1)
	go func() {
		_, err := w.push(other, bob, "x", "main")
		pushed <- err
	}()
	eventually(t, "the stranger's push is under way", waits)

	second := state("second state", alice, "x", 1002, work.Commit("a", "2"))
	w.in.holds("x", second, proto.SourceUser, time.Hour)
	w.pushes(work, alice, "x", "main")
	if w.in.times(second.ID) == 0 {
		t.Error("the owner's state is not released when the push has ended")
	}
	select {
	case err := <-pushed:
		t.Errorf("the stranger's push did not last: %v", err)
	default:
	}
	open()
	if err := <-pushed; err != nil {
		t.Error(err)
	}
}

// TestAThousandStrangersAddNothingToAPush: they announce the owner's identifier, and the owner's
// push starts as many git processes as before.
func TestAThousandStrangersAddNothingToAPush(t *testing.T) {
	program, started := traced(t)
	w := newWorld(t, "--git-binary="+program)
	work := gittest.NewWork(t)
	w.pushFirst(work)
	push := func(at nostr.Timestamp) (processes int) {
		t.Helper()
		w.in.holds("x", state("state", alice, "x", at, work.Commit("a", fmt.Sprint(at))), proto.SourceUser, time.Hour)
		eventually(t, "the state was looked at", func() bool { return w.metric("purgatory_sync_queue_size") == 1 })
		started()
		w.pushes(work, alice, "x", "main")
		return started()
	}
	alone := push(1002)
	const strangers = 1000
	for i := range strangers {
		w.in.accept(announcement(t, "a stranger's announcement", fmt.Sprintf("%064x", i+1), "x"))
	}
	eventually(t, "the strangers' repositories are made", func() bool {
		made, err := filepath.Glob(filepath.Join(w.git, "npub1*", "x.git"))
		return err == nil && len(made) == 1+strangers
	})
	if among := push(1003); among > alone {
		t.Errorf("a push starts %d git processes, and %d among %d strangers", alone, among, strangers)
	}
}

// traced returns a git that tells of every process, those that git itself starts too, and how many
// there were since the last time.
func traced(t *testing.T) (program string, processes func() int) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	events, program := filepath.Join(folder, "events"), filepath.Join(folder, "git")
	script := fmt.Sprintf("#!/bin/sh\nGIT_TRACE2_EVENT='%s' exec '%s' \"$@\"\n", events, git)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, func() int {
		data, err := os.ReadFile(events)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		os.Remove(events)
		return bytes.Count(data, []byte(`"event":"start"`))
	}
}
