package repository

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"tendril.dev/lib/child"
	"tendril.dev/lib/limit"
)

const (
	// afterTerm is how long a git process may tidy up (remove its lock files) after its context has
	// ended.
	afterTerm = 3 * time.Second
	// maxTime bounds the wait for a process and its run where nothing else does.
	maxTime = time.Hour
	// maxMessages bounds what is kept of git's standard error: its last bytes, where the reason
	// stands.
	maxMessages = 4 << 10
	// allocLimit is the largest piece of memory that a git process may ask for at once. A pack can
	// claim any size for its objects.
	allocLimit = "2g"

	// Git checks, and packs, 6 MiB of an honest pack a second on one processor of today. What takes
	// longer than these unpacks to far more than was sent.
	processorTimeOfAny = 10 * time.Second
	processorTimeOfMiB = 2 * time.Second

	// What git needs of memory: for references and single objects; to read objects and look for
	// deltas; and for what it knows of each object: of a repository that it reads the objects are
	// counted, of a pack that it checks only the bytes are known. An object that is larger than
	// core.bigFileThreshold is not kept whole, and what is read from packs is mapped, which is not
	// counted. A clone of 239,000 objects in 416 MB takes 110 MiB.
	memoryOfSmall   = 96 << 20
	memoryOfObjects = 256 << 20
	memoryPerObject = 512
	memoryPerCheck  = 8
)

var (
	// ErrBusy is a command that found no free process in time.
	ErrBusy = limit.ErrFull
	// ErrTooLong is a command that ran longer than it may.
	ErrTooLong = errors.New("git took longer than it may")
)

// Command is one git command on one repository. It runs with nothing of our environment but PATH,
// and with no configuration but that of this package.
type Command struct {
	// Stdin is read to its end, if it is set. It comes from memory or from disk.
	Stdin io.Reader
	// Stdout gets what git prints, if it is set.
	Stdout io.Writer
	// Client is the client key of the request that is served.
	Client string
	// Patience is how long to wait for a free process before it is ErrBusy. Zero: maxTime.
	Patience time.Duration
	// Time is how long the process may run, its wait not counted, before it is ended with
	// ErrTooLong. Zero: maxTime.
	Time time.Duration
	// Pack is how many bytes of packs the process checks. Its memory and its time on a processor are
	// bounded by them, or by the packs of the repository where it checks none.
	Pack int64
	// MaxFile bounds the files that the process writes, in bytes. Zero: nothing does.
	MaxFile int64

	repo      *Repo
	args      []string
	env       []string
	config    []string
	leased    *Leased       // of a command that changes the repository: it is ended with the lease; else nil
	locked    *Locked       // of a command that runs under the lock: it inherits that; else nil
	serves    bool          // it serves a client; else it is the worker's own work
	syncs     bool          // the folders in which it writes are put to the disk after it
	low       bool          // no client waits for it: it runs with a low priority
	memory    int64         // that it may have, in bytes
	processor time.Duration // time that it may have on a processor; zero: any
	messages  tail
}

// reading prepares a `git <args>` that changes nothing. Arguments are never taken from a request as
// they are.
func (r *Repo) reading(args ...string) *Command { return &Command{repo: r, args: args} }

// writing prepares one that changes the repository.
func (l *Leased) writing(args ...string) *Command {
	return &Command{repo: l.Repo, args: args, leased: l}
}

// Messages are the last lines that git wrote to its standard error, without the repository's path,
// which only the operator should see, and control characters. Call it after Run.
func (c *Command) Messages() string {
	said := strings.ReplaceAll(strings.ToValidUTF8(string(c.messages), "?"), c.repo.Path, ".")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r':
			return '\n'
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, said))
}

// OneLine makes one bounded line of words that others chose, without control characters.
func OneLine(words string) string {
	const most = 300
	line := strings.ToValidUTF8(words[:min(len(words), most)], "?")
	return strings.Join(strings.FieldsFunc(line, func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) }),
		" ")
}

// Error is a git command that failed.
type Error struct {
	Command  string // the subcommand: "index-pack"
	Messages string // what git said, bounded
	Err      error  // its exit status, or what ended it
}

// Error is one line: the command, how it ended, what it said.
func (e *Error) Error() string {
	said := fmt.Sprintf("git %s: %v: %s", e.Command, e.Err, strings.ReplaceAll(e.Messages, "\n", "; "))
	return strings.TrimSuffix(said, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Run waits for a free process, runs the command and waits for its end. When ctx or the command's
// time ends, the process and all that it started are asked to end, and killed soon after; when the
// lease of what writes ends, they are killed at once. A failure is an *Error.
func (c *Command) Run(ctx context.Context) error {
	if err := c.run(ctx); err != nil {
		return &Error{Command: c.args[0], Messages: c.Messages(), Err: err}
	}
	if c.syncs {
		return c.repo.syncFolders()
	}
	return nil
}

func (c *Command) run(ctx context.Context) error {
	if c.leased != nil { // who waits for a process must not keep a shard either
		during, end := c.leased.During(ctx)
		defer end()
		ctx = during
	}
	c.measure()
	release, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	if c.leased != nil {
		if err := c.leased.MayWrite(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(c.Time, maxTime), ErrTooLong)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.repo.Store.Git, c.args...)
	cmd.Dir = c.repo.Path
	cmd.Env = append(environment(c.config), "GIT_DIR="+c.repo.Path)
	cmd.Env = append(cmd.Env, c.env...)
	cmd.Stdout = c.Stdout
	cmd.Stderr = &c.messages
	bounded := make(chan struct{})
	if c.Stdin != nil {
		cmd.Stdin = &gate{c.Stdin, bounded}
	}
	if c.locked != nil && c.locked.folder != nil {
		cmd.ExtraFiles = []*os.File{c.locked.folder}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = afterTerm
	cmd.Cancel = func() error {
		if errors.Is(context.Cause(ctx), ErrLease) { // another worker may write at any moment
			return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	if err = child.Start(cmd); err == nil {
		ended := c.repo.Store.usage.started(cmd.Process, c.args[0])
		c.bound(cmd.Process.Pid)
		close(bounded)
		err = cmd.Wait()
		ended(cmd.ProcessState)
		if c.locked != nil && !errors.Is(syscall.Kill(-cmd.Process.Pid, 0), syscall.ESRCH) {
			c.locked.outlived = true
		}
	}
	if err != nil && ctx.Err() != nil {
		if cmd.Process != nil {
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it started may still be there
		}
		return context.Cause(ctx)
	}
	return err
}

// measure works out what the process may have.
func (c *Command) measure() {
	bytes := c.Pack
	if bytes == 0 {
		bytes, _ = c.repo.Bytes() // a repository that cannot be read is git's to complain about
	}
	c.memory = memoryOfSmall
	switch {
	case slices.Contains(smallCommands, c.args[0]) || slices.Contains(c.args, "--advertise-refs"):
	case c.Pack > 0:
		c.memory = memoryOfObjects + memoryPerCheck*c.Pack
	default:
		objects, _ := c.repo.packedObjects()
		c.memory = memoryOfObjects + memoryPerObject*int64(objects)
	}
	c.memory = min(c.memory, c.repo.Store.Memory, c.pool().most)
	if c.serves || c.Pack > 0 {
		c.processor = processorTimeOfAny + time.Duration(bytes>>20)*processorTimeOfMiB
	}
}

// smallCommands look at references and at the headers of objects.
var smallCommands = []string{"update-ref", "symbolic-ref", "cat-file", "pack-refs"}

// bound bounds the memory, the files and the time of the process. What it starts itself, on what it
// reads, has the same bounds.
func (c *Command) bound(pid int) {
	if err := limitProcess(pid, c.memory, c.MaxFile, c.processor); err != nil {
		c.repo.Store.Log.Warn("a git process has no bound", "error", err)
	}
	if c.low {
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, pid, 10) // it is only a courtesy
	}
}

func (c *Command) pool() *pool {
	if c.serves {
		return &c.repo.Store.clients
	}
	return &c.repo.Store.own
}

// acquire waits for one process and its memory, but not longer than the command has patience.
func (c *Command) acquire(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(c.Patience, maxTime), ErrBusy)
	defer cancel()
	c.repo.Store.usage.waiting.Add(1)
	defer c.repo.Store.usage.waiting.Add(-1)
	release, err = c.pool().acquire(ctx, c.Client, c.memory)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return release, err
}

// ask runs a command with small input and output, and gives what git printed.
func (c *Command) ask(ctx context.Context, stdin string) (string, error) {
	var out strings.Builder
	c.Stdin, c.Stdout = strings.NewReader(stdin), &out
	err := c.Run(ctx)
	return out.String(), err
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
type tail []byte

// Write never fails and never grows beyond its bound.
func (t *tail) Write(p []byte) (int, error) {
	kept := append(*t, p...)
	*t = bytes.Clone(kept[max(0, len(kept)-maxMessages):])
	return len(p), nil
}

// environment is all that git gets to see of ours, with the configuration that rules every command.
func environment(more []string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_ALLOW_PROTOCOL=none",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_ALLOC_LIMIT=" + allocLimit,
	}
	settings := slices.Concat(configuration, more)
	for i, setting := range settings {
		key, value, _ := strings.Cut(setting, "=")
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, value))
	}
	return append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(settings)))
}

// refused reports whether git itself ended with a failure: it was not ended by us or a limit, and
// it could write to the disk.
func refused(err error) bool {
	failure, ok := errors.AsType[*Error](err)
	if !ok || Unwritable(err) {
		return false
	}
	exit, ok := errors.AsType[*exec.ExitError](failure.Err)
	return ok && exit.Exited()
}

// says reports whether a git command failed with these words.
func says(err error, words string) bool {
	failure, ok := errors.AsType[*Error](err)
	return ok && strings.Contains(failure.Messages, words)
}

// limits are what git says, itself or of a process that it started, where one of its limits is
// reached.
var limits = []struct{ words, limit string }{
	{"out of memory", "memory"}, {"Out of memory", "memory"}, {"malloc failed", "memory"}, {"over limit",
		"memory"}, {"Cannot allocate memory", "memory"},
	{"died of signal 24", "time"}, {"died of signal 9", "time"}, // SIGXCPU; SIGKILL: of the hard limit
	{"died of signal 25", "size"}, // SIGXFSZ
}

// LimitReached reports whether a git command failed on one of its limits, and on which.
func LimitReached(err error) (limit string, reached bool) {
	died := diedOf(err)
	for _, l := range limits {
		if says(err, l.words) || died == l.words {
			return l.limit, true
		}
	}
	return "", false
}

// diedOf is what git would say of a command that was killed by a signal, if it had started that; "": it
// was not killed.
func diedOf(err error) string {
	failure, ok := errors.AsType[*Error](err)
	if !ok {
		return ""
	}
	exit, ok := errors.AsType[*exec.ExitError](failure.Err)
	if !ok {
		return ""
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return ""
	}
	return fmt.Sprintf("died of signal %d", status.Signal())
}
