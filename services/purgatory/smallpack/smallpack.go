// Package smallpack reads git objects out of packs that are small enough to be held in memory, and
// walks what they link to. A new repository has one such pack as a rule, and to start git for each
// question about it would be most of what a new repository costs.
//
// Git has checked every pack that is read here (index-pack --strict). Sizes are bounded all the
// same: whatever is larger, deeper or odd is ErrNotSmall, and git must be asked.
package smallpack

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// ErrNotSmall is what is not answered here: packs or objects that are too large, and whatever is
// not as git writes it.
var ErrNotSmall = errors.New("not a small pack")

// Bounds of what is read into memory.
const (
	maxPackBytes = 1 << 20  // of all packs of a set, and of their indexes
	maxObjects   = 10_000   // in a set
	maxInflated  = 16 << 20 // bytes that one walk inflates
	maxObject    = 1 << 20  // bytes of one commit, tree or tag, and of a delta
	maxDepth     = 50       // deltas that stand one on the other

	// inflateCost is what it costs at least to inflate something, counted as bytes of maxInflated.
	// Objects and deltas of a few bytes, at the end of long chains, are inflated again and again.
	inflateCost = 256
)

// idBytes is the length of an object id (SHA-1).
const idBytes = 20

// ID is an object id.
type ID [idBytes]byte

// String is the id in hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID reads an id of 40 hex digits.
func ParseID(s string) (id ID, ok bool) {
	if len(s) != 2*idBytes {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil
}

// Kind is the type of an object, as packs number them (gitformat-pack).
type Kind byte

// The types.
const (
	Commit Kind = 1
	Tree   Kind = 2
	Blob   Kind = 3
	Tag    Kind = 4

	offsetDelta Kind = 6
	refDelta    Kind = 7
)

// String is git's word for the type.
func (k Kind) String() string {
	switch k {
	case Commit:
		return "commit"
	case Tree:
		return "tree"
	case Blob:
		return "blob"
	case Tag:
		return "tag"
	}
	return fmt.Sprintf("type %d", byte(k))
}

// pack is one pack and its index.
type pack struct {
	data    []byte
	ids     []byte // sorted, idBytes each
	offsets []byte // 4 bytes each, in the order of the ids
}

// Set is some packs that together have the objects of a repository.
type Set struct {
	packs    []pack
	bytes    int64
	objects  int
	inflated int64
	inflater io.ReadCloser // for one object after the other: a new one takes 40 KiB
}

// Add reads a pack, by its path without suffix. ErrNotSmall: the set is too large with it.
func (s *Set) Add(path string) error {
	var files [2][]byte
	for i, suffix := range []string{".idx", ".pack"} {
		content, err := s.read(path + suffix)
		if err != nil {
			return err
		}
		files[i] = content
	}
	p, err := parse(files[0], files[1])
	if err != nil {
		return err
	}
	if s.objects += p.count(); s.objects > maxObjects {
		return fmt.Errorf("%w: %d objects", ErrNotSmall, s.objects)
	}
	s.packs = append(s.packs, p)
	return nil
}

func (s *Set) read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read a pack: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read a pack: %w", err)
	}
	if s.bytes += info.Size(); s.bytes > maxPackBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrNotSmall, s.bytes)
	}
	content := make([]byte, info.Size())
	if _, err := io.ReadFull(f, content); err != nil {
		return nil, fmt.Errorf("read a pack: %w", err)
	}
	return content, nil
}

const (
	fanOut      = 256 * 4
	indexHeader = 8 + fanOut // the magic number, the version and the fan-out table
	packHeader  = 12
	checksum    = 20
)

// parse reads an index of version 2.
func parse(index, data []byte) (pack, error) {
	if len(index) < indexHeader || !bytes.HasPrefix(index, []byte("\xfftOc\x00\x00\x00\x02")) {
		return pack{}, fmt.Errorf("%w: the index is not of version 2", ErrNotSmall)
	}
	n := int(binary.BigEndian.Uint32(index[indexHeader-4:]))
	if n > maxObjects || len(index) < indexHeader+n*(idBytes+4+4) || len(data) < packHeader+checksum {
		return pack{}, fmt.Errorf("%w: the index names %d objects", ErrNotSmall, n)
	}
	ids := index[indexHeader:]
	offsets := ids[n*(idBytes+4):] // behind the ids and their CRCs
	return pack{data: data[:len(data)-checksum], ids: ids[:n*idBytes], offsets: offsets[:n*4]}, nil
}

func (p pack) count() int { return len(p.ids) / idBytes }

// find returns where an object begins.
func (p pack) find(id ID) (offset int, found bool) {
	at := sort.Search(p.count(), func(i int) bool { return bytes.Compare(p.ids[i*idBytes:(i+1)*idBytes], id[:]) >= 0 })
	if at == p.count() || ID(p.ids[at*idBytes:(at+1)*idBytes]) != id {
		return 0, false
	}
	return int(binary.BigEndian.Uint32(p.offsets[at*4:])), true
}

// entry is the head of an object in a pack.
type entry struct {
	kind Kind
	size int64  // inflated
	base int    // of an offset delta: where its base begins
	ref  ID     // of a delta: the id of its base
	data []byte // deflated, and what follows it in the pack
}

// entry reads the head of the object that begins at an offset.
func (p pack) entry(offset int) (e entry, err error) {
	odd := func() error { return fmt.Errorf("%w: no object begins at byte %d of the pack", ErrNotSmall, offset) }
	if offset < packHeader || offset >= len(p.data) {
		return e, odd()
	}
	rest := p.data[offset:]
	b := rest[0]
	rest = rest[1:]
	e.kind, e.size = Kind(b>>4&7), int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if len(rest) == 0 || shift > 32 {
			return e, odd()
		}
		b, rest = rest[0], rest[1:]
		e.size |= int64(b&0x7f) << shift
	}
	switch e.kind {
	case Commit, Tree, Blob, Tag:
	case offsetDelta:
		back := 0
		for i := 0; ; i++ {
			if len(rest) == 0 || i > 4 {
				return e, odd()
			}
			b, rest = rest[0], rest[1:]
			if back = back<<7 | int(b&0x7f); b&0x80 == 0 {
				break
			}
			back++
		}
		if e.base = offset - back; back == 0 || e.base < packHeader {
			return e, odd()
		}
	case refDelta:
		if len(rest) < idBytes {
			return e, odd()
		}
		e.ref, rest = ID(rest[:idBytes]), rest[idBytes:]
	default:
		return e, odd()
	}
	e.data = rest
	return e, nil
}

// baseOf is where the object begins that a delta stands on.
func (p pack) baseOf(e entry) (int, error) {
	if e.kind == offsetDelta {
		return e.base, nil
	}
	offset, found := p.find(e.ref)
	if !found {
		return 0, fmt.Errorf("%w: the base of a delta is not in its pack", ErrNotSmall)
	}
	return offset, nil
}

func (s *Set) find(id ID) (p pack, offset int, found bool) {
	for _, p := range s.packs {
		if offset, found := p.find(id); found {
			return p, offset, true
		}
	}
	return pack{}, 0, false
}

// Kind returns the type of an object. found is false if it is in none of the packs.
func (s *Set) Kind(id ID) (kind Kind, found bool, err error) {
	p, offset, found := s.find(id)
	if !found {
		return 0, false, nil
	}
	for range maxDepth {
		e, err := p.entry(offset)
		if err != nil {
			return 0, true, err
		}
		if e.kind != offsetDelta && e.kind != refDelta {
			return e.kind, true, nil
		}
		if offset, err = p.baseOf(e); err != nil {
			return 0, true, err
		}
	}
	return 0, true, fmt.Errorf("%w: more than %d deltas stand on each other", ErrNotSmall, maxDepth)
}

// content returns what an object holds that begins at an offset of a pack.
func (s *Set) content(p pack, offset, depth int) (Kind, []byte, error) {
	if depth > maxDepth {
		return 0, nil, fmt.Errorf("%w: more than %d deltas stand on each other", ErrNotSmall, maxDepth)
	}
	e, err := p.entry(offset)
	if err != nil {
		return 0, nil, err
	}
	content, err := s.inflate(e)
	if err != nil || e.kind != offsetDelta && e.kind != refDelta {
		return e.kind, content, err
	}
	at, err := p.baseOf(e)
	if err != nil {
		return 0, nil, err
	}
	kind, base, err := s.content(p, at, depth+1)
	if err != nil {
		return 0, nil, err
	}
	if err := s.allow(resultSize(content)); err != nil {
		return 0, nil, err
	}
	whole, err := packfile.PatchDelta(base, content)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrNotSmall, err)
	}
	return kind, whole, nil
}

// resultSize is what a delta says that its result has in bytes.
func resultSize(delta []byte) int64 {
	_, n := binary.Uvarint(delta) // the size of the base
	size, m := binary.Uvarint(delta[max(n, 0):])
	if n <= 0 || m <= 0 || size > maxObject {
		return maxObject + 1
	}
	return int64(size)
}

// allow counts bytes that are about to be held.
func (s *Set) allow(size int64) error {
	if s.inflated += max(size, inflateCost); size > maxObject || s.inflated > maxInflated {
		return fmt.Errorf("%w: an object of %d bytes, %d in all", ErrNotSmall, size, s.inflated)
	}
	return nil
}

func (s *Set) inflate(e entry) ([]byte, error) {
	if err := s.allow(e.size); err != nil {
		return nil, err
	}
	z, err := s.open(e.data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSmall, err)
	}
	content := make([]byte, e.size)
	if _, err := io.ReadFull(z, content); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSmall, err)
	}
	if n, err := z.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: an object is longer than it says", ErrNotSmall)
	}
	return content, nil
}

// open begins to inflate. What was opened before is not read any more.
func (s *Set) open(deflated []byte) (io.Reader, error) {
	from := bytes.NewReader(deflated)
	if again, is := s.inflater.(zlib.Resetter); is {
		return s.inflater, again.Reset(from, nil)
	}
	z, err := zlib.NewReader(from)
	if err != nil {
		return nil, err
	}
	s.inflater = z
	return z, nil
}
