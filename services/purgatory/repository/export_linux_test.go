package repository

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// disk is what a power cut would leave of files that this package writes: what was synced. Tests
// see it by AfterPowerCut.
var disk = struct {
	sync.Mutex
	files   map[file][sha256.Size]byte // their content when they were synced
	folders map[file]map[string]file   // the names in them
}{files: map[file][sha256.Size]byte{}, folders: map[file]map[string]file{}}

// file is a file or a folder of any name. A number that is free is given to another one soon.
type file struct {
	inode uint64
	made  unix.StatxTimestamp
}

func init() {
	real := fsync
	fsync = func(f *os.File) error {
		err := real(f)
		disk.Lock()
		defer disk.Unlock()
		if names, failed := entries(f.Name()); failed == nil {
			disk.folders[identify(f.Name())] = names
		} else if content, failed := os.ReadFile(f.Name()); failed == nil {
			disk.files[identify(f.Name())] = sha256.Sum256(content)
		}
		return err
	}
}

func identify(path string) file {
	var s unix.Statx_t
	_ = unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &s)
	return file{s.Ino, s.Btime}
}

func entries(folder string) (map[string]file, error) {
	list, err := os.ReadDir(folder)
	names := map[string]file{}
	for _, entry := range list {
		names[entry.Name()] = identify(filepath.Join(folder, entry.Name()))
	}
	return names, err
}

// Flocked is the folder with the flock of a repository.
func (l *Locked) Flocked() *os.File { return l.folder }

// AfterPowerCut says how a folder, with all that lies in it, would differ after a power cut now.
// The contents of files that git writes and syncs itself are taken as they are.
func AfterPowerCut(path string, byGit func(path string) bool) (lost []string) {
	disk.Lock()
	defer disk.Unlock()
	return afterPowerCut(path, byGit)
}

func afterPowerCut(path string, byGit func(path string) bool) (lost []string) {
	now, err := entries(path)
	if err != nil {
		content, _ := os.ReadFile(path)
		if synced, is := disk.files[identify(path)]; !byGit(path) && (!is || synced != sha256.Sum256(content)) {
			lost = append(lost, "the content of "+path)
		}
		return lost
	}
	there := disk.folders[identify(path)]
	for name := range there {
		if now[name] == (file{}) {
			lost = append(lost, fmt.Sprintf("that %s went from %s", name, path))
		}
	}
	for name, id := range now {
		if there[name] != id {
			lost = append(lost, fmt.Sprintf("the name %s in %s", name, path))
		}
		lost = append(lost, afterPowerCut(filepath.Join(path, name), byGit)...)
	}
	return lost
}

// TestNothingIsReadBeforeTheLimits of a process are set.
func TestNothingIsReadBeforeTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{strings.NewReader("x"), make(chan struct{})}
		read := make(chan int, 1)
		go func() {
			n, _ := g.Read(make([]byte, 1))
			read <- n
		}()
		synctest.Wait()
		if len(read) > 0 {
			t.Error("it was read at once")
		}
		close(g.open)
		if <-read != 1 {
			t.Error("nothing was read")
		}
	})
}
