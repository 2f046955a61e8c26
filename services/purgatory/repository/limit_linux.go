package repository

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// limitProcess bounds what a process may have, and whatever it starts later: the memory of its heap
// and anonymous mappings, not of the packs that it maps; and its time on a processor. Zero: no
// bound.
func limitProcess(pid int, memory int64, cpu time.Duration) error {
	limits := map[int]uint64{unix.RLIMIT_DATA: uint64(memory), unix.RLIMIT_CPU: uint64(cpu / time.Second)}
	for resource, most := range limits {
		if most == 0 {
			continue
		}
		err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("bound a process: %w", err)
		}
	}
	return nil
}
