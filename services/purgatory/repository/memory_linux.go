package repository

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// limitMemory bounds the memory that a process may have, and whatever it starts later: its heap and
// anonymous mappings, not the packs that it maps.
func limitMemory(pid int, bytes int64) error {
	limit := &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, limit, nil); err != nil && err != unix.ESRCH {
		return fmt.Errorf("set the limit of its data: %w", err)
	}
	return nil
}
