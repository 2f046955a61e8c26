// Package packscan reads a git pack (gitformat-pack) as it arrives and says whether it is one that
// git may be given: how many objects it has, how large each is, and how large all are that its
// deltas make. It applies no delta and computes no id; git does that, of a pack that is known to be
// bounded.
package packscan

import (
	"bufio"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// HeaderBytes is the length of a pack's header.
	HeaderBytes = 12

	idBytes = 20
	// bufferBytes is how much is read at once.
	bufferBytes = 64 << 10

	// freeInflation and inflation bound what is inflated of the first n bytes of a pack:
	// freeInflation + n * inflation. What is beyond it takes far more work to read than to send.
	freeInflation = 256 << 20
	inflation     = 64
	// freeBytes and growth bound in the same way what all objects have together, with the results
	// of deltas. A file of 1 MB of which a program commits a new version every hour has some
	// thousand times the size of its pack after two years.
	freeBytes = 4 << 30
	growth    = 2048

	// maxMetadata bounds a commit, tree or tag that is no delta, in bytes.
	maxMetadata = 64 << 20
)

// Limits bound a pack.
type Limits struct {
	Objects     int   // most objects
	ObjectBytes int64 // largest object, unpacked, also the base and the result of a delta
	Bytes       int64 // most bytes of all objects together, unpacked and with the results of deltas
}

// Summary is what a pack has.
type Summary struct {
	Objects int
	Bytes   int64 // as Limits.Bytes counts them
}

// Error is why a pack is not acceptable, in words for whoever sent it.
type Error struct{ Reason string }

// Error is the reason.
func (e *Error) Error() string { return e.Reason }

func bad(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Objects reads how many objects a pack claims to have, from its first 12 bytes. The error is an
// *Error.
func Objects(header []byte, most int) (int, error) {
	if len(header) < HeaderBytes || string(header[:4]) != "PACK" {
		return 0, bad("it does not begin as a pack does")
	}
	if version := binary.BigEndian.Uint32(header[4:]); version != 2 && version != 3 {
		return 0, bad("it is of version %d", version)
	}
	n := binary.BigEndian.Uint32(header[8:])
	if int64(n) > int64(most) {
		return 0, bad("it claims to have %d objects, more than %d", n, most)
	}
	return int(n), nil
}

// Scan reads a pack to the end of its checksum, which it does not check, and may read on a little.
// Its error is an *Error where the pack is at fault; one that came from reading is in the chain as
// it is. watcher sees the objects; nil: nobody does.
func Scan(r io.Reader, limits Limits, watcher Watcher) (Summary, error) {
	source := &source{from: r}
	s := &scanner{in: &countedReader{from: bufio.NewReaderSize(source, bufferBytes)}, limits: limits, watcher: watcher, buffer: make([]byte, 32<<10)}
	summary, err := s.scan()
	if source.err != nil && err != nil {
		return summary, source.err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return summary, bad("it ends too soon")
	}
	return summary, err
}

type scanner struct {
	in       *countedReader
	limits   Limits
	inflater io.ReadCloser // nil until the first object
	inflated int64
	bytes    int64
	buffer   []byte
	watcher  Watcher
}

func (s *scanner) scan() (Summary, error) {
	header := make([]byte, HeaderBytes)
	if n, err := io.ReadFull(s.in, header); err != nil {
		if _, noPack := Objects(header[:n], s.limits.Objects); n < 4 || string(header[:4]) != "PACK" {
			return Summary{}, noPack
		}
		return Summary{}, err
	}
	objects, err := Objects(header, s.limits.Objects)
	if err != nil {
		return Summary{}, err
	}
	for n := range objects {
		if err := s.object(); err != nil {
			return Summary{Objects: n, Bytes: s.bytes}, err
		}
	}
	_, err = s.in.discard(idBytes)
	return Summary{Objects: objects, Bytes: s.bytes}, err
}

// Types of objects in a pack.
const (
	commit   = byte(Commit)
	tree     = byte(Tree)
	blob     = byte(Blob)
	tag      = byte(Tag)
	ofsDelta = byte(Delta)
	refDelta = 7
)

// object reads one object.
func (s *scanner) object() error {
	start := s.in.n
	kind, size, err := s.objectHeader()
	if err != nil {
		return err
	}
	limit := s.limits.ObjectBytes
	o := Object{Kind: Kind(kind), Offset: start}
	switch kind {
	case commit, tree, tag:
		limit = min(limit, maxMetadata)
	case blob:
	case ofsDelta:
		back, err := s.offset()
		if err != nil {
			return err
		}
		if back == 0 || back > start-HeaderBytes {
			return bad("a delta stands on what is not in the pack")
		}
		o.Base = start - back
	case refDelta:
		o.Kind = Delta
		if _, err := s.in.discard(idBytes); err != nil {
			return err
		}
	default:
		return bad("it has an object of type %d", kind)
	}
	if size > limit {
		return bad("it has an object of %d bytes, more than %d", size, limit)
	}
	if err := s.count(size); err != nil {
		return err
	}
	show := s.watcher != nil && s.watcher.Begin(o)
	if err := s.inflate(size, o.Kind == Delta, show); err != nil {
		return err
	}
	if show {
		s.watcher.End()
	}
	return nil
}

// objectHeader reads the type and the unpacked size of an object.
func (s *scanner) objectHeader() (kind byte, size int64, err error) {
	b, err := s.in.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	kind, size = b>>4&7, int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = s.in.ReadByte(); err != nil {
			return 0, 0, err
		}
		if shift > 53 {
			return 0, 0, bad("it has an object of more than 2^60 bytes")
		}
		size |= int64(b&0x7f) << shift
	}
	return kind, size, nil
}

// offset reads how far before a delta its base begins.
func (s *scanner) offset() (int64, error) {
	b, err := s.in.ReadByte()
	if err != nil {
		return 0, err
	}
	n := int64(b & 0x7f)
	for b&0x80 != 0 {
		if b, err = s.in.ReadByte(); err != nil {
			return 0, err
		}
		if n >= 1<<54 {
			return 0, bad("a delta stands on what is not in the pack")
		}
		n = (n+1)<<7 | int64(b&0x7f)
	}
	return n, nil
}

// count adds to the bytes of all objects.
func (s *scanner) count(size int64) error {
	if s.bytes += size; s.bytes > s.limits.Bytes {
		return bad("its objects have more than %d bytes together", s.limits.Bytes)
	}
	if s.bytes > freeBytes+s.in.n*growth {
		return bad("its objects have more than %d times its size", growth)
	}
	return nil
}

// inflate reads the content of an object, which must have exactly the size that was said. With show
// the watcher sees it.
func (s *scanner) inflate(size int64, delta, show bool) error {
	if err := s.reset(); err != nil {
		return err
	}
	var head []byte
	var added inserts
	for left := size; ; {
		n, err := s.inflater.Read(s.buffer)
		if left -= int64(n); left < 0 {
			return bad("an object is longer than it says")
		}
		s.inflated += int64(n)
		if s.inflated > freeInflation+s.in.n*inflation {
			return bad("it unpacks to more than %d times its size", inflation)
		}
		if delta && len(head) < maxDeltaHeader {
			head = append(head, s.buffer[:min(n, maxDeltaHeader-len(head))]...)
		}
		if show && delta {
			added.next(s.buffer[:n], s.watcher.Part)
		} else if show && n > 0 {
			show = s.watcher.Part(s.buffer[:n])
		}
		if errors.Is(err, io.EOF) {
			if left > 0 {
				return bad("an object is shorter than it says")
			}
			break
		}
		if err != nil {
			return s.broken(err)
		}
	}
	if !delta {
		return nil
	}
	return s.delta(head)
}

// broken tells damage from an end that came too soon.
func (s *scanner) broken(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return bad("an object is damaged: %v", err)
}

func (s *scanner) reset() (err error) {
	if s.inflater == nil {
		s.inflater, err = zlib.NewReader(s.in)
	} else {
		err = s.inflater.(zlib.Resetter).Reset(s.in, nil)
	}
	if err != nil {
		return s.broken(err)
	}
	return nil
}

// maxDeltaHeader is the length of the longest header of a delta: two sizes of 64 bits, 7 in a byte.
const maxDeltaHeader = 20

// delta reads from the head of a delta how large its base and its result are.
func (s *scanner) delta(head []byte) error {
	base, result, ok := deltaSizes(head)
	if !ok {
		return bad("a delta is damaged")
	}
	if largest := max(base, result); largest > uint64(s.limits.ObjectBytes) {
		return bad("it has an object of %d bytes, more than %d", largest, s.limits.ObjectBytes)
	}
	return s.count(int64(result))
}

// countedReader knows how far it has read.
type countedReader struct {
	from *bufio.Reader
	n    int64
}

// Read counts what it reads.
func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

// ReadByte lets an inflater read no further than the end of its object.
func (c *countedReader) ReadByte() (byte, error) {
	b, err := c.from.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}

func (c *countedReader) discard(n int) (int, error) {
	n, err := c.from.Discard(n)
	c.n += int64(n)
	return n, err
}

// source remembers how reading failed.
type source struct {
	from io.Reader
	err  error
}

// Read reads from the source.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}
