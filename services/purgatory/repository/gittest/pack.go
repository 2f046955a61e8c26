package gittest

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// Pack writes a pack of these entries, of which some may be what no git writes.
func Pack(entries ...[]byte) []byte { return PackThatClaims(len(entries), entries...) }

// PackThatClaims writes a pack that says it has that many objects.
func PackThatClaims(n int, entries ...[]byte) []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(n))
	for _, entry := range entries {
		pack = append(pack, entry...)
	}
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// Raw is an entry of a type (1 commit, 2 tree, 3 blob, 4 tag) that claims a size.
func Raw(kind byte, size int64, content []byte) []byte {
	return append(entryHeader(kind, size), deflate(content)...)
}

// Blob is an entry that is a blob.
func Blob(content []byte) []byte { return Raw(3, int64(len(content)), content) }

// Zeros is an entry of that many zeros. It is put together from pieces, for deflating gigabytes
// takes long.
func Zeros(kind byte, size int64) []byte {
	const piece = 1 << 20
	entry := append(entryHeader(kind, size), 0x78, 0x9c)
	whole := flushed(piece)
	for range size / piece {
		entry = append(entry, whole...)
	}
	entry = append(entry, flushed(int(size%piece))...)
	entry = append(entry, 3, 0) // an empty last block
	return binary.BigEndian.AppendUint32(entry, uint32(size%65521)<<16|1)
}

// flushed is that many zeros as a part of a deflated stream.
func flushed(zeros int) []byte {
	var b bytes.Buffer
	z, err := flate.NewWriter(&b, flate.BestCompression)
	if err != nil {
		panic(err)
	}
	z.Write(make([]byte, zeros))
	z.Flush()
	return b.Bytes()
}

// RefDelta is an entry that is a delta on a blob.
func RefDelta(base, delta []byte) []byte {
	id, err := hex.DecodeString(BlobID(base))
	if err != nil {
		panic(err)
	}
	return append(append(entryHeader(7, int64(len(delta))), id...), deflate(delta)...)
}

// OffsetDelta is an entry that is a delta on the entry that begins so many bytes before it.
func OffsetDelta(back int, delta []byte) []byte {
	offset := []byte{byte(back & 0x7f)}
	for back >>= 7; back > 0; back >>= 7 {
		back--
		offset = append([]byte{0x80 | byte(back&0x7f)}, offset...)
	}
	return append(append(entryHeader(6, int64(len(delta))), offset...), deflate(delta)...)
}

// DeltaHeader begins a delta: the sizes of its base and of its result.
func DeltaHeader(base, result uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, base), result)
}

// BlobID is the object id of a blob.
func BlobID(content []byte) string {
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(content)), content...))
	return hex.EncodeToString(sum[:])
}

func entryHeader(kind byte, size int64) []byte {
	b := kind<<4 | byte(size&15)
	var header []byte
	for size >>= 4; size > 0; size >>= 7 {
		header = append(header, b|0x80)
		b = byte(size & 0x7f)
	}
	return append(header, b)
}

// deflaters are used again: a new one takes most of a megabyte.
var deflaters = sync.Pool{New: func() any { return zlib.NewWriter(nil) }}

func deflate(content []byte) []byte {
	var b bytes.Buffer
	z := deflaters.Get().(*zlib.Writer)
	defer deflaters.Put(z)
	z.Reset(&b)
	z.Write(content)
	z.Close()
	return b.Bytes()
}

// Age makes all objects of a pack of unreached objects, whose table of times is given, as old as
// this (gitformat-pack, "pack-*.mtimes files"). name is its path without suffix.
func Age(t testing.TB, name string, table []byte, at time.Time) {
	t.Helper()
	const header, sum = 12, sha1.Size
	for i := header; i < len(table)-2*sum; i += 4 {
		binary.BigEndian.PutUint32(table[i:], uint32(at.Unix()))
	}
	whole := sha1.Sum(table[:len(table)-sum])
	copy(table[len(table)-sum:], whole[:])
	file := name + ".mtimes"
	err := errors.Join(os.Chmod(file, 0o644), os.WriteFile(file, table, 0o444))
	for _, suffix := range []string{".pack", ".mtimes", ".idx"} {
		err = errors.Join(err, os.Chtimes(name+suffix, at, at))
	}
	if err != nil {
		t.Fatal(err)
	}
}
