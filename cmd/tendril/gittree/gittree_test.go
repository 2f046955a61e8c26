package gittree

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

const npub = "npub1sg6plzptd64u62a878hep2kev88swjh3tw00gjsfl8f237lmu63q0uf63m"

var pull = "refs/nostr/" + strings.Repeat("1", 64)

var must = fixture.Must

// bare makes root/name, a bare repository with two branches, a tag and a pull request.
func bare(t testing.TB, root, name string) (path string) {
	t.Helper()
	work := gittest.NewWork(t)
	work.Commit("file", "first")
	work.Git("branch", "old")
	work.Git("tag", "v1")
	work.Git("update-ref", pull, work.Commit("file", "second"))
	path = work.Publish(root, name)
	gittest.Git(t, path, "fetch", "-q", work.Dir, "+refs/nostr/*:refs/nostr/*")
	return path
}

// refsOf are all references of a repository, as text.
func refsOf(t testing.TB, path string) string { return gittest.Git(t, path, "for-each-ref") }

// lack makes a branch of a repository name a commit that is not there.
func lack(t testing.TB, path, branch string) {
	t.Helper()
	id := gittest.Git(t, path, "commit-tree", "-m", "gone", "main^{tree}")
	gittest.Git(t, path, "update-ref", branch, id)
	must(t, os.Remove(filepath.Join(path, "objects", id[:2], id[2:])))
}

func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := map[string]string{"plain": "plain", "a%20b": "a%20b", "c d": "c%20d", "100%": "100%25", "%41": "A"}
	for name := range want {
		gittest.Git(t, dir, "init", "-q", "--bare", filepath.Join(dir, npub, name+".git"))
	}
	for _, folder := range []string{"npub1wrong/x.git", npub + "/nothing.git", npub + "/repo/objects", "other/y.git/objects"} {
		must(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	found, err := Find(dir)
	if err != nil || len(found) != len(want) {
		t.Errorf("%v, %v", found, err)
	}
	for _, r := range found {
		if name := want[strings.TrimSuffix(filepath.Base(r.At), ".git")]; r.Name != npub+"/"+name+".git" {
			t.Errorf("%+v, want %s", r, name)
		}
	}
	if _, err := Find(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there has repositories")
	}
}

// TestADamagedCopyIsNotTheRepositoryAround: copies may lie in another repository. Where one of them
// is none any more, git must not work on that.
func TestADamagedCopyIsNotTheRepositoryAround(t *testing.T) {
	t.Parallel()
	from, around := bare(t, t.TempDir(), "from.git"), gittest.NewWork(t)
	around.Commit("file", "mine")
	before := refsOf(t, around.Dir)
	copied := filepath.Join(around.Dir, "copies", npub, "x.git")
	must(t, Mirror(t.Context(), from, copied))
	must(t, os.WriteFile(filepath.Join(copied, "HEAD"), nil, 0o644))
	if err := Mirror(t.Context(), from, copied); err == nil {
		t.Error("a damaged copy was brought up to date")
	}
	if now := refsOf(t, around.Dir); now != before {
		t.Errorf("the repository around has other references now: %v", now)
	}
}

// TestMirror: a copy has everything as its own, follows what changes, and is not there when it
// could not be made.
func TestMirror(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "out", "to.git")
	pool := bare(t, dir, "pool.git")
	from := filepath.Join(dir, "from.git") // whose objects are elsewhere
	gittest.Git(t, dir, "clone", "-q", "--bare", "--shared", pool, from)
	git := func(args ...string) string { return gittest.Git(t, from, args...) }
	for _, c := range []struct {
		name   string
		change func()
	}{
		{"at first", func() { git("symbolic-ref", "HEAD", "refs/heads/old") }},
		{"one tag less", func() {
			git("update-ref", "-d", "refs/tags/v1")
			git("symbolic-ref", "HEAD", "refs/heads/main")
		}},
		{"a folder of branches where a branch was", func() {
			git("update-ref", "-d", "refs/heads/old")
			git("update-ref", "refs/heads/old/er", "main")
			git("update-ref", "refs/heads/main", git("commit-tree", "-m", "third", "-p", "main", "main^{tree}"))
		}},
	} {
		c.change()
		if err := Mirror(t.Context(), from, path); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got, want := refsOf(t, path), refsOf(t, from); got != want {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
		if got, want := gittest.Git(t, path, "symbolic-ref", "HEAD"), git("symbolic-ref", "HEAD"); got != want {
			t.Errorf("%s: HEAD is %s, want %s", c.name, got, want)
		}
	}
	gittest.Fsck(t, path)
	if _, err := os.Stat(filepath.Join(path, "objects", "info", "alternates")); err == nil {
		t.Error("the copy borrows objects")
	}
	before := refsOf(t, path)
	lack(t, from, "refs/heads/new")
	if err := Mirror(t.Context(), from, path); err == nil || refsOf(t, path) != before {
		t.Errorf("a repository that lacks an object is copied: %v", err)
	}
	empty := filepath.Join(dir, "empty.git")
	gittest.Git(t, dir, "init", "-q", "--bare", empty)
	if err := Mirror(t.Context(), empty, filepath.Join(dir, "out", "empty.git")); err != nil {
		t.Errorf("an empty repository: %v", err)
	}
	none := filepath.Join(dir, "out", "none.git")
	if err := Mirror(t.Context(), filepath.Join(dir, "none.git"), none); err == nil || !strings.Contains(err.Error(), "none.git") {
		t.Errorf("what is not there: %v", err)
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("a copy of nothing is there")
	}
}

func TestPush(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := bare(t, dir, "from.git"), filepath.Join(dir, "to.git")
	gittest.Git(t, dir, "init", "-q", "--bare", to)
	gittest.Git(t, to, "config", "http.receivepack", "true")
	// What the repository's own configuration names is not run.
	gittest.Git(t, from, "config", "push.gpgSign", "true")
	gittest.Git(t, from, "config", "gpg.program", "/nonexistent")
	gittest.Git(t, from, "symbolic-ref", "refs/heads/alias", "refs/heads/main")
	server := gittest.Backend(t, dir).URL
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, npub), 0o755))
	moved := filepath.Join(root, npub, "from.git")
	must(t, os.Rename(from, moved))
	from = moved
	pushIn := func(ctx context.Context, url string, pulls map[string]bool) (int, error) {
		f, err := OpenFolder(root)
		must(t, err)
		defer f.Close()
		all, passed, err := f.List()
		if err != nil || len(all) != 1 || len(passed) > 0 {
			t.Fatalf("%+v, %+v, %v", all, passed, err)
		}
		v, err := f.View(all[0])
		must(t, err)
		defer v.Close()
		if pulls == nil {
			return v.Push(ctx, server+url)
		}
		own := v.Pulls()
		maps.DeleteFunc(own, func(id, _ string) bool { return !pulls[id] })
		return v.PushPulls(ctx, server+url, own)
	}
	push := func(url string, pulls map[string]bool) (int, error) { return pushIn(t.Context(), url, pulls) }
	for _, c := range []struct {
		change []string
		pulls  map[string]bool
		count  int
	}{
		{nil, map[string]bool{strings.Repeat("1", 64): true}, 1},
		{nil, map[string]bool{strings.Repeat("2", 64): true}, 0},
		{nil, nil, 3},
		{nil, nil, 3},
		{[]string{"update-ref", "-d", "refs/heads/old"}, nil, 2},
		{[]string{"update-ref", "refs/heads/main", "refs/tags/v1"}, nil, 2},
	} {
		if c.change != nil {
			gittest.Git(t, from, c.change...)
		}
		if n, err := push("/to.git", c.pulls); n != c.count || err != nil {
			t.Errorf("%v: %d are pushed, %v", c, n, err)
		}
	}
	gittest.Git(t, from, "symbolic-ref", "-d", "refs/heads/alias")
	if got, want := refsOf(t, to), refsOf(t, from); got != want {
		t.Errorf("references %v, want %v", got, want)
	}
	if _, err := push("/none.git", nil); !NotFound(err) {
		t.Errorf("a repository that is not there: %v", err)
	}
	lack(t, from, "refs/heads/main")
	if _, err := push("/to.git", nil); err == nil {
		t.Error("an object that is not there is pushed")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pushIn(ended, "/to.git", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
}

func init() { busyPause = time.Millisecond }

// TestAServerWithoutRoomIsAskedAgain until it has room, or too often.
func TestAServerWithoutRoomIsAskedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bare(t, dir, "x.git")
	backend := gittest.Backend(t, dir).Config.Handler
	for refusals, fails := range map[int]bool{3: false, 1000: true} {
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n := int(asked.Add(1)); n <= refusals {
				w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[n%2])
				return
			}
			backend.ServeHTTP(w, r)
		}))
		defer server.Close()
		err := Mirror(t.Context(), server.URL+"/x.git", filepath.Join(t.TempDir(), "x.git"))
		if (err != nil) != fails || fails && asked.Load() != int64(busyTries) {
			t.Errorf("%d refusals: %v after %d requests", refusals, err, asked.Load())
		}
	}
}
