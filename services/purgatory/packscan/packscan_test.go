package packscan_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/repository/gittest"
)

var limits = packscan.Limits{Objects: 1000, ObjectBytes: 1 << 20, Bytes: 8 << 20}

func TestRealPacks(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	first := w.Commit("a", gittest.Noise(100<<10))
	w.Commit("a", gittest.Noise(100<<10)+"more")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	for name, pack := range map[string][]byte{
		"whole":    w.Pack("main", "v1"),
		"thin":     w.Pack("main", "^"+first),
		"ref":      gittest.Input(t, w.Dir, []byte("main\n"), "pack-objects", "--revs", "--stdout", "-q", "--no-reuse-delta"),
		"offset":   gittest.Input(t, w.Dir, []byte("main\n"), "pack-objects", "--revs", "--stdout", "-q", "--delta-base-offset"),
		"trailing": append(w.Pack("main"), "\n"...),
		"empty":    gittest.Pack(),
	} {
		summary, err := packscan.Scan(iotest.OneByteReader(bytes.NewReader(pack)), limits, nil)
		claimed := int(binary.BigEndian.Uint32(pack[8:]))
		if err != nil || summary.Objects != claimed || name == "whole" && summary.Bytes < 100<<10 {
			t.Errorf("%s: %+v, %v", name, summary, err)
		}
		if name == "trailing" {
			continue
		}
		for _, cut := range []int{0, 3, 11, 12, 13, len(pack) / 2, len(pack) - 1} {
			_, err := packscan.Scan(bytes.NewReader(pack[:min(cut, len(pack)-1)]), limits, nil)
			if _, ok := errors.AsType[*packscan.Error](err); !ok {
				t.Errorf("%s, the first %d bytes: %v", name, cut, err)
			}
		}
		broken := errors.New("the connection was lost")
		if _, err := packscan.Scan(io.MultiReader(bytes.NewReader(pack[:len(pack)-1]), iotest.ErrReader(broken)), limits, nil); !errors.Is(err, broken) {
			t.Errorf("%s, cut off: %v", name, err)
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	small := []byte("hello")
	damaged := gittest.Pack(gittest.Blob(small))
	damaged[15] ^= 0xff
	for _, test := range []struct {
		name, reason string
		pack         []byte
	}{
		{"nothing", "does not begin as a pack", nil},
		{"a story", "does not begin as a pack", []byte("a story about something else")},
		{"version 4", "version 4", []byte("PACK\x00\x00\x00\x04\x00\x00\x00\x00")},
		{"2^32-1 objects", "claims to have 4294967295 objects, more than 1000", []byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff0000000")},
		{"fewer than it says", "ends too soon", gittest.PackThatClaims(2, gittest.Blob(small))[:30]},
		{"type 0", "type 0", gittest.Pack(gittest.Raw(0, 5, small))},
		{"type 5", "type 5", gittest.Pack(gittest.Raw(5, 5, small))},
		{"longer", "longer than it says", gittest.Pack(gittest.Raw(3, 4, small))},
		{"shorter", "shorter than it says", gittest.Pack(gittest.Raw(3, 6, small))},
		{"damaged", "damaged", damaged},
		{"a blob of zeros", "object of 1048577 bytes, more than 1048576", gittest.Pack(gittest.Blob(make([]byte, 1<<20+1)))},
		{"many blobs", "more than 8388608 bytes together", gittest.Pack(slices.Repeat([][]byte{gittest.Blob(make([]byte, 1<<20))}, 9)...)},
		{"a delta that makes much", "object of 4294967296 bytes", gittest.Pack(gittest.Blob(small), gittest.RefDelta(small, gittest.DeltaHeader(5, 4<<30)))},
		{"a delta of much", "object of 4294967296 bytes", gittest.Pack(gittest.RefDelta(small, gittest.DeltaHeader(4<<30, 5)))},
		{"many deltas", "more than 8388608 bytes together", gittest.Pack(slices.Repeat([][]byte{gittest.RefDelta(small, gittest.DeltaHeader(5, 1<<20))}, 9)...)},
		{"an empty delta", "a delta is damaged", gittest.Pack(gittest.RefDelta(small, nil))},
		{"a delta on what comes before all", "not in the pack", gittest.Pack(gittest.OffsetDelta(100, gittest.DeltaHeader(5, 5)))},
		{"a size of 70 bits", "2^60", append([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01"), bytes.Repeat([]byte{0xbf}, 12)...)},
	} {
		_, err := packscan.Scan(bytes.NewReader(test.pack), limits, nil)
		if refused, ok := errors.AsType[*packscan.Error](err); !ok || !strings.Contains(refused.Reason, test.reason) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// TestHistoriesOfLargeFiles are far larger than their packs, if each version is a delta.
func TestHistoriesOfLargeFiles(t *testing.T) {
	t.Parallel()
	const size = 512 << 20
	most := packscan.Limits{Objects: 1000, ObjectBytes: size, Bytes: 256 << 30}
	for versions, ok := range map[int]bool{40: true, 60: false} {
		entries := [][]byte{gittest.Blob([]byte(gittest.Noise(12 << 20)))}
		for range versions {
			entries = append(entries, gittest.RefDelta([]byte("hello"), gittest.DeltaHeader(5, size)))
		}
		_, err := packscan.Scan(bytes.NewReader(gittest.Pack(entries...)), most, nil)
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "2048 times its size") {
			t.Errorf("%d versions: %v", versions, err)
		}
	}
}

func FuzzScan(f *testing.F) {
	f.Add(gittest.Pack(gittest.Blob([]byte("hello")), gittest.RefDelta([]byte("hello"), append(gittest.DeltaHeader(5, 3), 0x90, 3))))
	f.Add([]byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff0000000"))
	f.Fuzz(func(t *testing.T, pack []byte) {
		small := packscan.Limits{Objects: 100, ObjectBytes: 1 << 16, Bytes: 1 << 18}
		summary, err := packscan.Scan(bytes.NewReader(pack), small, &seen{})
		if _, ok := errors.AsType[*packscan.Error](err); err != nil && !ok {
			t.Fatalf("%T %v", err, err)
		}
		if summary.Objects > small.Objects || err == nil && summary.Bytes > small.Bytes {
			t.Fatalf("%+v", summary)
		}
		if err == nil && len(pack) < 12+20+2*summary.Objects {
			t.Fatalf("%d objects in %d bytes", summary.Objects, len(pack))
		}
	})
}

func BenchmarkScan(b *testing.B) {
	w := gittest.NewWork(b)
	text := &strings.Builder{}
	for i := range 4000 {
		text.WriteString(gittest.Noise(40)[:i%40] + "the quick brown fox jumps over the lazy dog\n")
	}
	w.Commit("a", gittest.Noise(20<<20))
	w.Commit("b", strings.Repeat(text.String(), 20))
	pack := w.Pack("main")
	b.SetBytes(int64(len(pack)))
	for b.Loop() {
		if _, err := packscan.Scan(bytes.NewReader(pack), packscan.Limits{Objects: 1000, ObjectBytes: 1 << 30, Bytes: 1 << 40}, nil); err != nil {
			b.Fatal(err)
		}
	}
}
