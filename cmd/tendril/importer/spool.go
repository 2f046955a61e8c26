package importer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// record is an event on its way.
type record struct {
	line     int    // of the file, from 1
	kind     int    // as its JSON says, for the order
	verified bool   // its signature was found right, and raw can be sent as it is
	held     bool   // it was held when it was offered the last time
	message  string // of its last rejection
	raw      []byte // its JSON, without line breaks
}

// spool is a file of records that goes with the process. It is written to its end, then read, once
// in either direction, and emptied.
type spool struct {
	file    *os.File
	w       *bufio.Writer
	size    int64 // written
	records int
}

// newSpool makes a spool in a folder; empty: that of temporary files.
func newSpool(dir string) (*spool, error) {
	file, err := os.CreateTemp(dir, "tendril-import-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	// Without a name it goes when the process ends, however it ends.
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("make a temporary file: %w", err), file.Close())
	}
	return &spool{file: file, w: bufio.NewWriterSize(file, 1<<18)}, nil
}

func (s *spool) close() { s.file.Close() }

// A record is written as: its length, its fields, its length again, so that it can be read from
// either side.
const (
	lengthBytes = 4
	fixedBytes  = 1 + 4 + 8 + 2 // flags, kind, line, length of the message

	flagVerified = 1
	flagHeld     = 2

	// maxMessage bounds what is kept of a message, in bytes.
	maxMessage = 1 << 10
)

// add appends a record.
func (s *spool) add(r *record) error {
	message := r.message[:min(len(r.message), maxMessage)]
	var head [lengthBytes + fixedBytes]byte
	length := fixedBytes + len(message) + len(r.raw)
	binary.BigEndian.PutUint32(head[:], uint32(length))
	if r.verified {
		head[lengthBytes] |= flagVerified
	}
	if r.held {
		head[lengthBytes] |= flagHeld
	}
	binary.BigEndian.PutUint32(head[lengthBytes+1:], uint32(r.kind))
	binary.BigEndian.PutUint64(head[lengthBytes+5:], uint64(r.line))
	binary.BigEndian.PutUint16(head[lengthBytes+13:], uint16(len(message)))
	s.w.Write(head[:]) // the first error stays
	s.w.WriteString(message)
	s.w.Write(r.raw)
	if _, err := s.w.Write(head[:lengthBytes]); err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	s.size += int64(length) + 2*lengthBytes
	s.records++
	return nil
}

// parse reads the fields of a record, which share memory with data.
func parse(data []byte) (record, error) {
	if len(data) < fixedBytes {
		return record{}, errBroken
	}
	message := int(binary.BigEndian.Uint16(data[13:]))
	if len(data) < fixedBytes+message {
		return record{}, errBroken
	}
	return record{
		verified: data[0]&flagVerified != 0, held: data[0]&flagHeld != 0,
		kind: int(binary.BigEndian.Uint32(data[1:])), line: int(binary.BigEndian.Uint64(data[5:])),
		message: string(data[fixedBytes : fixedBytes+message]), raw: data[fixedBytes+message:],
	}, nil
}

var errBroken = errors.New("a temporary file is not as it was written")

// empty throws everything away.
func (s *spool) empty() error {
	s.w.Reset(s.file)
	s.size, s.records = 0, 0
	err := s.file.Truncate(0)
	if err == nil {
		_, err = s.file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("empty a temporary file: %w", err)
	}
	return nil
}

// pour moves everything of another spool to the end of this one.
func (s *spool) pour(other *spool) error {
	read, err := other.reader(false)
	if err != nil {
		return err
	}
	for {
		r, err := read()
		if errors.Is(err, io.EOF) {
			return other.empty()
		}
		if err == nil {
			err = s.add(&r)
		}
		if err != nil {
			return err
		}
	}
}

// reader reads all records, from the first on or backward from the last. A record's memory is its
// own. io.EOF after the last.
func (s *spool) reader(backward bool) (next func() (record, error), err error) {
	if err := s.w.Flush(); err != nil {
		return nil, fmt.Errorf("write a temporary file: %w", err)
	}
	if backward {
		return s.backward(), nil
	}
	in := bufio.NewReaderSize(io.NewSectionReader(s.file, 0, s.size), 1<<18)
	return func() (record, error) {
		var length [lengthBytes]byte
		if _, err := io.ReadFull(in, length[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return record{}, io.EOF
			}
			return record{}, fmt.Errorf("read a temporary file: %w", err)
		}
		data := make([]byte, binary.BigEndian.Uint32(length[:])+lengthBytes)
		if _, err := io.ReadFull(in, data); err != nil {
			return record{}, fmt.Errorf("read a temporary file: %w", err)
		}
		return parse(data[:len(data)-lengthBytes])
	}, nil
}

// backward reads pieces of the file, the last one first.
func (s *spool) backward() func() (record, error) {
	const piece = 1 << 18
	end := s.size     // of what was not given yet
	var buffer []byte // what stands before end, as far as it was read
	need := func(n int64) error {
		if int64(len(buffer)) >= n {
			return nil
		}
		from := max(end-max(n, piece), 0)
		if end-from < n {
			return errBroken
		}
		buffer = make([]byte, end-from)
		_, err := s.file.ReadAt(buffer, from)
		return err
	}
	return func() (record, error) {
		if end == 0 {
			return record{}, io.EOF
		}
		if err := need(lengthBytes); err != nil {
			return record{}, fmt.Errorf("read a temporary file: %w", err)
		}
		length := int64(binary.BigEndian.Uint32(buffer[len(buffer)-lengthBytes:]))
		if err := need(length + 2*lengthBytes); err != nil {
			return record{}, fmt.Errorf("read a temporary file: %w", err)
		}
		data := buffer[int64(len(buffer))-length-lengthBytes : len(buffer)-lengthBytes]
		buffer = buffer[:int64(len(buffer))-length-2*lengthBytes]
		end -= length + 2*lengthBytes
		return parse(data)
	}
}
