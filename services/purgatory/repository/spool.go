package repository

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

const (
	// spoolMemory is how much of a spool is in memory.
	spoolMemory = 64 << 10
	// SpoolStep is what a spool takes of the disk's room at a time.
	SpoolStep = 1 << 20
)

// Spool keeps what is written until it is read: the beginning in memory, more in a file on the
// volume of the repositories. A slow client keeps no process and no lock meanwhile. One goroutine
// may use it at a time.
type Spool struct {
	store   *Store
	client  string
	allowed func() error

	charged *Memory
	memory  []byte
	file    *os.File // for what came after that
	size    int64
	free    int64 // of the room that is taken
	taken   []func()
}

// Spool makes a spool of a client's, or of another process that is served: all share the memory and
// the disk fairly. allowed is asked before anything goes to disk, and before more does; nil: it
// may. Their errors end the writing.
func (s *Store) Spool(client string, allowed func() error) *Spool {
	return &Spool{store: s, client: client, allowed: allowed, charged: s.RequestMemory(client)}
}

// Size is the number of bytes written.
func (s *Spool) Size() int64 { return s.size }

// Write appends.
func (s *Spool) Write(p []byte) (n int, err error) {
	defer func() { s.size += int64(n) }()
	if s.size == int64(len(s.memory)) && len(s.memory)+len(p) <= spoolMemory && s.hasMemory(len(p)) {
		s.memory = append(s.memory, p...)
		return len(p), nil
	}
	if err := s.grow(int64(len(p))); err != nil {
		return 0, err
	}
	if n, err = s.file.WriteAt(p, s.size); err != nil {
		err = fmt.Errorf("write what arrives to disk: %w", err)
	}
	return n, err
}

// hasMemory makes room in memory, by steps, each of which is charged. Where there is none
// the disk is used.
func (s *Spool) hasMemory(n int) bool {
	for cap(s.memory) < len(s.memory)+n {
		more := max(cap(s.memory), 4<<10)
		if s.charged.Take(int64(more)) != nil {
			return false
		}
		s.memory = slices.Grow(s.memory, cap(s.memory)+more-len(s.memory))
	}
	return true
}

// grow makes room on disk. No other process sees the file, and it is gone when it is closed.
func (s *Spool) grow(n int64) error {
	if s.allowed != nil {
		if err := s.allowed(); err != nil {
			return err
		}
	}
	for s.free < n {
		release, err := s.store.spools.Try(s.client, SpoolStep)
		if err != nil {
			return err
		}
		s.taken, s.free = append(s.taken, release), s.free+SpoolStep
	}
	s.free -= n
	if s.file != nil {
		return nil
	}
	file, err := os.CreateTemp(filepath.Join(s.store.Root, newFolder), "spool-")
	if err == nil {
		s.file, err = file, os.Remove(file.Name())
	}
	if err != nil {
		return fmt.Errorf("open a file for what arrives: %w", err)
	}
	return nil
}

// ReadAt reads some of what was written. It implements io.ReaderAt for [Spool.Reader] only: it may
// read less than there is.
func (s *Spool) ReadAt(p []byte, at int64) (int, error) {
	if at < int64(len(s.memory)) {
		return copy(p, s.memory[at:]), nil
	}
	return s.file.ReadAt(p, at)
}

// Reader reads what was written so far, from a place on.
func (s *Spool) Reader(from int64) io.Reader { return io.NewSectionReader(s, from, s.size-from) }

// Rewind empties the spool for what is written next. It keeps what it has of memory and, unless that
// was more than a step, of the disk: who reads as fast as is written needs no new file each time.
func (s *Spool) Rewind() {
	if len(s.taken) > 1 {
		s.leaveDisk()
	}
	s.memory, s.size, s.free = s.memory[:0], 0, int64(len(s.taken))*SpoolStep
}

// Close empties the spool and gives everything back. It may be used again.
func (s *Spool) Close() {
	s.leaveDisk()
	s.charged.Done()
	s.memory, s.size = nil, 0
}

func (s *Spool) leaveDisk() {
	if s.file != nil {
		s.file.Close()
	}
	for _, release := range s.taken {
		release()
	}
	s.file, s.free, s.taken = nil, 0, nil
}
