// Package spool keeps bytes that arrive until they are all there: a little in memory, more in a
// scratch file. Whoever sends slowly keeps no process and no lock meanwhile.
package spool

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// Spool is bytes on their way in. It is written by one goroutine, and then read.
type Spool struct {
	// Memory is how many bytes are kept in memory before all go to disk.
	Memory int
	// Scratch opens the file, when it is needed.
	Scratch func() (*os.File, error)
	// Grow is called before more bytes go to disk. Its error ends the writing. nil: there is no
	// bound.
	Grow func(bytes int64) error

	head bytes.Buffer
	file *os.File
	size int64
}

// Size is the number of bytes written.
func (s *Spool) Size() int64 { return s.size }

// Write appends. Its errors come from Scratch, Grow or the disk.
func (s *Spool) Write(p []byte) (int, error) {
	if s.file == nil && s.head.Len()+len(p) <= s.Memory {
		s.size += int64(len(p))
		return s.head.Write(p)
	}
	if s.Grow != nil {
		if err := s.Grow(int64(s.head.Len() + len(p))); err != nil {
			return 0, err
		}
	}
	if s.file == nil {
		file, err := s.Scratch()
		if err != nil {
			return 0, err
		}
		s.file = file
	}
	if s.head.Len() > 0 {
		if _, err := s.head.WriteTo(s.file); err != nil {
			return 0, fmt.Errorf("write what arrives to disk: %w", err)
		}
		s.head = bytes.Buffer{}
	}
	n, err := s.file.Write(p)
	s.size += int64(n)
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
