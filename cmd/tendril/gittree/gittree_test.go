package gittree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const npub = "npub1sg6plzptd64u62a878hep2kev88swjh3tw00gjsfl8f237lmu63q0uf63m"

// run runs git as a user would.
func run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
		// Newer gits tidy up in the background, in a folder that the test may be removing by then.
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=maintenance.auto", "GIT_CONFIG_VALUE_0=false")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// bare makes a bare repository with two branches, a tag and a reference below refs/nostr/.
func bare(t testing.TB, path string) {
	t.Helper()
	run(t, t.TempDir(), "init", "-q", "--bare", "-b", "main", path)
	tree := run(t, path, "hash-object", "-t", "tree", "-w", "--stdin")
	commit := run(t, path, "commit-tree", "-m", "first", tree)
	second := run(t, path, "commit-tree", "-m", "second", "-p", commit, tree)
	for name, id := range map[string]string{
		"refs/heads/main": second, "refs/heads/old": commit, "refs/tags/v1": commit, "refs/nostr/" + strings.Repeat("1", 64): second,
	} {
		run(t, path, "update-ref", name, id)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := map[string]string{"plain": "plain", "a%20b": "a b", "c d": "c d", "100%": "100%", "%41": "A"} // identifiers by name
	for name := range want {
		run(t, dir, "init", "-q", "--bare", filepath.Join(dir, npub, name+".git"))
	}
	for _, folder := range []string{"npub1wrong/x.git", npub + "/nothing.git", npub + "/repo/objects", "other/y.git/objects"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range found {
		if f.Npub != npub {
			t.Errorf("%+v", f)
		}
		got[strings.TrimSuffix(filepath.Base(f.At), ".git")] = f.Identifier
	}
	if !maps.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err := Find(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there has repositories")
	}
}

// TestADamagedCopyIsNotTheRepositoryAround: copies may lie in another repository. Where one of
// them is none any more, git is not to work on that.
func TestADamagedCopyIsNotTheRepositoryAround(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	around, from := filepath.Join(dir, "around"), filepath.Join(dir, "from.git")
	bare(t, from)
	run(t, dir, "init", "-q", "-b", "mine", around)
	run(t, around, "commit", "-q", "--allow-empty", "-m", "mine")
	before := run(t, around, "for-each-ref")
	copied := filepath.Join(around, "copies", npub, "x.git")
	if err := Git("git").Mirror(t.Context(), from, copied); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, "HEAD"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Git("git").Mirror(t.Context(), from, copied); err == nil {
		t.Error("a damaged copy was brought up to date")
	}
	if now := run(t, around, "for-each-ref"); now != before {
		t.Errorf("the repository around has other references now:\n%s\nbefore:\n%s", now, before)
	}
}

// TestMirror: a copy has everything as its own, follows what changes, and is not there when it
// could not be made.
func TestMirror(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, pool, path := filepath.Join(dir, "from.git"), filepath.Join(dir, "pool.git"), filepath.Join(dir, "out", "to.git")
	bare(t, pool)
	run(t, dir, "init", "-q", "--bare", "-b", "main", from)
	alternates := filepath.Join(from, "objects", "info", "alternates")
	if err := os.WriteFile(alternates, []byte("../../pool.git/objects\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refs := map[string]string{}
	for name, id := range refsOf(t, pool) {
		refs[name] = id
		run(t, from, "update-ref", name, id)
	}
	run(t, from, "symbolic-ref", "HEAD", "refs/heads/old")
	ctx := t.Context()
	if err := Git("git").Mirror(ctx, from, path); err != nil {
		t.Fatal(err)
	}
	if got := refsOf(t, path); fmt.Sprint(got) != fmt.Sprint(refs) {
		t.Errorf("references %v, want %v", got, refs)
	}
	run(t, path, "fsck", "--strict")
	if _, err := os.Stat(filepath.Join(path, "objects", "info", "alternates")); err == nil {
		t.Error("the copy borrows objects")
	}
	if head := run(t, path, "symbolic-ref", "HEAD"); head != "refs/heads/old" {
		t.Errorf("HEAD is %s", head)
	}

	run(t, from, "update-ref", "-d", "refs/tags/v1")
	run(t, from, "symbolic-ref", "HEAD", "refs/heads/main")
	if err := Git("git").Mirror(ctx, from, path); err != nil {
		t.Fatal(err)
	}
	delete(refs, "refs/tags/v1")
	if got := refsOf(t, path); fmt.Sprint(got) != fmt.Sprint(refs) || run(t, path, "symbolic-ref", "HEAD") != "refs/heads/main" {
		t.Errorf("later: references %v, want %v", got, refs)
	}

	// A branch takes the place of a folder of branches, and the other way round.
	run(t, from, "update-ref", "-d", "refs/heads/old")
	run(t, from, "update-ref", "refs/heads/old/er", refs["refs/heads/main"])
	tree := run(t, from, "rev-parse", "refs/heads/main^{tree}")
	third := run(t, from, "commit-tree", "-m", "third", "-p", refs["refs/heads/main"], tree)
	run(t, from, "update-ref", "refs/heads/main", third)
	if err := Git("git").Mirror(ctx, from, path); err != nil {
		t.Fatal(err)
	}
	if got, want := refsOf(t, path), refsOf(t, from); fmt.Sprint(got) != fmt.Sprint(want) || got["refs/heads/main"] != third {
		t.Errorf("after a change of both: references %v, want %v", got, want)
	}
	run(t, path, "fsck", "--strict")
	broken := filepath.Join(dir, "broken.git")
	run(t, dir, "clone", "-q", "--bare", "--no-hardlinks", path, broken)
	run(t, broken, "update-ref", "refs/heads/new", run(t, broken, "commit-tree", "-m", "x", tree))
	lose(t, broken, run(t, broken, "rev-parse", "refs/heads/new"))
	if err := Git("git").Mirror(ctx, broken, path); err == nil || fmt.Sprint(refsOf(t, path)) != fmt.Sprint(refsOf(t, from)) {
		t.Errorf("a repository that lacks an object is copied: %v", err)
	}

	empty := filepath.Join(dir, "empty.git")
	run(t, dir, "init", "-q", "--bare", "-b", "trunk", empty)
	if err := Git("git").Mirror(ctx, empty, filepath.Join(dir, "out", "empty.git")); err != nil {
		t.Errorf("an empty repository: %v", err)
	}
	if err := Git("git").Mirror(ctx, filepath.Join(dir, "none.git"), filepath.Join(dir, "out", "none.git")); !says(err, "git fetch: ", "none.git") {
		t.Errorf("what is not there: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "out", ".*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "out", "none.git")); err == nil {
		t.Error("a copy of nothing is there")
	}
}

// lose removes a loose object.
func lose(t testing.TB, path, id string) {
	t.Helper()
	if err := os.Remove(filepath.Join(path, "objects", id[:2], id[2:])); err != nil {
		t.Fatal(err)
	}
}

func refsOf(t testing.TB, path string) map[string]string {
	t.Helper()
	refs := map[string]string{}
	for line := range strings.Lines(run(t, path, "for-each-ref", "--format=%(refname) %(objectname)")) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		refs[name] = id
	}
	return refs
}

// backend serves the repositories of a folder by HTTP, for pushes too.
func backend(t testing.TB, root string) string {
	t.Helper()
	server := httptest.NewServer(handler(t, root))
	t.Cleanup(server.Close)
	return server.URL
}

func handler(t testing.TB, root string) http.Handler {
	program := filepath.Join(run(t, root, "--exec-path"), "git-http-backend")
	return &cgi.Handler{Path: program, Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}}
}

func TestPush(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from.git"), filepath.Join(dir, "to.git")
	bare(t, from)
	run(t, dir, "init", "-q", "--bare", to)
	run(t, to, "config", "http.receivepack", "true")
	// What is in the repository's own configuration is not run.
	run(t, from, "config", "push.gpgSign", "true")
	run(t, from, "config", "gpg.program", "/nonexistent")
	run(t, from, "symbolic-ref", "refs/heads/alias", "refs/heads/main")
	server, ctx, all := backend(t, dir), t.Context(), refsOf(t, from)
	delete(all, "refs/heads/alias")
	pull := "refs/nostr/" + strings.Repeat("1", 64)
	any := func(string) bool { return true }
	push := func(exact bool, wanted func(string) bool, prefixes ...string) int {
		t.Helper()
		count, err := Git("git").Push(ctx, from, server+"/to.git", exact, wanted, prefixes...)
		if err != nil {
			t.Error(err)
		}
		return count
	}
	if n := push(false, func(name string) bool { return name == pull }, "refs/nostr/"); n != 1 {
		t.Errorf("%d are pushed", n)
	}
	if n := push(false, func(string) bool { return false }, "refs/nostr/"); n != 0 {
		t.Errorf("%d are pushed of none", n)
	}
	for range 2 {
		if n := push(true, any, "refs/heads/", "refs/tags/"); n != 3 {
			t.Errorf("%d are pushed", n)
		}
		if got := refsOf(t, to); !maps.Equal(got, all) {
			t.Errorf("references %v, want %v", got, all)
		}
	}
	for _, args := range [][]string{{"-d", "refs/heads/old"}, {"refs/heads/main", all["refs/heads/old"]}} {
		run(t, from, append([]string{"update-ref"}, args...)...)
	}
	push(true, any, "refs/heads/", "refs/tags/")
	all["refs/heads/main"] = all["refs/heads/old"]
	delete(all, "refs/heads/old")
	if got := refsOf(t, to); !maps.Equal(got, all) {
		t.Errorf("after a change: references %v, want %v", got, all)
	}

	if _, err := Git("git").Push(ctx, from, server+"/none.git", true, any, "refs/heads/"); !NotFound(err) {
		t.Errorf("a repository that is not there: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := Git("git").Push(ended, from, server+"/to.git", true, any, "refs/heads/"); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
	gone := run(t, from, "commit-tree", "-m", "gone", all["refs/heads/main"]+"^{tree}")
	run(t, from, "update-ref", "refs/heads/main", gone)
	lose(t, from, gone)
	if _, err := Git("git").Push(ctx, from, server+"/to.git", true, any, "refs/heads/"); err == nil {
		t.Error("an object that is not there is pushed")
	}
}

func init() { busyPause = time.Millisecond }

// TestAServerWithoutRoomIsAskedAgain until it has room, or too often.
func TestAServerWithoutRoomIsAskedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bare(t, filepath.Join(dir, "x.git"))
	for refusals, fails := range map[int]bool{3: false, 1000: true} {
		var asked atomic.Int64
		backend := handler(t, dir)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if int(asked.Add(1)) <= refusals {
				w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[asked.Load()%2])
				return
			}
			backend.ServeHTTP(w, r)
		}))
		defer server.Close()
		err := Git("git").Mirror(t.Context(), server.URL+"/x.git", filepath.Join(t.TempDir(), "x.git"))
		if (err != nil) != fails || fails && asked.Load() != int64(busyTries) {
			t.Errorf("%d refusals: %v after %d requests", refusals, err, asked.Load())
		}
	}
}
