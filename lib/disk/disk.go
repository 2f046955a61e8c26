// Package disk looks at the room on the disk of a folder. What to do about it is not its matter.
package disk

import (
	"fmt"
	"syscall"
)

// Free is the free space of the disk that holds a folder, and its size, in bytes.
func Free(folder string) (free, all int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return 0, 0, fmt.Errorf("look at the disk of %s: %w", folder, err)
	}
	block := int64(s.Bsize)
	return int64(s.Bavail) * block, int64(s.Blocks) * block, nil
}
