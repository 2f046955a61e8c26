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

	mu    sync.Mutex
	tried time.Time
	now   error         // what came of it
	busy  chan struct{} // closed when the try that is under way has ended; nil: none is
}

var errNoAnswer = errors.New("the disk of the git folder (NGIT_GIT_DATA_PATH) does not answer")

func (v *volume) writable() error {
	v.mu.Lock()
	if v.busy == nil && (v.tried.IsZero() || time.Since(v.tried) >= probeFresh) {
		v.busy = make(chan struct{})
		go v.retry(v.busy)
	}
	busy, now := v.busy, v.now
	v.mu.Unlock()
	if busy == nil {
		return now
	}
	select {
	case <-busy:
	case <-time.After(probePatience):
		return errNoAnswer
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now
}

// retry tries, and logs where that came to another end than before.
func (v *volume) retry(ended chan struct{}) {
	err := v.try()
	v.mu.Lock()
	defer v.mu.Unlock()
	defer close(ended)
	before := v.now
	if v.now = nil; err != nil {
		v.now = fmt.Errorf("nothing can be written to the git folder (NGIT_GIT_DATA_PATH): %w", err)
	}
	v.tried, v.busy = time.Now(), nil
	switch {
	case v.now == nil && before != nil:
		v.log.Info("the git folder can be written to again")
	case v.now != nil && (before == nil || before.Error() != v.now.Error()):
		v.log.Error("pushes and fetches cannot be stored", "error", v.now)
	}
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
