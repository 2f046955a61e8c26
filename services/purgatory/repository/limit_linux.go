package repository

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// limitProcess bounds what a process may have, and all that it starts later: the memory of its heap
// and anonymous mappings, not of the packs that it maps; the size of a file that it writes; and its
// time on a processor. Zero: there is no bound.
func limitProcess(pid int, memory, file int64, processor time.Duration) (err error) {
	for resource, most := range map[int]int64{
		unix.RLIMIT_DATA: memory, unix.RLIMIT_FSIZE: file, unix.RLIMIT_CPU: int64(processor / time.Second),
	} {
		if most > 0 {
			err = errors.Join(err, unix.Prlimit(pid, resource, &unix.Rlimit{Cur: uint64(most), Max: uint64(most)}, nil))
		}
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
