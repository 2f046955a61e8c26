package e2e

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// smallDisk is a disk of so many MiB of its own.
func smallDisk(t *testing.T, mib string) string {
	t.Helper()
	if limit.Memory() < 8<<30 {
		t.Skip("a disk that is full lies in memory, and takes too much of this machine's")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+mib+"m"); err != nil {
		t.Skipf("a disk that can be filled needs the right to mount: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// fill writes a file until the disk has no byte left, but for what is spared.
func fill(t *testing.T, dir string, spare int64) (path string) {
	t.Helper()
	path = filepath.Join(dir, "filling")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	for block := make([]byte, 64<<10); err == nil; {
		var s syscall.Statfs_t
		must(t, syscall.Statfs(dir, &s))
		if spare > 0 && int64(s.Bavail)*s.Bsize <= spare {
			return path
		}
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return path
}

var listening = regexp.MustCompile(`(?m)^listening on (http://\S+)$`)

// cannotStore and cannotPush are what users are told. Neither names a path.
const (
	cannotStore = "error: this service cannot store anything at the moment; try again later"
	cannotPush  = "the repository cannot be written now, try again later"
)

// TestAFullDisk: with no byte left clones, REQs, pages and status go on, events and pushes are
// refused with a sentence, also after a restart, and all goes on by itself when there is room. A
// restart works with 300 MiB left.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		store, git bool // whose disk is full
	}{
		{"the store's and git's", true, true}, {"the store's", true, false}, {"git's", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.store != c.git && os.Getenv("TENDRIL_CHAOS") == "" {
				t.Skip("only with TENDRIL_CHAOS: it takes minutes, and 3 GiB of memory")
			}
			t.Parallel()
			store := smallDisk(t, "1500")
			git := store
			if c.store != c.git {
				git = smallDisk(t, "1500")
			}
			full := store
			if !c.store {
				full = git
			}
			p := world.Start(t, map[string]string{
				"NGIT_RELAY_DATA_PATH": filepath.Join(store, "relay"), "NGIT_GIT_DATA_PATH": filepath.Join(git, "git"),
				"NGIT_WORKER_TTL": "3s",
			})
			repo := p.Host("tree", world.Hosting{})
			issue := func(text string) *nostr.Event { return repo.Owner.Sign(1621, text, repo.Owner.Repo("tree")) }
			before := issue("before")
			p.Accepts(before)
			repo.Work.Commit("more")
			p.Holds(repo.NewState())
			filling := fill(t, full, 0)
			serves := func(when string) {
				t.Helper()
				if c.store {
					await(t, when+": an event is refused", func() bool {
						_, message := p.Submit(issue("refused"))
						return message == cannotStore
					})
				}
				repo.Work.Git("clone", "-q", repo.At(p.Door), filepath.Join(t.TempDir(), "clone"))
				p.Serves(before)
				for _, page := range []string{"/", "/" + repo.Owner.Npub + "/tree"} {
					resp, err := http.Get(p.URL + page)
					must(t, err)
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						t.Errorf("%s: page %s: %s", when, page, resp.Status)
					}
				}
				if out, err := p.Tool("status"); err != nil {
					t.Errorf("%s: status: %v\n%s", when, err, out)
				}
				out, err := world.TryGit(t, repo.Work.Dir, "push", "-q", repo.At(p.Door), "main")
				if err == nil || !strings.Contains(out, cannotPush) || strings.Contains(out, full) {
					t.Errorf("%s: a push: %v, %s", when, err, out)
				}
				if !p.Running() {
					t.Fatalf("%s: the process has ended", when)
				}
			}
			serves("at first")
			time.Sleep(4 * time.Second)
			serves("when the claims would have run out")
			_ = p.Stop()
			p.Restart()
			serves("after a restart")
			must(t, os.Remove(filling))
			await(t, "an event is taken again", func() bool {
				all := listening.FindAllStringSubmatch(p.Output(), -1) // it may have begun again, on another port
				p.URL = all[len(all)-1][1]
				return p.TrySubmit(issue("after")) == nil
			})
			if !p.Running() {
				t.Fatal("the process has ended")
			}
			p.Serves(before)
			await(t, "a push is taken again", func() bool { // whether git can write is looked at every few seconds
				_, err := world.TryGit(t, repo.Work.Dir, "push", "-q", repo.At(p.Door), "main")
				return err == nil
			})
			must(t, repo.Push(t, p.Door, 1, func(*nostr.Event) error { return nil }))

			must(t, p.Stop())
			fill(t, full, 300<<20)
			p.Restart()
			p.Serves(before)
		})
	}
}

// TestAStopHasAnEnd although the data folder was removed under the process.
func TestAStopHasAnEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := world.Start(t, map[string]string{"NGIT_RELAY_DATA_PATH": filepath.Join(dir, "relay"), "NGIT_SHUTDOWN_WAIT": "5s"})
	p.Accepts(fixture.NewPerson().Sign(10317, ""))
	must(t, os.RemoveAll(dir))
	for range 3 {
		_ = p.TrySubmit(fixture.NewPerson().Sign(10317, ""))
	}
	err := p.Stop() // within the patience of the test
	t.Logf("it ended with %v", err)
}
