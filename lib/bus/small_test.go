package bus_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"tendril.dev/lib/bus"
)

// TestARestartWithLittleRoom: the embedded server starts again on a disk that has filled meanwhile:
// what it may store is a share of the disk, not of what happens to be free.
func TestARestartWithLittleRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1400m"); err != nil {
		t.Skipf("a disk that can be filled needs the right to mount: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	store := filepath.Join(dir, "store")
	must(t, os.Mkdir(store, 0o700))
	b := open(t, bus.Options{Dir: store})
	publish(t, b, "grasp.target.a.example", 10, 10)
	b.Close()
	must(t, os.WriteFile(filepath.Join(dir, "filling"), make([]byte, 1<<20), 0o600))
	file, err := os.OpenFile(filepath.Join(dir, "filling"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer file.Close()
	const left = 200 << 20
	for block := make([]byte, 1<<20); ; {
		var s syscall.Statfs_t
		must(t, syscall.Statfs(dir, &s))
		if int64(s.Bavail)*s.Bsize <= left {
			break
		}
		_, err := file.Write(block)
		must(t, err)
	}
	again := open(t, bus.Options{Dir: store})
	if n := stream(t, again).CachedInfo().State.Msgs; n != 10 {
		t.Errorf("%d messages after the restart", n)
	}
	publish(t, again, "grasp.target.b.example", 10, 10)
}
