//go:build unix

package abuse

import (
	"io/fs"
	"syscall"
)

// inodeOf tells the names of one file from those of others.
func inodeOf(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}
