package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tendril.dev/test/fixture"
)

// TestTheFirstProcessReaps what others left, passes signals on, and ends as its child does. This
// test is all three processes: the one that looks, the first one of a container, and its child.
func TestTheFirstProcessReaps(t *testing.T) {
	const role = "TENDRIL_TEST_ROLE"
	again := []string{os.Args[0], "-test.run=^TestTheFirstProcessReaps$"}
	switch os.Getenv(role) {
	case "first":
		// As process 1 it would be the parent of all orphans below it.
		fixture.Must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		fixture.Must(t, os.Setenv(role, "child"))
		status, err := reap(os.Args[0], again)
		fixture.Must(t, err)
		os.Exit(status)
	case "child":
		orphan, err := exec.Command("sh", "-c", "sleep 0.1 >/dev/null & echo $!").Output()
		fixture.Must(t, err)
		fixture.Await(t, "the orphan is no zombie", func() bool {
			_, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(orphan))))
			return errors.Is(err, os.ErrNotExist)
		})
		fmt.Println("reaped")
		fixture.Must(t, syscall.Kill(os.Getppid(), syscall.SIGTERM))
		select {} // until the signal comes back
	}
	first := exec.CommandContext(t.Context(), again[0], again[1:]...)
	first.Env = append(os.Environ(), role+"=first")
	var out bytes.Buffer
	first.Stdout, first.Stderr = &out, &out
	err := first.Run()
	exit, ended := errors.AsType[*exec.ExitError](err)
	if !ended || exit.ExitCode() != 128+int(syscall.SIGTERM) || !strings.Contains(out.String(), "reaped") {
		t.Errorf("%v: %s", err, out.String())
	}
}
