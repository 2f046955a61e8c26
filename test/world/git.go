package world

import (
	"context"
	"crypto/rand"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"tendril.dev/test/outside"
)

// Git runs git as a user would have it: no system configuration, a name, nothing that asks.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := outside.RunGit(context.Background(), dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryGit is Git for commands that may fail; the output is all that git prints.
func TryGit(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	return outside.Git(context.Background(), dir, args...)
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
	if err := outside.InitWorkTree(t.Context(), w.Dir); err != nil {
		t.Fatal(err)
	}
	w.Commit("first")
	return w
}

// Commit adds a commit to the branch at hand and gives its id.
func (w *WorkTree) Commit(message string) string {
	w.t.Helper()
	id, err := outside.Commit(w.t.Context(), w.Dir, message)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
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
	refs, err := outside.Refs(w.t.Context(), w.Dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return refs
}

// GitServer is a foreign git server on this machine.
type GitServer struct {
	URL string
	*outside.GitServer
	t testing.TB
}

// NewGitServer starts a server without repositories.
func NewGitServer(t testing.TB) *GitServer {
	t.Helper()
	server, err := outside.NewGitServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	return &GitServer{listening.URL, server, t}
}

// Host serves a copy of a work tree's repository and gives its URL.
func (g *GitServer) Host(name string, w *WorkTree) string {
	g.t.Helper()
	if err := g.GitServer.Host(g.t.Context(), name, w.Dir); err != nil {
		g.t.Fatal(err)
	}
	return g.URL + "/" + name + ".git"
}

// Allow lets anybody push to a repository that is served.
func (g *GitServer) Allow(name string) {
	g.t.Helper()
	if err := g.GitServer.Allow(g.t.Context(), name); err != nil {
		g.t.Fatal(err)
	}
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
