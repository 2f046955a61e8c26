// Package disk looks at the room on the disk of a folder. What to do about it is not its matter.
package disk

import (
	"fmt"
	"syscall"
)

// Free is the free space of the disk that holds a folder, and its size, in bytes. What the disk
// keeps for its administrator, or beyond a quota, is neither.
func Free(folder string) (free, all int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return 0, 0, fmt.Errorf("look at the disk of %s: %w", folder, err)
	}
	free, all = room(s)
	return free, all, nil
}

// room counts as df does: used and available blocks are the whole.
func room(s syscall.Statfs_t) (free, all int64) {
	block := int64(s.Bsize)
	return int64(s.Bavail) * block, int64(s.Blocks-s.Bfree+s.Bavail) * block
}

const (
	// leastRoom is what must be free on a disk that is written to.
	leastRoom = 32 << 20
	// roomToGoOn is what must be free on a disk that was full before anything writes again: less
	// would be full again at once.
	roomToGoOn = 64 << 20
)

// IsFull reports whether a disk has so little room that a write may fail. A disk that cannot be
// looked at is not called full.
func IsFull(folder string) bool {
	free, _, err := Free(folder)
	return err == nil && free < leastRoom
}

// HasRoom reports whether a disk that was full has room again.
func HasRoom(folder string) bool {
	free, _, err := Free(folder)
	return err == nil && free >= roomToGoOn
}
