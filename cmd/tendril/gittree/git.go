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
}

// ErrBusy is a server that asks to come again later, ErrMissing a reference to an object that a
// repository does not have.
var (
	ErrBusy    = errors.New("the server has no room at the moment")
	ErrMissing = errors.New("the repository lacks an object")
)

// inherited are the variables that git sees of ours: how to find programs and the way to a server.
var inherited = []string{
	"PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO",
	"http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy",
}

func environment() []string {
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
var safe = []string{
	"-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.attributesFile=/dev/null",
	"-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.fsync=committed,loose-object", "-c", "fetch.unpackLimit=1",
}

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

// NotFound reports whether git says that a server has no such repository.
func NotFound(err error) bool {
	var failed *Error
	return errors.As(err, &failed) && strings.Contains(failed.Said, "fatal: repository '") && strings.Contains(failed.Said, "' not found")
}

func (g Git) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	program := g.Program
	if program == "" {
		program = "git"
	}
	cmd := exec.CommandContext(ctx, program, append(safe[:len(safe):len(safe)], args...)...)
	cmd.Dir, cmd.Env = dir, environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run runs a command in a folder and gives what it printed.
func (g Git) run(ctx context.Context, dir, stdin string, args ...string) (string, error) {
	cmd := g.command(ctx, dir, args...)
	cmd.Stdin = strings.NewReader(stdin)
	return output(ctx, cmd, args[0])
}

func output(ctx context.Context, cmd *exec.Cmd, name string) (string, error) {
	var out bytes.Buffer
	var said tail
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return out.String(), &Error{Command: name, Said: said.String(), Err: err}
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
	if err := g.initBare(ctx, temporary); err != nil {
		return err
	}
	if err := g.fill(ctx, from, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func (g Git) initBare(ctx context.Context, path string) error {
	_, err := g.run(ctx, path, "", "init", "--quiet", "--bare", "--template=", ".")
	return err
}

// fill brings a repository in line with another.
func (g Git) fill(ctx context.Context, from, path string) error {
	args := []string{"--", from}
	if !strings.Contains(from, "://") {
		absolute, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		// git starts another one there, which gets none of this configuration.
		args = []string{"--upload-pack=git -c 'safe.directory=*' upload-pack", "--", absolute}
	}
	fetch := func(atomic string) error {
		command := []string{"fetch", atomic, "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head", "--update-head-ok"}
		_, err := g.run(ctx, path, "", append(append(command, args...), "+refs/*:refs/*")...)
		return err
	}
	err := fetch("--atomic")
	if failed, ok := errors.AsType[*Error](err); ok && strings.Contains(failed.Said, "cannot ") {
		// A branch stands where a folder of branches comes: what goes must go first.
		err = fetch("--no-atomic")
	}
	if err != nil {
		return err
	}
	listed, err := g.run(ctx, path, "", append(append([]string{"ls-remote", "--symref"}, args...), "HEAD")...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(listed) {
		if branch, is := strings.CutPrefix(line, "ref: "); is {
			branch, _, _ = strings.Cut(branch, "\t")
			_, err = g.run(ctx, path, "", "symbolic-ref", "HEAD", branch)
			break
		}
	}
	return err
}

// References are those of a repository that name objects, by full name. Symbolic ones are left out.
func (g Git) References(ctx context.Context, path string) (map[string]string, error) {
	out, err := g.run(ctx, path, "", "for-each-ref", "--format=%(objectname) %(refname) %(symref)")
	return references(out), err
}

// references reads lines of an object and the name of a reference.
func references(list string) map[string]string {
	refs := map[string]string{}
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) == 2 && !strings.HasSuffix(fields[1], "^{}") {
			refs[fields[1]] = fields[0]
		}
	}
	return refs
}

// Push makes references at a URL name objects of a repository, which is only read. With exact the
// branches and tags there are these and no others afterwards. [ErrMissing]: the repository has not
// all of them; [ErrBusy]: try again later.
func (g Git) Push(ctx context.Context, from, url string, refs map[string]string, exact bool) error {
	objects, err := filepath.Abs(filepath.Join(from, "objects"))
	if err != nil {
		return err
	}
	if err := g.hasAll(ctx, from, refs); err != nil {
		return err
	}
	// The repository's own configuration may name programs to run: git works in an empty one.
	empty, err := os.MkdirTemp("", "tendril-push-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(empty)
	if err := g.initBare(ctx, empty); err != nil {
		return err
	}
	listed, err := g.run(ctx, empty, "", "ls-remote", "--", url)
	if err != nil {
		return busy(err)
	}
	args := []string{"push", "--quiet", "--force", "--atomic", "--", url}
	there := references(listed)
	unchanged := len(args)
	for name, id := range refs {
		if there[name] != id {
			args = append(args, id+":"+name)
		}
	}
	for name := range there {
		_, stays := refs[name]
		if exact && !stays && (strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/")) {
			args = append(args, ":"+name)
		}
	}
	if len(args) == unchanged {
		return nil
	}
	push := g.command(ctx, empty, args...)
	push.Env = append(push.Env, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+objects)
	_, err = output(ctx, push, "push")
	return busy(err)
}

// hasAll returns ErrMissing unless a repository has all objects that references name.
func (g Git) hasAll(ctx context.Context, path string, refs map[string]string) error {
	var ids strings.Builder
	for _, id := range refs {
		ids.WriteString(id + "\n")
	}
	out, err := g.run(ctx, path, ids.String(), "cat-file", "--batch-check")
	if err == nil && strings.Contains(out, " missing\n") {
		err = ErrMissing
	}
	return err
}

// busy marks the refusals of a server that has no room.
func busy(err error) error {
	var failed *Error
	if errors.As(err, &failed) && (strings.Contains(failed.Said, "error: 429") || strings.Contains(failed.Said, "error: 503")) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
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
	var lines []string
	for line := range strings.FieldsFuncSeq(strings.ToValidUTF8(string(t.kept), "?"), func(c rune) bool { return c == '\n' || c == '\r' }) {
		line = strings.Map(func(c rune) rune {
			if unicode.IsControl(c) {
				return -1
			}
			return c
		}, line)
		if line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "remote:")); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
