package repository

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

const (
	// probeFresh is how long an answer holds: any client may ask /readyz.
	probeFresh = 5 * time.Second
	// probePatience is how long a disk may take to answer.
	probePatience = time.Second
	// probeBytes is what a disk that is not full has room for. Small files may still fit where no
	// push would.
	probeBytes = 256 << 10
)

// refusing are errors by which a system says that nothing can be written.
var refusing = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.EIO,
	syscall.EFBIG}

// unwritable are the words of git for the same (LC_ALL=C). Receive-pack keeps the reason to itself
// where it cannot even begin.
var unwritable = []string{
	"No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied", "Operation not permitted",
	"Input/output error", "File too large", "unable to create temporary object directory",
}

// Unwritable reports whether an error is that of a disk that takes nothing: it is full, read-only,
// failing, or not ours to write to.
func Unwritable(err error) bool {
	return slices.ContainsFunc(refusing, func(reason error) bool { return errors.Is(err, reason) }) ||
		slices.ContainsFunc(unwritable, func(words string) bool { return says(err, words) })
}

// Writable says in a sentence why nothing can be written to the root now; nil: it can be. It is
// tried at most every few seconds, once at a time, and not waited for long.
func (s *Store) Writable() error {
	tried := s.probes.DoChan("", func() (any, error) {
		if time.Since(s.probed) >= probeFresh {
			s.writable = s.writeProbe()
			s.probed = time.Now()
		}
		return nil, s.writable
	})
	select {
	case result := <-tried:
		if result.Err != nil {
			return fmt.Errorf("nothing can be written to the git folder (NGIT_GIT_DATA_PATH): %w", result.Err)
		}
		return nil
	case <-time.After(probePatience):
		return errors.New("the disk of the git folder (NGIT_GIT_DATA_PATH) does not answer")
	}
}

// writeProbe writes to the root, to the disk itself, and cleans up. The error names no file: that
// differs from try to try.
func (s *Store) writeProbe() error {
	noise := make([]byte, probeBytes) // which no file system can store in less
	rand.Read(noise)
	path := filepath.Join(s.Root, newFolder, "probe")
	err := cmp.Or(writeDurably(path, string(noise)), ignoreGone(os.Remove(path)))
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return failed.Err
	}
	return err
}
