package world

import (
	"crypto/rand"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// Git runs git as a user would have it: no system configuration, a name, nothing that asks.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := TryGit(t, dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// TryGit is Git for commands that may fail; the output is all that git prints. The end of the test
// ends git and the programs that it has started.
func TryGit(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	// In a hook of git GIT_DIR is set, and names the repository of these tests.
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "GIT_") })
	cmd.Env = append(env, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_TERMINAL_PROMPT=0", "HOME="+dir,
		"GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@example.com", "GIT_COMMITTER_NAME=Ann", "GIT_COMMITTER_EMAIL=ann@example.com",
		// Newer gits tidy up in the background after a commit, in a folder that a test may be
		// removing by then.
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=maintenance.auto", "GIT_CONFIG_VALUE_0=false")
	// git speaks HTTP by a program of its own, which would go on, and have the terminal, without
	// it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// WorkTree is a repository of someone who works.
type WorkTree struct {
	t   testing.TB
	Dir string
}

// Git runs git there.
func (w *WorkTree) Git(args ...string) string { w.t.Helper(); return Git(w.t, w.Dir, args...) }

// TryGit runs git there, which may fail.
func (w *WorkTree) TryGit(args ...string) (string, error) {
	w.t.Helper()
	return TryGit(w.t, w.Dir, args...)
}

// Fails runs git there, which must fail and tell the user this.
func (w *WorkTree) Fails(want string, args ...string) {
	w.t.Helper()
	if out, err := w.TryGit(args...); err == nil || !strings.Contains(out, want) {
		w.t.Errorf("git %s: %v, want %q on the terminal:\n%s", strings.Join(args, " "), err, want, out)
	}
}

// NewWorkTree makes a repository with one commit on main.
func NewWorkTree(t testing.TB) *WorkTree {
	t.Helper()
	w := &WorkTree{t: t, Dir: t.TempDir()}
	w.Git("init", "-q", "-b", "main")
	w.Commit("first")
	return w
}

// Commit writes a file, adds what else is new, commits to the branch at hand and returns the
// commit's id.
func (w *WorkTree) Commit(message string) string {
	w.t.Helper()
	must(w.t, os.WriteFile(filepath.Join(w.Dir, "file.txt"), []byte(message+"\n"), 0o600))
	w.Git("add", ".")
	w.Git("commit", "-q", "-m", message)
	return w.Git("rev-parse", "HEAD")
}

// AddNoise adds so many random bytes, which nothing can compress, to the next commit.
func (w *WorkTree) AddNoise(bytes int) {
	w.t.Helper()
	noise := make([]byte, bytes)
	rand.Read(noise)
	must(w.t, os.WriteFile(filepath.Join(w.Dir, "noise.bin"), noise, 0o600))
}

// Refs are the branches and tags, by their full names.
func (w *WorkTree) Refs() map[string]string {
	w.t.Helper()
	refs := map[string]string{}
	for line := range strings.Lines(w.Git("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		refs[name] = id
	}
	return refs
}

// GitServer is a foreign git server on this machine: git's own http-backend over a folder of bare
// repositories.
type GitServer struct {
	URL      string // where it listens
	t        testing.TB
	dir      string
	backend  http.Handler
	closed   atomic.Bool
	requests atomic.Int64
}

// NewGitServer starts a server without repositories.
func NewGitServer(t testing.TB) *GitServer {
	t.Helper()
	g := GitServerIn(t)
	listening := httptest.NewServer(g)
	t.Cleanup(listening.Close)
	g.URL = listening.URL
	return g
}

// GitServerIn makes a server that listens nowhere yet.
func GitServerIn(t testing.TB) *GitServer {
	t.Helper()
	git, err := exec.LookPath("git")
	must(t, err)
	dir := t.TempDir()
	return &GitServer{t: t, dir: dir, backend: &cgi.Handler{Path: git, Args: []string{"http-backend"}, Dir: dir, Env: []string{
		"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull,
	}, InheritEnv: []string{"PATH"}}}
}

// ServeHTTP answers a git client.
func (g *GitServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.requests.Add(1)
	if g.closed.Load() {
		http.Error(w, "closed today", http.StatusServiceUnavailable)
		return
	}
	g.backend.ServeHTTP(w, r)
}

// Shut makes every request fail, or not any more.
func (g *GitServer) Shut(yes bool) { g.closed.Store(yes) }

// Requests is how many requests there were.
func (g *GitServer) Requests() int64 { return g.requests.Load() }

// Host serves a copy of a work tree's repository and gives its URL. It is a copy of files, because
// git needs a shell to clone from a folder.
func (g *GitServer) Host(name string, w *WorkTree) string {
	g.t.Helper()
	bare := filepath.Join(g.dir, name+".git")
	must(g.t, os.CopyFS(bare, os.DirFS(filepath.Join(w.Dir, ".git"))))
	Git(g.t, bare, "config", "core.bare", "true")
	Git(g.t, bare, "config", "uploadpack.allowAnySHA1InWant", "true")
	return g.URL + "/" + name + ".git"
}

// Allow lets anybody push to a repository that is served, and packs it as a push would have.
func (g *GitServer) Allow(name string) {
	g.t.Helper()
	bare := filepath.Join(g.dir, name+".git")
	Git(g.t, bare, "config", "http.receivepack", "true")
	Git(g.t, bare, "repack", "-adq")
}

// Names are what lies in a folder, none if there is no such folder.
func Names(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Disk is how many bytes the files below a folder hold, each counted once however many names it
// has.
func Disk(t testing.TB, dir string) (bytes int64) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil // gone while we walked
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		if file := info.Sys().(*syscall.Stat_t); !seen[file.Ino] {
			seen[file.Ino] = true
			bytes += info.Size()
		}
		return nil
	})
	must(t, err)
	return bytes
}
