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

// run starts a child, sends it one signal for each line that it says, and waits for its end.
func run(t *testing.T, behaviour string, signals ...os.Signal) (end *exec.ExitError, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "--domain=git.example.com", "--database-backend=memory", "--git-data-path="+t.TempDir(),
		"--nats-listen=none", "--shutdown-wait=10m", "--log-level=error")
	cmd.Env = append(os.Environ(), childEnv+"="+behaviour)
	var messages strings.Builder
	cmd.Stderr = &messages
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for _, s := range signals {
		if !lines.Scan() {
			t.Errorf("it says nothing before %v", s)
		}
		must(t, cmd.Process.Signal(s))
	}
	for lines.Scan() {
	}
	errors.As(cmd.Wait(), &end)
	return end, messages.String()
}

func TestSignals(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		if end, said := run(t, "good", s); end != nil || said != "" {
			t.Errorf("%v does not stop it gracefully: %v; stderr: %s", s, end, said)
		}
	}
	// The second ends it at once.
	end, said := run(t, "stubborn", syscall.SIGTERM, syscall.SIGTERM)
	if end == nil || end.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("%v; stderr: %s", end, said)
	}
}

func TestFailureIsOneSentenceAndExitCodeOne(t *testing.T) {
	t.Parallel()
	if end, said := run(t, "broken"); end == nil || end.ExitCode() != 1 || said != "broken: it broke\n" {
		t.Errorf("%v; stderr: %s", end, said)
	}
}
