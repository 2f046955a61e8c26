package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"

	"tendril.dev/lib/limit"
)

const (
	// afterTerm is how long a git process may tidy up (remove its lock files) after its context has
	// ended.
	afterTerm = 2 * time.Second
	// afterExit is how long output and input of an ended process may take to be closed.
	afterExit = 3 * time.Second
	// maxMessages bounds what is kept of git's standard error: its last bytes, where the reason
	// stands.
	maxMessages = 4 << 10
	// allocLimit is the largest piece of memory that a git process may ask for at once. A pack can
	// claim any size for its objects.
	allocLimit = "2g"
	// defaultMemory is how much memory a git process may have in all.
	defaultMemory = 4 << 30
)

// Command is one git command on one repository. It runs with nothing of our environment but PATH,
// and with no configuration but that of this package.
type Command struct {
	// Stdin is read to its end, if it is set. It comes from memory, from disk or from another of our
	// processes.
	Stdin io.Reader
	// Stdout gets what git prints, if it is set.
	Stdout io.Writer
	// Client is the client key of the request that is served.
	Client string
	// Patience is how long to wait for a free process before it is ErrBusy. Zero: as long as the
	// context lets.
	Patience time.Duration
	// Time is how long the process may run, its wait not counted, before it is ended with
	// ErrTooLong. Zero: as long as the context lets.
	Time time.Duration
	// Pack is how many bytes of packs the process checks, by which its time on a processor is
	// bounded. Zero: there is no bound.
	Pack int64

	repo     *Repo
	args     []string
	env      []string
	config   []setting
	held     bool // the caller holds the place of the process
	serves   bool // it serves a client; else it is the worker's own work
	reads    bool // it changes nothing, though others of its name do
	low      bool // no client waits for it: it runs with a low priority
	messages tail
}

// Command prepares `git <args>` in the repository. Arguments are never taken from a request as they
// are.
func (r *Repo) Command(args ...string) *Command {
	return &Command{repo: r, args: args}
}

// Setenv adds a variable to git's environment.
func (c *Command) Setenv(name, value string) { c.env = append(c.env, name+"="+value) }

// Config adds a configuration value, as `git -c key=value` does.
func (c *Command) Config(key, value string) { c.config = append(c.config, setting{key, value}) }

// Messages are the last lines that git wrote to its standard error, without the repository's path
// and control characters. Call it after Run.
func (c *Command) Messages() string { return c.messages.text(c.repo.path) }

// Error is a git command that failed.
type Error struct {
	Command  string // the subcommand: "index-pack"
	Messages string // what git said, bounded
	Err      error  // its exit status, or what ended it
}

// Error is one line: the command, how it ended, what it said.
func (e *Error) Error() string {
	if e.Messages == "" {
		return fmt.Sprintf("git %s: %v", e.Command, e.Err)
	}
	return fmt.Sprintf("git %s: %v: %s", e.Command, e.Err, strings.ReplaceAll(e.Messages, "\n", "; "))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Run waits for a free process, runs the command and waits for its end. When ctx or the command's
// time ends, the process and all that it started are asked to end, and killed soon after. A failure
// is an *Error.
func (c *Command) Run(ctx context.Context) error {
	if !c.held {
		release, err := c.repo.store.acquireWithin(ctx, c)
		if err != nil {
			return c.failed(err)
		}
		defer release()
	}
	if c.Time > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Time, ErrTooLong)
		defer cancel()
	}
	if writing[c.args[0]] && !c.reads {
		var cancel func()
		ctx, cancel = c.repo.underLease(ctx)
		defer cancel()
		if err := c.repo.mayWrite(ctx); err != nil {
			return c.failed(err)
		}
	}
	cmd := exec.CommandContext(ctx, c.repo.store.git, c.args...)
	cmd.Dir = c.repo.path
	cmd.Env = append(environment(c.config), "GIT_DIR="+c.repo.path)
	cmd.Env = append(cmd.Env, c.env...)
	cmd.Stdout = c.Stdout
	cmd.Stderr = &c.messages
	bounded := make(chan struct{})
	if c.Stdin != nil {
		cmd.Stdin = &gate{c.Stdin, bounded}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = afterTerm + afterExit
	var killer atomic.Pointer[time.Timer]
	cmd.Cancel = func() error {
		group := -cmd.Process.Pid
		killer.Store(time.AfterFunc(afterTerm, func() { syscall.Kill(group, syscall.SIGKILL) }))
		return syscall.Kill(group, syscall.SIGTERM)
	}
	err := cmd.Start()
	if err == nil {
		c.bound(cmd.Process.Pid)
		close(bounded)
		err = cmd.Wait()
	}
	if timer := killer.Load(); timer != nil && timer.Stop() && cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it started may still be there
	}
	if err != nil && ctx.Err() != nil {
		return c.failed(context.Cause(ctx))
	}
	if err != nil {
		return c.failed(err)
	}
	return nil
}

// writing are the commands that change a repository.
var writing = map[string]bool{"gc": true, "index-pack": true, "receive-pack": true, "symbolic-ref": true, "update-ref": true}

// bound bounds the memory and the time of the process. What it starts itself, on what it reads, has
// the same bounds.
func (c *Command) bound(pid int) {
	if err := limitProcess(pid, c.repo.store.memory, c.processorTime()); err != nil {
		c.repo.store.log.Warn("a git process has no bound", "error", err)
	}
	if c.low {
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, pid, lowPriority) // it is only a courtesy
	}
}

// Git checks 6 MiB of an honest pack a second on one processor of today.
const (
	processorTimeOfAny = 10 * time.Second
	processorTimeOfMiB = 2 * time.Second
)

// processorTime is how long the process may have a processor: what takes longer unpacks to far more
// than was sent.
func (c *Command) processorTime() time.Duration {
	if c.Pack == 0 {
		return 0
	}
	return processorTimeOfAny + time.Duration(c.Pack>>20)*processorTimeOfMiB
}

func (c *Command) failed(err error) error {
	return &Error{Command: c.args[0], Messages: c.Messages(), Err: err}
}

var (
	// ErrBusy is a command that found no free process in time.
	ErrBusy = limit.ErrFull
	// ErrTooLong is a command that ran longer than it may.
	ErrTooLong = errors.New("git took longer than it may")
)

// processes is how many git processes may run at once. A quarter of them is for the worker's own
// work, so that clients, of whom there may be any number, never stop it. They share the rest: one
// client has a quarter of it at most, and who has least comes next.
type processes struct{ own, clients *limit.Fair }

func newProcesses(n int) processes {
	own := int64(max(2, n/4)) // a pipe needs two
	clients := max(1, int64(n)-own)
	return processes{limit.NewFair(own, own), limit.NewFair(clients, max(1, clients/4))}
}

// acquireWithin waits for one process, but not longer than the command has patience.
func (s *Store) acquireWithin(ctx context.Context, c *Command) (release func(), err error) {
	if c.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Patience, ErrBusy)
		defer cancel()
	}
	pool := s.processes.own
	if c.serves {
		pool = s.processes.clients
	}
	if release, err = pool.Acquire(ctx, c.Client); err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return release, err
}

// acquirePipe waits for two processes at once, so that no two pipes hold half of what each needs.
func (s *Store) acquirePipe(ctx context.Context) (release func(), err error) {
	return s.processes.own.AcquireN(ctx, "", 2)
}

// run is for commands with small input and output: it gives what git printed.
func (r *Repo) run(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	c := r.Command(args...)
	if stdin != "" {
		c.Stdin = strings.NewReader(stdin)
	}
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Run(ctx); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// gate is the input of a process. Nothing of it is read before the process has its bounds.
type gate struct {
	from io.Reader
	open chan struct{}
}

// Read reads once the gate is open.
func (g *gate) Read(p []byte) (int, error) {
	<-g.open
	return g.from.Read(p)
}

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
	cut  bool
}

// Write never fails and never grows beyond its bound.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > maxMessages {
		p, t.cut = p[len(p)-maxMessages:], true
	}
	if over := len(t.kept) + len(p) - maxMessages; over > 0 {
		t.kept, t.cut = append(t.kept[:0], t.kept[over:]...), true
	}
	t.kept = append(t.kept, p...)
	return n, nil
}

// text returns whole lines, without the path that nobody but the operator should see.
func (t *tail) text(path string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.kept
	if t.cut {
		if end := bytes.IndexByte(kept, '\n'); end >= 0 {
			kept = kept[end+1:]
		}
	}
	s := strings.ReplaceAll(strings.ToValidUTF8(string(kept), "?"), path, ".")
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\r':
			return '\n'
		case unicode.IsControl(c):
			return -1
		}
		return c
	}, s))
}

// environment is all that git gets to see of ours, with the configuration that rules every command.
func environment(more []setting) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ALLOW_PROTOCOL=none",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_ADVICE=0",
		"GIT_ALLOC_LIMIT=" + allocLimit,
	}
	count := 0
	for _, settings := range [][]setting{configuration, more} {
		for _, s := range settings {
			env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", count, s.key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", count, s.value))
			count++
		}
	}
	return append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", count))
}

// isExit reports whether git itself ended with a failure, and was not ended by us or for want of
// input.
func isExit(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.Exited()
}
