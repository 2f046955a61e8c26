package disk

import (
	"syscall"
	"testing"
)

// TestRoomIsWhatAUserMayUse: a disk of which two thirds are kept for its administrator is small, not
// nearly full.
func TestRoomIsWhatAUserMayUse(t *testing.T) {
	t.Parallel()
	s := syscall.Statfs_t{Bsize: 4096, Blocks: 300, Bfree: 230, Bavail: 30}
	if free, all := room(s); free != 30*4096 || all != 100*4096 {
		t.Errorf("free %d, all %d bytes; want %d and %d", free, all, 30*4096, 100*4096)
	}
}
