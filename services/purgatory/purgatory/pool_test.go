package purgatory_test

import (
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
)

// through is a front door by which everything comes from one client.
func (w *world) through(client, owner, identifier string) string {
	w.Helper()
	door, err := url.Parse(w.door.URL)
	if err != nil {
		w.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(door)
		r.Out.Header.Set(proto.HeaderClient, client)
	}})
	w.Cleanup(proxy.Close)
	return proxy.URL + nip34.RepositoryURLPath(npub(w, owner), identifier)
}

func event(n int) string { return fmt.Sprintf("refs/nostr/%064x", n) }

// TestACrowdOfAnnouncementsSharesOneCopy: each that names a maintainer gets that one's data, is
// cloned like the first, and holds no objects of its own.
func TestACrowdOfAnnouncementsSharesOneCopy(t *testing.T) {
	t.Parallel()
	const crowd = 24
	w := newWorld(t)
	work := gittest.NewWork(t)
	work.Commit("noise", gittest.Noise(1<<20))
	c1 := work.Commit("a", "1")
	w.in.accept(announcement(t, "bob's", bob, "x"))
	var owners []string
	for n := range crowd {
		owner := fmt.Sprintf("%064x", n+1)
		fan := announcement(t, fmt.Sprint("fan ", n), owner, "x")
		fan.Tags = append(fan.Tags, []string{"maintainers", bob})
		w.in.holds("x", finish(fan), proto.SourceLive, time.Hour)
		owners = append(owners, owner)
	}
	w.in.holds("x", state("state", bob, "x", 1001, c1), proto.SourceUser, time.Hour)
	if out, err := w.push(work, bob, "x", "main"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, owner := range owners {
		eventually(t, "the state is applied everywhere", func() bool { return w.ref(owner, "x", mainBranch) == c1 })
		eventually(t, "nothing is kept twice", func() bool {
			own, err := w.repo(owner, "x").HasOwnObjects()
			return err == nil && !own
		})
		size, err := w.repo(owner, "x").Size()
		if err != nil || size > 64<<10 {
			t.Errorf("a repository takes up %d bytes (%v)", size, err)
		}
	}
	for _, owner := range []string{bob, owners[0], owners[crowd-1]} {
		gittest.Git(t, t.TempDir(), "clone", "--quiet", w.address(owner, "x"), "clone")
		gittest.Fsck(t, w.repo(owner, "x").Path())
	}
}

// TestWhatAFirstPushMarksNeedsNoPrune: its references name all of it.
func TestWhatAFirstPushMarksNeedsNoPrune(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--git-prune-interval=20ms")
	w.pushFirst(gittest.NewWork(t))
	pool := w.repo(alice, "x").Pool()
	eventually(t, "the mark goes", func() bool { return pool.Exists() && !pool.Marked() })
	for _, result := range []string{"nothing", "pruned", "error"} {
		if n := w.metric("purgatory_git_prunes_total", result); n > 0 { // -1: it was never counted
			t.Errorf("%v prunes that ended with %q", n, result)
		}
	}
}

// TestPushesWithoutAnEventAreBounded by client, in bytes and in number, over a restart too; others
// do not notice, and neither does who publishes the event first.
func TestPushesWithoutAnEventAreBounded(t *testing.T) {
	t.Parallel()
	limits := []string{"--pending-push-bytes-per-client=1500000", "--pending-push-bytes=4000000", "--pending-pushes-per-client=3"}
	w := newWorld(t, limits...)
	work := gittest.NewWork(t)
	w.pushFirst(work)
	push := func(client string, n int, bytes int) (string, error) {
		t.Helper()
		work.Git("checkout", "--quiet", "-B", "work", "main")
		work.Commit(fmt.Sprint("noise", n), gittest.Noise(bytes)+client+fmt.Sprint(n))
		out, err := gittest.Try(t, work.Dir, "push", w.through(client, alice, "x"), "+HEAD:"+event(n))
		return out, err
	}
	ok := func(client string, n, bytes int) {
		t.Helper()
		if out, err := push(client, n, bytes); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	refused := func(client string, n, bytes int, why string) {
		t.Helper()
		out, err := push(client, n, bytes)
		if err == nil || !strings.Contains(out, why) || !strings.Contains(out, "publish the pull request's event first") {
			t.Fatalf("want %q: %v\n%s", why, err, out)
		}
		if w.ref(alice, "x", event(n)) != "" {
			t.Fatal("refused, and the reference is there")
		}
	}
	eventually(t, "what waits is counted", func() bool { _, err := push("192.0.2.1", 1, 1_000_000); return err == nil })
	refused("192.0.2.1", 2, 1_000_000, "from your address wait for their events, this push would add 97")
	ok("192.0.2.2", 3, 1_000_000)
	ok("192.0.2.1", 4, 1000)
	ok("192.0.2.1", 5, 1000)
	refused("192.0.2.1", 6, 1000, "3 references from your address wait for their events, at most 3 may")

	w.stop()
	w.worker = start(t, "two", w.git, w.Bus.ClientURL(), limits...)
	eventually(t, "the other worker has counted", func() bool { return w.metric("purgatory_pending_pushes") == 4 })
	refused("192.0.2.1", 7, 1000, "3 references from your address wait for their events")
	refused("192.0.2.2", 8, 1_000_000, "from your address wait for their events")
	ok("192.0.2.3", 9, 1_000_000)
	refused("192.0.2.4", 10, 1_400_000, "too much waits for its events on this server")

	// With its event it is not counted.
	work.Git("checkout", "--quiet", "-B", "work", "main")
	commit := work.Commit("big", gittest.Noise(2_000_000))
	pr := pull("pull", bob, commit, alice, "x")
	w.in.holds("x", pr, proto.SourceUser, time.Hour)
	if out, err := gittest.Try(t, work.Dir, "push", w.through("192.0.2.1", alice, "x"), "HEAD:refs/nostr/"+pr.ID); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.released(pr)
}

// TestWhatNothingNeedsIsPruned: a branch that is gone, and pushed commits whose event never came,
// leave no bytes behind.
func TestWhatNothingNeedsIsPruned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--git-prune-interval=20ms", "--purgatory-hold=3s")
	work := gittest.NewWork(t)
	c1 := work.Commit("a", "1")
	c2 := work.Commit("noise", gittest.Noise(1<<20))
	w.in.accept(announcement(t, "announcement", alice, "x"))
	w.in.holds("x", state("large", alice, "x", 1001, c2), proto.SourceUser, time.Hour)
	if out, err := w.push(work, alice, "x", "main"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	work.Git("checkout", "--quiet", "-b", "stranger")
	work.Commit("more", gittest.Noise(1<<20)+"more")
	eventually(t, "a commit is pushed before its event", func() bool {
		_, err := w.push(work, alice, "x", "HEAD:"+event(1))
		return err == nil
	})
	w.in.holds("x", state("small", alice, "x", 1002, c1), proto.SourceUser, time.Hour)
	eventually(t, "the branch has moved back", func() bool { return w.ref(alice, "x", mainBranch) == c1 })
	repo := w.repo(alice, "x")
	eventually(t, "the bytes have gone", func() bool {
		own, err := repo.Size()
		pool, poolErr := repo.Pool().Bytes()
		return err == nil && poolErr == nil && own < 64<<10 && pool < 64<<10
	})
	if w.ref(alice, "x", event(1)) != "" || w.metric("purgatory_pending_pushes") != 0 {
		t.Error("the reference without its event is still there, or counted")
	}
	gittest.Fsck(t, repo.Path())
	gittest.Git(t, t.TempDir(), "clone", "--quiet", w.address(alice, "x"), "clone")
}

// TestAPruneRestoresReferences: objects that an accepted state names outlive a prune of their pool,
// though no reference is left that names them, and the references come back.
func TestAPruneRestoresReferences(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(path string) error{
		"a reference is lost": func(path string) error { return os.Remove(filepath.Join(path, mainBranch)) },
		"the folder is lost":  os.RemoveAll,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			work := gittest.NewWork(t)
			c1 := w.pushFirst(work)
			w.stop()
			repo := w.repo(alice, "x")
			if err := repo.Pool().Orphan(c1); err != nil {
				t.Fatal(err)
			}
			if err := lose(repo.Path()); err != nil {
				t.Fatal(err)
			}
			w.worker = start(t, "two", w.git, w.Bus.ClientURL(), "--git-prune-interval=20ms")
			eventually(t, "the pool is pruned", func() bool { return !repo.Pool().Marked() })
			if got := w.ref(alice, "x", mainBranch); got != c1 {
				t.Fatalf("the branch is %q, want %s", got, c1)
			}
			gittest.Fsck(t, repo.Path())
			gittest.Git(t, t.TempDir(), "clone", "--quiet", w.address(alice, "x"), "clone")
		})
	}
}

// TestFoldersFromBeforePools: data that an older version left is served, and brought to the pool
// without being asked for.
func TestFoldersFromBeforePools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	work := gittest.NewWork(t)
	c1 := work.Commit("a", "1")
	w.in.accept(announcement(t, "announcement", alice, "x"))
	w.in.accept(state("state", alice, "x", 1001, c1))
	w.stop()
	path := w.repo(alice, "x").Path()
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(w.git, "_pools")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	work.Publish(filepath.Dir(path), "x.git")
	w.worker = start(t, "two", w.git, w.Bus.ClientURL())
	eventually(t, "its objects are in the pool", func() bool {
		own, err := w.repo(alice, "x").HasOwnObjects()
		return err == nil && !own
	})
	gittest.Fsck(t, path)
	eventually(t, "it is served", func() bool {
		out, err := gittest.Try(t, t.TempDir(), "ls-remote", w.address(alice, "x"), mainBranch)
		return err == nil && strings.HasPrefix(out, c1)
	})
}

// TestCloneOfAnEmptyRepository sees git's own default branch, whatever a state that waits for its
// data says.
func TestCloneOfAnEmptyRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	work := gittest.NewWork(t)
	c1 := work.Commit("a", "1")
	w.in.holds("x", announcement(t, "announcement", alice, "x"), proto.SourceUser, time.Hour)
	w.in.holds("x", state("state", alice, "x", 1001, c1), proto.SourceUser, time.Hour)
	dir := t.TempDir()
	eventually(t, "it can be cloned", func() bool {
		_, err := gittest.Try(t, dir, "clone", "--quiet", w.address(alice, "x"), "clone")
		return err == nil
	})
	if got := gittest.Git(t, filepath.Join(dir, "clone"), "symbolic-ref", "HEAD"); got != gittest.FirstBranch(t) {
		t.Errorf("HEAD of a clone of nothing is %s, want %s", got, gittest.FirstBranch(t))
	}
	if out, err := w.push(work, alice, "x", "main"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if head, err := w.repo(alice, "x").Head(); err != nil || head != mainBranch {
		t.Errorf("HEAD is %s (%v) when its branch is there", head, err)
	}
}
