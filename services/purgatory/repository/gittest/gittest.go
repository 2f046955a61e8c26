// Package gittest makes git repositories, and servers of them, for tests: real git, in folders that
// the test throws away.
package gittest

import (
	"bytes"
	"fmt"
	"io"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
)

// Owner is the public key of an owner of repositories.
const Owner = "3bf0c63fcb93463407af97a5e5ee64fa883d107ef9e558472c4eb9aaaefa459d"

// Store opens a store below a folder of the test.
func Store(t testing.TB) *repository.Store {
	t.Helper()
	s, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git")})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// CrampedStore opens a store whose git can write no file larger than this, as on a disk that fills
// up in the middle of one. Tests that use it do not run in parallel: a program that is being
// written cannot be run, and a fork elsewhere holds its file open.
func CrampedStore(t testing.TB, kibibytes int) *repository.Store {
	t.Helper()
	cramped := filepath.Join(t.TempDir(), "git")
	script := fmt.Sprintf("#!/bin/sh\ntrap '' XFSZ\nulimit -f %d\nexec git \"$@\"\n", 2*kibibytes) // in blocks of 512 bytes
	if err := os.WriteFile(cramped, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git"), Git: cramped})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Noise is that many bytes that do not compress.
func Noise(size int) string {
	noise := make([]byte, size)
	x := uint64(1)
	for i := range noise {
		x = x*6364136223846793005 + 1442695040888963407
		noise[i] = byte(x >> 56)
	}
	return string(noise)
}

// Repo makes an empty repository of Owner.
func Repo(t testing.TB, s *repository.Store, identifier string) *repository.Repo {
	t.Helper()
	r, err := s.Repo(nostr.RepoRef{PubKey: Owner, Identifier: identifier})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// Fill puts a pack into a repository as it is.
func Fill(t testing.TB, r *repository.Repo, pack []byte) {
	t.Helper()
	Input(t, r.Path(), pack, "index-pack", "--stdin", "--fix-thin")
}

// Take lets the repository take a pack of a stranger's.
func Take(t testing.TB, r *repository.Repo, pack []byte, wanted ...string) error {
	t.Helper()
	arrived := r.Store().Spool(len(pack), func(int64) error { return nil })
	defer arrived.Close()
	if _, err := arrived.Write(pack); err != nil {
		t.Fatal(err)
	}
	return r.Take(t.Context(), arrived, wanted)
}

// Fsck runs git fsck in a repository, which must be without fault.
func Fsck(t testing.TB, path string) {
	t.Helper()
	out, err := Try(t, path, "fsck", "--full", "--strict", "--no-dangling", "--no-progress")
	for line := range strings.Lines(out) {
		if err != nil || !strings.HasPrefix(line, "notice: ") { // that there are no references
			t.Errorf("git fsck in %s: %v\n%s", path, err, out)
			return
		}
	}
}

func environment() []string {
	return append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.com",
		"GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=init.defaultBranch", "GIT_CONFIG_VALUE_0=main",
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		// Newer gits tidy up in the background after a commit, in a folder that the test may be
		// removing by then.
		"GIT_CONFIG_KEY_2=maintenance.auto", "GIT_CONFIG_VALUE_2=false")
}

// Try runs git in a folder and gives all that it printed, on both channels.
func Try(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Env = dir, environment()
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Git runs git in a folder, which must succeed, and gives what it printed.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := Try(t, dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Input runs git with something on its standard input, and gives its standard output as it is.
func Input(t testing.TB, dir string, stdin []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, environment(), bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return out
}

// Work is a work tree with a history of its own.
type Work struct {
	testing.TB
	Dir string
}

// NewWork makes an empty work tree on branch main.
func NewWork(t testing.TB) *Work {
	t.Helper()
	w := &Work{TB: t, Dir: t.TempDir()}
	w.Git("init", "--quiet")
	return w
}

// Git runs git in the work tree.
func (w *Work) Git(args ...string) string {
	w.Helper()
	return Git(w, w.Dir, args...)
}

// Commit writes a file, commits it and gives the commit's id.
func (w *Work) Commit(file, content string) string {
	w.Helper()
	path := filepath.Join(w.Dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		w.Fatal(err)
	}
	w.Git("add", "--all")
	w.Git("commit", "--quiet", "--message", fmt.Sprintf("write %s", file))
	return w.Git("rev-parse", "HEAD")
}

// Pack packs the objects that the revisions (as in git rev-list: "main", "^old") reach.
func (w *Work) Pack(revisions ...string) []byte {
	w.Helper()
	return Input(w, w.Dir, []byte(strings.Join(revisions, "\n")+"\n"), "pack-objects", "--revs", "--stdout", "--thin", "-q")
}

// PackOf packs exactly these objects.
func (w *Work) PackOf(ids ...string) []byte {
	w.Helper()
	return Input(w, w.Dir, []byte(strings.Join(ids, "\n")+"\n"), "pack-objects", "--stdout", "-q")
}

// Publish clones the work tree into a bare repository below root, with these settings.
func (w *Work) Publish(root, name string, config ...string) string {
	w.Helper()
	path := filepath.Join(root, name)
	Git(w, root, "clone", "--quiet", "--bare", w.Dir, path)
	for i := 0; i+1 < len(config); i += 2 {
		Git(w, path, "config", config[i], config[i+1])
	}
	return path
}

// Backend is a foreign git server: git http-backend, serving every repository below
// root.
func Backend(t testing.TB, root string) *httptest.Server {
	t.Helper()
	exec := Git(t, root, "--exec-path")
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(exec, "git-http-backend"),
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=/nonexistent", "GIT_CONFIG_COUNT=1",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
		Stderr: io.Discard, // it complains of what a test asks it for in vain
	})
	t.Cleanup(server.Close)
	return server
}
