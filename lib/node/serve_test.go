package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/config"
)

// childEnv makes the test binary be a program under test: a node with one service, which says what
// happens on stdout.
const childEnv = "TENDRIL_TEST_CHILD"

func TestMain(m *testing.M) {
	behaviour := os.Getenv(childEnv)
	if behaviour == "" {
		os.Exit(m.Run())
	}
	s, err := config.Process().Parse(os.Args[1:])
	if err == nil {
		err = Serve("child", s, false, child(behaviour))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child(behaviour string) Service {
	return Service{Name: behaviour, Run: func(ctx context.Context, _ *Node) error {
		fmt.Println("up")
		if behaviour == "broken" {
			return errors.New("it broke")
		}
		<-ctx.Done()
		fmt.Println("stopping")
		if behaviour == "stubborn" {
			select {}
		}
		return nil
	}}
}

// program is a child process.
type program struct {
	*exec.Cmd
	out    *bufio.Scanner
	stderr strings.Builder
}

func run(t *testing.T, behaviour string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	args = append([]string{"--domain=git.example.com", "--database-backend=memory", "--git-data-path=" + t.TempDir(), "--nats-listen=none", "--shutdown-wait=10m"}, args...)
	p := &program{Cmd: exec.CommandContext(ctx, os.Args[0], args...)}
	p.Env = append(os.Environ(), childEnv+"="+behaviour)
	p.Stderr = &p.stderr
	out, err := p.StdoutPipe()
	must(t, err)
	p.out = bufio.NewScanner(out)
	must(t, p.Start())
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

func (p *program) expect(t *testing.T, line string) {
	t.Helper()
	for p.out.Scan() {
		if p.out.Text() == line {
			return
		}
	}
	t.Fatalf("it never said %q; %v; stderr: %s", line, p.Wait(), p.stderr.String())
}

// stop sends a signal and waits until the service is asked to stop.
func (p *program) stop(t *testing.T, s os.Signal) {
	t.Helper()
	p.expect(t, "up")
	must(t, p.Process.Signal(s))
	p.expect(t, "stopping")
}

func TestSignalsStopGracefully(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		p := run(t, "good")
		p.stop(t, s)
		if err := p.Wait(); err != nil {
			t.Errorf("%v: %v; stderr: %s", s, err, p.stderr.String())
		}
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := run(t, "stubborn", "--shutdown-wait=1h")
	p.stop(t, syscall.SIGTERM)
	var exit *exec.ExitError
	if err := errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("%v; stderr: %s", err, p.stderr.String())
	}
}

func TestFailureIsOneSentenceAndExitCodeOne(t *testing.T) {
	t.Parallel()
	p := run(t, "broken", "--log-level=error")
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 || p.stderr.String() != "broken: it broke\n" {
		t.Errorf("%v; stderr: %s", err, p.stderr.String())
	}
}
