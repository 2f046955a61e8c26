package repository_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

// TestWhatIsDoneIsOnTheDisk: after each change a power cut would leave all of it.
func TestWhatIsDoneIsOnTheDisk(t *testing.T) {
	t.Parallel()
	s := gittest.Store(t)
	w := gittest.NewWork(t)
	first := w.Commit("a", "1")
	one := w.Pack("main")
	second := w.Commit("a", "2")
	two := w.Pack("main", "^"+first)
	ctx := t.Context()
	from := gittest.Repo(t, s, "from")
	must(t, gittest.Take(t, from, one, first))
	r := gittest.Lock(t, gittest.Repo(t, s, "x"))
	other := gittest.Lock(t, gittest.Repo(t, s, "other"))
	main, dev := "refs/heads/main", "refs/heads/dev"
	push := gittest.Pkt("0000000000000000000000000000000000000000 "+second+" refs/heads/pushed\x00report-status") + string(two)
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a new repository", func() error { return nil }},
		{"a pack", func() error { return gittest.Take(t, r.Repo, one, first) }},
		{"references and HEAD", func() error {
			return r.SetRefs(ctx, refs{main: first, dev: first, "refs/tags/a/b": first}, refs{"refs/heads/latest": main}, dev)
		}},
		{"one that moves, one that goes", func() error {
			return r.SetRefs(ctx, refs{main: first, "refs/tags/c": first}, nil, main)
		}},
		{"a reference", func() error { return r.SetRef(ctx, "refs/nostr/"+strings.Repeat("e", 64), first) }},
		{"a deletion", func() error { return r.DeleteRef(ctx, "refs/nostr/"+strings.Repeat("e", 64)) }},
		{"a push", func() error {
			c := r.ReceivePack(1<<20, false)
			c.Stdin = strings.NewReader(push)
			return c.Run(ctx)
		}},
		{"notes", func() error {
			return errors.Join(r.SetArchive(true), r.SetEnded(&repository.Ended{Reason: "x", Since: time.Unix(1, 0)}),
				r.SetWaiting([]repository.WaitingPush{{Event: "e"}}))
		}},
		{"notes that go", func() error { return errors.Join(r.SetArchive(false), r.SetEnded(nil), r.SetWaiting(nil)) }},
		{"housekeeping", func() error { return r.Gc(ctx) }},
		{"packs that are linked", func() error { return other.Share(ctx, from, []string{first}) }},
		{"objects that are copied", func() error { return other.Copy(ctx, r.Repo, []string{second}, 0) }},
	} {
		must(t, step.do())
		for _, folder := range []string{r.Path, other.Path} {
			byGit := func(path string) bool {
				return strings.HasPrefix(path, folder+"/objects/") ||
					strings.HasPrefix(path, folder+"/refs/") && !strings.HasSuffix(path, "/latest") // symbolic ones it does not sync
			}
			for _, lost := range repository.AfterPowerCut(folder, byGit) {
				if !strings.Contains(lost, "tmp_objdir-") && !strings.Contains(lost, "commit-graph") { // swept; made again
					t.Errorf("%s: a power cut would lose %s", step.name, lost)
				}
			}
		}
	}
	gittest.Fsck(t, r.Path)
	got, err := r.Refs()
	if must(t, err); got.ByName["refs/heads/pushed"] != second || got.Head != main {
		t.Errorf("%+v", got)
	}
}

// TestGitSyncsWhatItWrites: packs and references. It counts what it has synced, if it is asked to.
func TestGitSyncsWhatItWrites(t *testing.T) {
	counts := filepath.Join(t.TempDir(), "trace")
	git := gittest.Script(t, fmt.Sprintf(`GIT_TRACE2_EVENT=%s.$1 exec git "$@"`, counts))
	s, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git"), Git: git})
	must(t, err)
	w := gittest.NewWork(t)
	id := w.Commit("a", "1")
	r := gittest.Lock(t, gittest.Repo(t, s, "x"))
	must(t, gittest.Take(t, r.Repo, w.Pack("main"), id))
	set(t, r, id)
	for _, command := range []string{"index-pack", "update-ref"} {
		trace, err := os.ReadFile(counts + "." + command)
		if must(t, err); !strings.Contains(string(trace), `"fsync/hardware-flush"`) {
			t.Errorf("git %s syncs nothing", command)
		}
	}
}

// TestALeaseThatEndsWhileAPackIsLookedAt: the pack stays out, though all git work on it is done.
func TestALeaseThatEndsWhileAPackIsLookedAt(t *testing.T) {
	ended := filepath.Join(t.TempDir(), "ended")
	began := filepath.Join(t.TempDir(), "began")
	git := gittest.Script(t, fmt.Sprintf(
		`case "$1" in cat-file) touch %s; while [ ! -e %s ]; do sleep 0.01; done;; esac; exec git "$@"`, began, ended))
	lease, end := context.WithCancel(t.Context())
	r := leased(t, filepath.Join(t.TempDir(), "git"), git, lease)
	w := gittest.NewWork(t)
	id := w.Commit("a", "1")
	pack := w.Pack("main")
	go func() {
		for _, err := os.Stat(began); err != nil; _, err = os.Stat(began) {
			time.Sleep(time.Millisecond)
		}
		end()
		_ = os.WriteFile(ended, nil, 0o600)
	}()
	if err := gittest.Take(t, r.Repo, pack, id); !errors.Is(err, repository.ErrLease) {
		t.Errorf("the pack: %v", err)
	}
	gittest.Untouched(t, r.Repo)
}

// TestALockThatIsGivenBackIsFree at once, also while a git that another goroutine starts still has a
// copy of every descriptor, as it has until it is executed. It is not free while something lives that
// a git of this writer has left behind.
func TestALockThatIsGivenBackIsFree(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	fake := gittest.Script(t, fmt.Sprintf(`case "$1" in
update-ref) (while [ -d %[1]s ] && [ ! -e %[1]s/end ]; do sleep 0.01; done) </dev/null >/dev/null 2>&1 & ;; esac
exec git "$@"`, folder))
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: fake})
	must(t, err)
	r := gittest.Repo(t, s, "x")
	writer := gittest.Lock(t, r)
	copied, err := syscall.Dup(int(writer.Flocked().Fd()))
	must(t, err)
	defer syscall.Close(copied)
	writer.Done()

	gittest.Do(t, r, func(r *repository.Locked) error { return r.DeleteRef(t.Context(), "refs/heads/none") })
	if next, free := r.TryLock(); free {
		next.Done()
		t.Error("the next writer begins while something lives that git started")
	}
	must(t, os.WriteFile(filepath.Join(folder, "end"), nil, 0o600))
	fixture.Await(t, "the next writer begins", func() bool {
		locked, free := r.TryLock()
		if free {
			locked.Done()
		}
		return free
	})
}
