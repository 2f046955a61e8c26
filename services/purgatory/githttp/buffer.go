package githttp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// answerMemory is how much of an answer is kept in memory before the rest goes to disk.
	answerMemory = 64 << 10
	// gitWaits is how long git may wait, in all, for a client to take an answer for which there is
	// no room.
	gitWaits = 10 * time.Minute
)

// buffer stands between git, which writes an answer, and a client that reads it more slowly: in
// memory first, then on disk as long as there is room, so that git ends and its process is free.
// Where there is no room, git waits.
type buffer struct {
	scratch func() (*os.File, error)
	room    *room

	mu       sync.Mutex
	changed  sync.Cond
	memory   []byte // older than what is in the file
	file     *os.File
	from, to int64         // what is in the file and not read
	ended    error         // how writing ended
	gone     bool          // nothing is read any more
	waited   time.Duration // by git
}

func newBuffer(scratch func() (*os.File, error), room *room) *buffer {
	b := &buffer{scratch: scratch, room: room}
	b.changed.L = &b.mu
	return b
}

// errGone ends the writing of what is not read any more.
var errGone = errors.New("the answer is not read any more")

// Write appends, and waits while there is no room.
func (b *buffer) Write(p []byte) (written int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(p) > 0 {
		n := 0
		switch {
		case b.gone:
			return written, errGone
		case b.from == b.to && len(b.memory) < answerMemory:
			n = min(len(p), answerMemory-len(b.memory))
			b.memory = append(b.memory, p[:n]...)
		case b.spill(p):
			n = len(p)
		case b.waited >= gitWaits:
			return written, errSlow
		default:
			began := time.Now()
			enough := time.AfterFunc(gitWaits-b.waited, b.changed.Broadcast)
			b.changed.Wait()
			enough.Stop()
			b.waited += time.Since(began)
			continue
		}
		p, written = p[n:], written+n
		b.changed.Broadcast()
	}
	return written, nil
}

// spill puts p behind what is in the file, if there is room.
func (b *buffer) spill(p []byte) bool {
	if b.file == nil {
		file, err := b.scratch()
		if err != nil {
			return false // memory has to do
		}
		b.file = file
	}
	if b.room.grow(int64(len(p))) != nil {
		return false
	}
	if _, err := b.file.WriteAt(p, b.to); err != nil {
		return false
	}
	b.to += int64(len(p))
	return true
}

// end is called when everything is written: err is io.EOF, or what went wrong.
func (b *buffer) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = err
	b.changed.Broadcast()
}

// Read reads what was written, and then returns what end was told.
func (b *buffer) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.memory) == 0 && b.from == b.to {
		if b.ended != nil {
			return 0, b.ended
		}
		b.changed.Wait()
	}
	defer b.changed.Broadcast()
	if len(b.memory) > 0 {
		n := copy(p, b.memory)
		b.memory = b.memory[:copy(b.memory, b.memory[n:])]
		return n, nil
	}
	n, err := b.file.ReadAt(p[:min(int64(len(p)), b.to-b.from)], b.from)
	if b.from += int64(n); err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("read an answer from disk: %w", err)
	}
	if b.from == b.to {
		b.from, b.to = 0, 0
		b.room.end()
		if err := b.file.Truncate(0); err != nil {
			return n, fmt.Errorf("free the disk that an answer took: %w", err)
		}
	}
	return n, nil
}

// close ends the reading.
func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	b.changed.Broadcast()
	b.memory, b.from, b.to = nil, 0, 0
	b.room.end()
	if b.file != nil {
		b.file.Close()
		b.file = nil
	}
}
