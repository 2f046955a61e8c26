package outside

import (
	"context"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// Git runs git as a user would have it: no system configuration, a name, nothing that asks. The
// output is all that git prints, also when it fails. The end of ctx ends git and the
// programs that it has started.
func Git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_TERMINAL_PROMPT=0", "HOME="+dir,
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

// RunGit is Git for commands that should not fail: the error has what git said, and the output no
// space around it.
func RunGit(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := Git(ctx, dir, args...)
	out = strings.TrimSpace(out)
	if err != nil {
		return out, fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return out, nil
}

// InitWorkTree makes a repository without commits, with the branch main.
func InitWorkTree(ctx context.Context, dir string) error {
	_, err := RunGit(ctx, dir, "init", "-q", "-b", "main")
	return err
}

// Commit writes a file, adds what else is new, commits to the branch at hand and returns the
// commit's id.
func Commit(ctx context.Context, dir, message string) (string, error) {
	if err := os.WriteFile(filepath.Join(dir, "file.txt"), []byte(message+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write into the work tree: %w", err)
	}
	if _, err := RunGit(ctx, dir, "add", "."); err != nil {
		return "", err
	}
	if _, err := RunGit(ctx, dir, "commit", "-q", "-m", message); err != nil {
		return "", err
	}
	return RunGit(ctx, dir, "rev-parse", "HEAD")
}

// Refs returns the branches and tags of a work tree, by their full names.
func Refs(ctx context.Context, dir string) (map[string]string, error) {
	out, err := RunGit(ctx, dir, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")
	if err != nil {
		return nil, err
	}
	refs := map[string]string{}
	for line := range strings.Lines(out) {
		name, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		refs[name] = id
	}
	return refs, nil
}

// GitServer is a foreign git server: git's own http-backend over a folder of bare repositories.
type GitServer struct {
	dir      string
	backend  http.Handler
	closed   atomic.Bool
	requests atomic.Int64
}

// NewGitServer makes a server of a folder.
func NewGitServer(dir string) (*GitServer, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	return &GitServer{dir: dir, backend: &cgi.Handler{Path: git, Args: []string{"http-backend"}, Dir: dir, Env: []string{
		"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull,
	}, InheritEnv: []string{"PATH"}}}, nil
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

// Host serves a copy of a work tree's repository as /<name>.git. It is a copy of files, because git
// needs a shell to clone from a folder.
func (g *GitServer) Host(ctx context.Context, name, workTree string) error {
	bare := filepath.Join(g.dir, name+".git")
	if err := os.CopyFS(bare, os.DirFS(filepath.Join(workTree, ".git"))); err != nil {
		return fmt.Errorf("copy a repository to the git server: %w", err)
	}
	for _, setting := range [][2]string{{"core.bare", "true"}, {"uploadpack.allowAnySHA1InWant", "true"}} {
		if _, err := RunGit(ctx, bare, "config", setting[0], setting[1]); err != nil {
			return err
		}
	}
	return nil
}

// Allow lets anybody push to a repository that is served, and packs it as a push would have.
func (g *GitServer) Allow(ctx context.Context, name string) error {
	bare := filepath.Join(g.dir, name+".git")
	if _, err := RunGit(ctx, bare, "config", "http.receivepack", "true"); err != nil {
		return err
	}
	_, err := RunGit(ctx, bare, "repack", "-adq")
	return err
}
