// Package world is the outside world of Tendril's whole-system tests: the built binary, relays that
// no one here wrote, git servers, people with keys, and someone who listens on the bus.
package world

import (
	"bufio"
	"context"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Domain is what the tests' Tendril calls itself. Nothing resolves it: clients use the address that
// the process prints.
const Domain = "grasp.test"

// patience is how long anything that should happen may take on a slow machine: longer than any of
// [Settings], so that Tendril gives up first and says why.
const patience = 3 * time.Minute

// Tendril is a running `tendril up`.
type Tendril struct {
	URL  string // http://127.0.0.1:port
	NATS string // nats://127.0.0.1:port
	Dir  string // with the data
	env  map[string]string
	cmd  *exec.Cmd
	out  *output
	done chan error
	t    testing.TB
}

// Relay is the WebSocket URL.
func (p *Tendril) Relay() string { return "ws" + strings.TrimPrefix(p.URL, "http") }

// Settings is an environment with all delays short enough for tests, and with all limits on how
// long something may take so long that a slow machine does not meet them.
func Settings() map[string]string {
	return map[string]string{
		"NGIT_DOMAIN": Domain, "NGIT_BIND_ADDRESS": "127.0.0.1:0", "NGIT_NATS_LISTEN": "127.0.0.1:0", "NGIT_ALLOW_PRIVATE_NETWORKS": "true",
		"NGIT_SYNC_BATCH_WINDOW_MS": "100", "NGIT_SYNC_STARTUP_JITTER_MS": "0", "NGIT_SYNC_BASE_BACKOFF_SECS": "1", "NGIT_SYNC_DISCONNECT_CHECK_INTERVAL_SECS": "1",
		"NGIT_HUNT_SYNC_DELAY": "50ms", "NGIT_HUNT_USER_DELAY": "3m", "NGIT_HUNT_INTERVAL": "50ms", "NGIT_HUNT_BACKOFF_BASE": "200ms", "NGIT_HUNT_BACKOFF_MAX": "1s",
		"NGIT_SYNC_DOMAIN_RATE_LIMIT": "10000", "NGIT_LOG_LEVEL": "debug", "NGIT_EVENTS_PER_MINUTE": "10000", "NGIT_EVENTS_PER_MINUTE_PER_IP": "10000", "NGIT_GIT_REQUESTS_PER_MINUTE_PER_IP": "100000",
		"NGIT_EVENT_TIMEOUT": "2m", "NGIT_SHUTDOWN_WAIT": "2m", "NGIT_WORKER_TTL": "1m", "NGIT_CANDIDATE_ACK_WAIT": "1m",
	}
}

// Start starts Tendril in a folder of its own with more settings, and waits until it says that it
// listens.
func Start(t testing.TB, more map[string]string) *Tendril {
	t.Helper()
	p := &Tendril{Dir: Folder(t), env: Settings(), t: t}
	for k, v := range more {
		p.env[k] = v
	}
	p.Restart()
	return p
}

// Folder is a folder for the test. It is removed with what a git process writes there that outlived
// its killed parent for a moment, over which that of the testing package stumbles.
func Folder(t testing.TB) string {
	dir, err := os.MkdirTemp("", "tendril-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		deadline := time.Now().Add(patience)
		for {
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Error(err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return dir
}

// Change makes settings take effect with the next Restart.
func (p *Tendril) Change(settings map[string]string) { maps.Copy(p.env, settings) }

// Command is the program with this environment and nothing else of NGIT_*, to be run in dir.
func Command(t testing.TB, dir string, env map[string]string, args ...string) *exec.Cmd {
	cmd := exec.Command(Binary(t), args...)
	cmd.Dir, cmd.Env = dir, environment(env)
	return cmd
}

// environment is ours with these NGIT_* and no others.
func environment(ngit map[string]string) []string {
	list := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "NGIT_") })
	for k, v := range ngit {
		list = append(list, k+"="+v)
	}
	return list
}

var (
	listening = regexp.MustCompile(`(?m)^listening on (http://\S+)$`)
	natsAt    = regexp.MustCompile(`(?m)NATS +(nats://\S+)`)
)

// Restart starts the process (again), on other ports.
func (p *Tendril) Restart() {
	p.t.Helper()
	p.cmd = Command(p.t, p.Dir, p.env, "up")
	p.out = &output{}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan error, 1)
	cmd := p.cmd
	go func() { done <- cmd.Wait() }()
	p.done = done
	p.t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
		done <- nil
		if p.t.Failed() {
			p.t.Logf("the log of tendril:\n%s", p.out.tail(200))
		}
	})
	deadline := time.Now().Add(patience)
	for !strings.Contains(p.out.String(), "version ") {
		select {
		case err := <-done:
			done <- err
			p.t.Fatalf("tendril ended: %v\n%s", err, p.out)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("tendril is not ready:\n%s", p.out)
		}
	}
	p.URL = listening.FindStringSubmatch(p.out.String())[1]
	p.NATS = natsAt.FindStringSubmatch(p.out.String())[1]
}

// Stop asks the process to stop as Ctrl-C does, and gives how it ended.
func (p *Tendril) Stop() error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		p.t.Fatal(err)
	}
	select {
	case err := <-p.done:
		p.done <- nil
		return err
	case <-time.After(patience):
		p.t.Fatal("tendril does not stop")
	}
	return nil
}

// Kill ends the process as a power cut would end its memory: at once.
func (p *Tendril) Kill() {
	p.cmd.Process.Kill()
	<-p.done
	p.done <- nil
}

// PID is the id of the process.
func (p *Tendril) PID() int { return p.cmd.Process.Pid }

// Output is what the process has printed so far.
func (p *Tendril) Output() string { return p.out.String() }

// output keeps what a process prints.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) tail(lines int) string {
	var last []string
	scan := bufio.NewScanner(strings.NewReader(o.String()))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		last = append(last, scan.Text())
		if len(last) > lines {
			last = last[1:]
		}
	}
	return strings.Join(last, "\n")
}

// Await waits until ok, and ends the test if that takes too long.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Context ends with the test, or when anything has taken too long.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Close closes and fails the test on an error.
func Close(t testing.TB, c io.Closer) {
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// RunToEnd runs the program until it ends by itself, which it must do soon, and gives all that it
// printed.
func RunToEnd(t testing.TB, dir string, env map[string]string, args ...string) (string, error) {
	t.Helper()
	cmd := Command(t, dir, env, args...)
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	return out.String(), err
}
