package repository

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// Spool keeps bytes that arrive until they are all there: a little in memory, more in a scratch
// file. Whoever sends slowly keeps no process and no lock meanwhile. It is written by one
// goroutine, and then read.
type Spool struct {
	repo   *Repo
	memory int
	grow   func(bytes int64) error

	head bytes.Buffer
	file *os.File
	size int64
}

// Spool makes a spool with so many bytes of memory. grow is called before more goes to disk, and
// its error ends the writing.
func (r *Repo) Spool(memory int, grow func(bytes int64) error) *Spool {
	return &Spool{repo: r, memory: memory, grow: grow}
}

// Size is the number of bytes written.
func (s *Spool) Size() int64 { return s.size }

// Write appends. Its errors come from the disk, or from grow.
func (s *Spool) Write(p []byte) (n int, err error) {
	defer func() { s.size += int64(n) }()
	if s.file == nil && s.head.Len()+len(p) <= s.memory {
		return s.head.Write(p)
	}
	if err := s.grow(int64(s.head.Len() + len(p))); err != nil {
		return 0, err
	}
	if s.file == nil {
		if s.file, err = s.repo.Scratch(); err != nil {
			return 0, err
		}
	}
	if _, err = s.head.WriteTo(s.file); err == nil {
		s.head = bytes.Buffer{}
		n, err = s.file.Write(p)
	}
	if err != nil {
		return n, fmt.Errorf("write what arrives to disk: %w", err)
	}
	return n, nil
}

// Reader reads from the beginning what was written. It may be called again, but not before the last
// Write.
func (s *Spool) Reader() io.Reader {
	if s.file == nil {
		return bytes.NewReader(s.head.Bytes())
	}
	return io.NewSectionReader(s.file, 0, s.size)
}

// Close gives the memory and the file back. It can be called twice.
func (s *Spool) Close() {
	s.head = bytes.Buffer{}
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
}
