package smallpack_test

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"tendril.dev/services/purgatory/repository/gittest"
	"tendril.dev/services/purgatory/smallpack"
)

// crowdedFolders is a sound pack, far below the bounds, in which folders of many files that are all
// the same one name an object 49 deltas deep. It returns the ids of these folders.
func crowdedFolders(t *testing.T) (pack []byte, tips []string) {
	t.Helper()
	const deltas, folders, files = 49, 8, 30_000
	var entries [][]byte
	content := []byte("the first of many blobs\n")
	entries = append(entries, gittest.Blob(content))
	for n := range deltas {
		more := fmt.Appendf(nil, "%d\n", n)
		delta := gittest.DeltaHeader(uint64(len(content)), uint64(len(content)+len(more)))
		delta = append(delta, 0x90, byte(len(content))) // copy all of the base
		delta = append(append(delta, byte(len(more))), more...)
		entries = append(entries, gittest.RefDelta(content, delta))
		content = append(bytes.Clone(content), more...)
	}
	file := ids(t, gittest.BlobID(content))[0]
	var first []byte
	for n := range files {
		first = append(append(first, fmt.Sprintf("100644 %06d\x00", n)...), file[:]...)
	}
	folder := func(tree []byte) {
		sum := sha1.Sum(append(fmt.Appendf(nil, "tree %d\x00", len(tree)), tree...))
		tips = append(tips, smallpack.ID(sum).String())
	}
	folder(first)
	entries = append(entries, gittest.Raw(2, int64(len(first)), first))
	back := len(entries[len(entries)-1])
	for n := 1; n < folders; n++ {
		// The same, but for the name of the first file.
		name := fmt.Sprintf("100644 %06d", 0) + fmt.Sprint(n)
		folder(append([]byte(name), first[len("100644 000000"):]...))
		delta := gittest.DeltaHeader(uint64(len(first)), uint64(len(first)+1))
		delta = append(append(delta, byte(len(name))), name...)
		for at := len("100644 000000"); at < len(first); {
			size := min(len(first)-at, 0xffffff)
			delta = append(delta, 0x80|0x0f|0x70)
			delta = binary.LittleEndian.AppendUint32(delta, uint32(at))
			delta = append(delta, byte(size), byte(size>>8), byte(size>>16))
			at += size
		}
		entries = append(entries, gittest.OffsetDelta(back, delta))
		back += len(entries[len(entries)-1])
	}
	return gittest.Pack(entries...), tips
}

// TestLinksToOneObjectAreLookedUpOnce: however many entries of folders name it, and however many
// deltas it stands on.
func TestLinksToOneObjectAreLookedUpOnce(t *testing.T) {
	pack, tips := crowdedFolders(t)
	set, err := indexed(t, pack)
	if err != nil {
		t.Fatal(err)
	}
	roots := ids(t, tips...)
	allocs := testing.AllocsPerRun(1, func() {
		if reached, err := set.Walk(roots); err != nil || len(reached) != len(tips)+1 {
			t.Errorf("walked %d objects, %v", len(reached), err)
		}
	})
	if allocs > 10_000 {
		t.Errorf("%v allocations for %d objects", allocs, len(tips)+1)
	}
}

// deepFolders is a sound pack of as many small folders, most of which stand on up to 49 deltas. It
// returns their ids.
func deepFolders(t *testing.T, folders int) (pack []byte, tips []string) {
	t.Helper()
	blob := []byte("x")
	entries := [][]byte{gittest.Blob(blob)}
	file := ids(t, gittest.BlobID(blob))[0]
	var last []byte
	for n := range folders {
		name := fmt.Sprintf("100644 %05d", n)
		folder := append([]byte(name+"\x00"), file[:]...)
		sum := sha1.Sum(append(fmt.Appendf(nil, "tree %d\x00", len(folder)), folder...))
		tips = append(tips, smallpack.ID(sum).String())
		entry := gittest.Raw(2, int64(len(folder)), folder)
		if n%50 > 0 {
			delta := gittest.DeltaHeader(uint64(len(last)), uint64(len(folder)))
			delta = append(append(delta, byte(len(name))), name...)
			delta = append(delta, 0x91, byte(len(name)), byte(len(folder)-len(name))) // copy the rest
			entry = gittest.OffsetDelta(len(entries[len(entries)-1]), delta)
		}
		entries, last = append(entries, entry), folder
	}
	return gittest.Pack(entries...), tips
}

// TestEveryDeltaCounts: objects of a few bytes at the ends of long chains are much work, and hardly
// any bytes.
func TestEveryDeltaCounts(t *testing.T) {
	t.Parallel()
	pack, tips := deepFolders(t, 3000)
	set, err := indexed(t, pack)
	if err != nil {
		t.Fatal(err)
	}
	if reached, err := set.Walk(ids(t, tips[:200]...)); err != nil || len(reached) != 201 {
		t.Errorf("walked %d objects, %v", len(reached), err)
	}
	if _, err := set.Walk(ids(t, tips...)); !errors.Is(err, smallpack.ErrNotSmall) {
		t.Errorf("75,000 deltas were applied: %v", err)
	}
}
