package githttp_test

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// packOf writes a pack of these entries, of which some may be what no git writes.
func packOf(entries ...[]byte) []byte { return packThatClaims(len(entries), entries...) }

// packThatClaims writes a pack that says it has that many objects.
func packThatClaims(n int, entries ...[]byte) []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(n))
	for _, entry := range entries {
		pack = append(pack, entry...)
	}
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// raw is an entry of a type (1 commit, 2 tree, 3 blob, 4 tag) that claims a size.
func raw(kind byte, size int64, content []byte) []byte {
	return append(entryHeader(kind, size), deflate(content)...)
}

// blob is an entry that is a blob.
func blob(content []byte) []byte { return raw(3, int64(len(content)), content) }

// zeros is an entry of that many zeros.
func zeros(kind byte, size int64) []byte { return raw(kind, size, make([]byte, size)) }

// refDelta is an entry that is a delta on a blob.
func refDelta(base, delta []byte) []byte {
	id, err := hex.DecodeString(blobID(base))
	if err != nil {
		panic(err)
	}
	return append(append(entryHeader(7, int64(len(delta))), id...), deflate(delta)...)
}

// offsetDelta is an entry that is a delta on the entry that begins so many bytes before it.
func offsetDelta(back int, delta []byte) []byte {
	offset := []byte{byte(back & 0x7f)}
	for back >>= 7; back > 0; back >>= 7 {
		back--
		offset = append([]byte{0x80 | byte(back&0x7f)}, offset...)
	}
	return append(append(entryHeader(6, int64(len(delta))), offset...), deflate(delta)...)
}

// deltaHeader begins a delta: the sizes of its base and of its result.
func deltaHeader(base, result uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, base), result)
}

// blobID is the object id of a blob.
func blobID(content []byte) string {
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

func deflate(content []byte) []byte {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	z.Write(content)
	z.Close()
	return b.Bytes()
}
