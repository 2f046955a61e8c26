package repository

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// limitProcess bounds what a process may have, and whatever it starts later: the memory of its heap
// and anonymous mappings, not of the packs that it maps; and its time on a processor; zero:
// that has no bound.
func limitProcess(pid int, memory int64, cpu time.Duration) error {
	err := unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(memory), Max: uint64(memory)}, nil)
	if seconds := uint64(cpu / time.Second); err == nil && seconds > 0 {
		err = unix.Prlimit(pid, unix.RLIMIT_CPU, &unix.Rlimit{Cur: seconds, Max: seconds}, nil)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
