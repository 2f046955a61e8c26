package repository

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// probeFresh is how long an answer holds: anybody may ask /readyz.
	probeFresh = 5 * time.Second
	// probePatience is how long whoever asks waits for a disk that does not answer.
	probePatience = time.Second
	// probeBytes is what a disk that is not full has room for. Small files may still fit where no
	// push would.
	probeBytes = 256 << 10
)

// refusing are errors by which a system says that nothing can be written.
var refusing = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.EIO, syscall.EFBIG}

// unwritable are the words of git for the same (LC_ALL=C). Receive-pack keeps the reason to itself
// where it cannot even begin.
var unwritable = []string{
	"No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied", "Operation not permitted",
	"Input/output error", "File too large", "unable to create temporary object directory",
}

// Unwritable reports whether an error is that of a disk that takes nothing: it is full, read-only,
// failing, or not ours to write to.
func Unwritable(err error) bool {
	if slices.ContainsFunc(refusing, func(reason error) bool { return errors.Is(err, reason) }) {
		return true
	}
	failure, ok := errors.AsType[*Error](err)
	return ok && slices.ContainsFunc(unwritable, func(words string) bool { return strings.Contains(failure.Messages, words) })
}

// Writable says in a sentence why nothing can be written to the root now; nil: it can be. It is
// tried at most every few seconds, and never waited for long.
func (s *Store) Writable() error { return s.volume.writable() }

// volume knows whether a folder can be written to.
type volume struct {
	try func() error
	log *slog.Logger

	mu     sync.Mutex
	tried  time.Time
	result chan error // of a try that is under way; nil: none is
	late   bool       // it was waited for in vain
	now    error      // what came of the last one
}

var errNoAnswer = errors.New("the disk of the git folder (NGIT_GIT_DATA_PATH) does not answer")

func (v *volume) writable() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.result == nil {
		if time.Since(v.tried) < probeFresh {
			return v.now
		}
		result := make(chan error, 1)
		v.result, v.late = result, false
		go func() { result <- v.try() }()
	}
	select {
	case err := <-v.result:
		return v.note(err)
	default:
	}
	if v.late {
		return errNoAnswer
	}
	select {
	case err := <-v.result:
		return v.note(err)
	case <-time.After(probePatience):
		v.late = true
		return errNoAnswer
	}
}

// note notes what came of a try, and logs where that differs from what came before.
func (v *volume) note(err error) error {
	before := v.now
	v.result, v.tried = nil, time.Now()
	if v.now = nil; err != nil {
		v.now = fmt.Errorf("nothing can be written to the git folder (NGIT_GIT_DATA_PATH): %w", err)
	}
	switch {
	case v.now == nil && before != nil:
		v.log.Info("the git folder can be written to again")
	case v.now != nil && (before == nil || before.Error() != v.now.Error()):
		v.log.Error("pushes and fetches cannot be stored", "error", v.now)
	}
	return v.now
}

// probe writes to the root, to the disk itself, and cleans up. The error names no file: that
// differs from try to try.
func (s *Store) probe() error {
	err := s.writeProbe()
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

func (s *Store) writeProbe() error {
	f, err := os.CreateTemp(filepath.Join(s.root, newFolder), "probe-")
	if err != nil {
		return err
	}
	noise := make([]byte, probeBytes) // which no file system can store in less
	rand.Read(noise)
	_, err = f.Write(noise)
	if err == nil {
		err = f.Sync() // some disks only tell now that they are full
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
