package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// firstProcess is the number of a container's first process.
const firstProcess = 1

// reap runs a program as a child, passes signals on to it, and returns its exit status. It is for
// the first process of a container: that becomes the parent of every process whose own has ended,
// like those that a git starts which is cut off, and each stays a zombie until its parent waits for
// it. The child cannot do this itself: waiting for any process would take the exit status away from
// the goroutine that started it.
func reap(program string, args []string) (status int, err error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2)
	defer signal.Stop(signals)
	child, err := syscall.ForkExec(program, args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, fmt.Errorf("start %s as a child of process 1: %w", program, err)
	}
	go func() {
		for s := range signals {
			_ = syscall.Kill(child, s.(syscall.Signal)) // it may have ended: then so do we
		}
	}()
	for {
		var ended syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ended, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for children: %w", err)
		case pid != child:
		case ended.Signaled():
			return 128 + int(ended.Signal()), nil
		default:
			return ended.ExitStatus(), nil
		}
	}
}
