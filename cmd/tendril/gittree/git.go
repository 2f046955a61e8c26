package gittree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// Git runs git with a clean environment.
type Git struct {
	// Program is the git program, a name or a path. Default "git".
	Program string
	// Config is more configuration, as `git -c key=value` takes it.
	Config []string
}

// ErrBusy is a server that asks to come again later.
var ErrBusy = errors.New("the server has no room at the moment")

// inherited are the variables that git sees of ours: how to find programs and the way to a server.
var inherited = []string{
	"PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO",
	"http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy",
}

func (g Git) environment() []string {
	env := []string{
		// Where a folder is no repository, git would go up, and work on one that the folder lies
		// in.
		"GIT_DIR=.",
		"HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "GIT_ALLOW_PROTOCOL=file:http:https", "GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0",
	}
	for _, name := range inherited {
		value, set := os.LookupEnv(name)
		if strings.EqualFold(name, "no_proxy") {
			value, set = strings.Trim(value+",127.0.0.1,::1,localhost", ","), true
		}
		if set {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// safe is the configuration of every command: the folders may be another user's, and what lies in
// them must not run anything.
var safe = []string{"safe.directory=*", "core.hooksPath=/dev/null", "core.attributesFile=/dev/null", "gc.auto=0", "maintenance.auto=false", "core.fsync=committed,loose-object", "fetch.unpackLimit=1"}

// Error is a git command that failed.
type Error struct {
	Command string // "fetch"
	Said    string // what git wrote to standard error, its last lines
	Err     error
}

// Error is one line.
func (e *Error) Error() string {
	if e.Said == "" {
		return fmt.Sprintf("git %s: %v", e.Command, e.Err)
	}
	return fmt.Sprintf("git %s: %s", e.Command, strings.Join(strings.Split(e.Said, "\n"), "; "))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// command prepares a command in a folder.
func (g Git) command(ctx context.Context, dir string, args ...string) (cmd *exec.Cmd, said *tail) {
	program := g.Program
	if program == "" {
		program = "git"
	}
	var all []string
	for _, c := range append(safe[:len(safe):len(safe)], g.Config...) {
		all = append(all, "-c", c)
	}
	cmd, said = exec.CommandContext(ctx, program, append(all, args...)...), &tail{}
	cmd.Dir, cmd.Env, cmd.Stderr = dir, g.environment(), said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd, said
}

// run runs a command in a folder and gives what it printed.
func (g Git) run(ctx context.Context, dir, stdin string, args ...string) (string, error) {
	cmd, said := g.command(ctx, dir, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = strings.NewReader(stdin), &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return out.String(), &Error{Command: args[0], Said: said.String(), Err: err}
	}
	return out.String(), nil
}

// Mirror makes the repository at path have exactly the references of another, a folder or a URL,
// and all that they reach as its own. One that is not there is made, and appears when it is whole.
func (g Git) Mirror(ctx context.Context, from, path string) error {
	if _, err := os.Stat(path); err == nil {
		return g.fill(ctx, from, path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	if err := os.Chmod(temporary, 0o755); err != nil {
		return err
	}
	if _, err := g.run(ctx, temporary, "", "init", "--quiet", "--bare", "--template=", "."); err != nil {
		return err
	}
	if err := g.fill(ctx, from, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// fill brings a repository in line with another.
func (g Git) fill(ctx context.Context, from, path string) error {
	bring := g.copyFolder
	if isURL(from) {
		bring = g.fetch
	}
	if err := bring(ctx, from, path); err != nil {
		return err
	}
	head, err := g.head(ctx, from)
	if err != nil || head == "" {
		return err
	}
	_, err = g.run(ctx, path, "", "symbolic-ref", "HEAD", head)
	return err
}

func (g Git) fetch(ctx context.Context, from, path string) error {
	_, err := g.run(ctx, path, "", "fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head", "--update-head-ok", "--", from, "+refs/*:refs/*")
	return err
}

// head is the branch that HEAD of a folder or URL follows; "": it does not say.
func (g Git) head(ctx context.Context, from string) (string, error) {
	if !isURL(from) {
		head, err := g.run(ctx, from, "", "symbolic-ref", "--quiet", "HEAD")
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 1 {
			return "", nil // it names a commit
		}
		return strings.TrimSpace(head), err
	}
	out, err := g.run(ctx, os.TempDir(), "", "ls-remote", "--symref", "--", from, "HEAD")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if branch, is := strings.CutPrefix(line, "ref: "); is {
			branch, _, _ = strings.Cut(branch, "\t")
			return branch, nil
		}
	}
	return "", nil
}

func isURL(from string) bool { return strings.Contains(from, "://") }

// References are those of a repository that name objects, by full name. Symbolic ones are left out.
func (g Git) References(ctx context.Context, path string) (map[string]string, error) {
	return g.references(ctx, path, "%(objectname) %(refname) %(symref)")
}

// references lists references whose format gives two words.
func (g Git) references(ctx context.Context, path, format string) (map[string]string, error) {
	out, err := g.run(ctx, path, "", "for-each-ref", "--format="+format)
	if err != nil {
		return nil, err
	}
	refs := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 2 {
			refs[fields[1]] = fields[0]
		}
	}
	return refs, nil
}

// ErrMissing are references to objects that a repository does not have.
var ErrMissing = errors.New("the repository lacks an object")

// Push sends references of a repository, and what they reach, to a URL. With exact the branches and
// tags there are these and no others afterwards. The repository is only read. [ErrMissing]: it has
// not all to be pushed; [ErrBusy]: try again later.
func (g Git) Push(ctx context.Context, from, url string, refs map[string]string, exact bool) error {
	staging, err := g.stage(ctx, from, refs)
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	args := []string{"push", "--quiet", "--force", "--atomic"}
	patterns := []string{"refs/*:refs/*"}
	if exact {
		args = append(args, "--prune")
		patterns = []string{"refs/heads/*:refs/heads/*", "refs/tags/*:refs/tags/*"}
	}
	_, err = g.run(ctx, staging, "", append(append(args, "--", url), patterns...)...)
	var failed *Error
	if errors.As(err, &failed) && (strings.Contains(failed.Said, "error: 429") || strings.Contains(failed.Said, "error: 503")) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// stage makes a repository that borrows from another and has just these references.
func (g Git) stage(ctx context.Context, from string, refs map[string]string) (staging string, err error) {
	folders, err := objectFolders(from)
	if err != nil {
		return "", err
	}
	if staging, err = os.MkdirTemp("", "tendril-push-"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(staging)
		}
	}()
	if _, err := g.run(ctx, staging, "", "init", "--quiet", "--bare", "--template=", "."); err != nil {
		return "", err
	}
	info := filepath.Join(staging, "objects", "info")
	if err := os.MkdirAll(info, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(info, "alternates"), []byte(strings.Join(folders, "\n")+"\n"), 0o644); err != nil {
		return "", err
	}
	var commands strings.Builder
	for name, id := range refs {
		fmt.Fprintf(&commands, "create %s %s\n", name, id)
	}
	if _, err := g.run(ctx, staging, commands.String(), "update-ref", "--stdin"); err != nil {
		return "", fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return staging, nil
}

// tail keeps the last bytes written to it.
type tail struct{ kept []byte }

const maxSaid = 2 << 10

// Write never fails and never grows beyond its bound.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - maxSaid; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// String is what was said, without control characters: a server may have said it.
func (t *tail) String() string {
	clean := strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\r':
			return '\n'
		case unicode.IsControl(c):
			return -1
		}
		return c
	}, strings.ToValidUTF8(string(t.kept), "?"))
	var lines []string
	for line := range strings.Lines(clean) {
		if line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "remote:")); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
