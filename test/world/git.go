package world

import (
	"crypto/rand"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// Git runs git as a user would have it: no system configuration, a name, nothing that asks.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := TryGit(t, dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// TryGit is Git for commands that may fail; the output is all that stands on the terminal.
func TryGit(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_TERMINAL_PROMPT=0", "HOME="+dir,
		"GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@example.com", "GIT_COMMITTER_NAME=Ann", "GIT_COMMITTER_EMAIL=ann@example.com")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// WorkTree is a repository of someone who works.
type WorkTree struct {
	t   testing.TB
	Dir string
}

// NewWorkTree makes a repository with one commit on main.
func NewWorkTree(t testing.TB) *WorkTree {
	t.Helper()
	w := &WorkTree{t: t, Dir: t.TempDir()}
	Git(t, w.Dir, "init", "-q", "-b", "main")
	w.Commit("first")
	return w
}

// Commit adds a commit to the branch at hand and gives its id.
func (w *WorkTree) Commit(message string) string {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.Dir, "file.txt"), []byte(message+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	Git(w.t, w.Dir, "add", ".")
	Git(w.t, w.Dir, "commit", "-q", "-m", message)
	return Git(w.t, w.Dir, "rev-parse", "HEAD")
}

// AddNoise adds so many random bytes, which nothing can compress, to the next commit.
func (w *WorkTree) AddNoise(bytes int) {
	w.t.Helper()
	noise := make([]byte, bytes)
	rand.Read(noise)
	if err := os.WriteFile(filepath.Join(w.Dir, "noise.bin"), noise, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// Refs are the branches and tags.
func (w *WorkTree) Refs() map[string]string {
	w.t.Helper()
	refs := map[string]string{}
	for line := range strings.Lines(Git(w.t, w.Dir, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		refs[name] = id
	}
	return refs
}

// GitServer is a foreign git server: git's own http-backend.
type GitServer struct {
	URL      string
	dir      string
	t        testing.TB
	closed   atomic.Bool
	requests atomic.Int64
}

// NewGitServer starts a server without repositories.
func NewGitServer(t testing.TB) *GitServer {
	t.Helper()
	g := &GitServer{dir: t.TempDir(), t: t}
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{Path: git, Args: []string{"http-backend"}, Dir: g.dir, Env: []string{
		"GIT_PROJECT_ROOT=" + g.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull,
	}, InheritEnv: []string{"PATH"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.requests.Add(1)
		if g.closed.Load() {
			http.Error(w, "closed today", http.StatusServiceUnavailable)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	g.URL = server.URL
	return g
}

// Shut makes every request fail, or not any more.
func (g *GitServer) Shut(yes bool) { g.closed.Store(yes) }

// Requests is how many requests there were.
func (g *GitServer) Requests() int64 { return g.requests.Load() }

// Host serves a copy of a work tree's repository and gives its URL.
func (g *GitServer) Host(name string, w *WorkTree) string {
	g.t.Helper()
	Git(g.t, g.dir, "clone", "-q", "--mirror", w.Dir, name+".git")
	Git(g.t, filepath.Join(g.dir, name+".git"), "config", "uploadpack.allowAnySHA1InWant", "true")
	return g.URL + "/" + name + ".git"
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
