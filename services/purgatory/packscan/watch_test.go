package packscan_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/repository/gittest"
)

// seen writes down what a Watcher is shown. Trees are not shown, and of each object one part more
// than there are bytes in most, if that is more than 0.
type seen struct {
	all  []string
	most int
	now  bytes.Buffer
}

func (s *seen) Begin(o packscan.Object) bool {
	s.all = append(s.all, fmt.Sprintf("%d %v", o.Kind, o.Base > 0))
	s.now.Reset()
	return o.Kind != packscan.Tree
}

func (s *seen) Part(content []byte) bool {
	s.now.Write(content)
	return s.most == 0 || s.now.Len() < s.most
}

func (s *seen) End() { s.all[len(s.all)-1] += fmt.Sprintf(" %q", s.now.String()) }

func TestWatcherSeesFilesAndWhatDeltasAdd(t *testing.T) {
	t.Parallel()
	add := func(text string) []byte { return append([]byte{byte(len(text))}, text...) }
	copied := []byte{0x90, 3} // three bytes from the beginning of the base
	delta := slices.Concat(gittest.DeltaHeader(5, 1400), copied, add("one"), add("two"), copied, copied, add("three"), copied)
	pack := gittest.Pack(
		gittest.Blob([]byte("hello")),
		gittest.Blob(nil),
		gittest.Raw(1, 6, []byte("commit")),
		gittest.Raw(2, 4, []byte("tree")),
		gittest.Raw(4, 3, []byte("tag")),
		gittest.Blob(bytes.Repeat([]byte("x"), 100_000)),
		gittest.RefDelta([]byte("hello"), delta),
		gittest.RefDelta([]byte("hello"), slices.Concat(gittest.DeltaHeader(5, 3), []byte{20}, []byte("cut off"))),
		gittest.RefDelta([]byte("hello"), slices.Concat(gittest.DeltaHeader(5, 3), []byte{0xff, 1})),
	)
	want := []string{
		`3 false "hello"`, `3 false ""`, `1 false "commit"`, `2 false`, `4 false "tag"`, `3 false "` + strings.Repeat("x", 100_000) + `"`,
		`6 false "onetwo\nthree"`, `6 false "cut off"`, `6 false ""`,
	}
	few := slices.Clone(want)
	few[5], few[6] = few[5][:9+32<<10]+`"`, `6 false "onetwo"`
	large := packscan.Limits{Objects: 10, ObjectBytes: 2 << 20, Bytes: 8 << 20}
	for most, want := range map[int][]string{0: want, 6: few} {
		s := &seen{most: most}
		if _, err := packscan.Scan(bytes.NewReader(pack), large, s); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.all, want) {
			t.Errorf("seen:\n%.400s\nwant:\n%.400s", strings.Join(s.all, "\n"), strings.Join(want, "\n"))
		}
	}
	slow := &seen{}
	if _, err := packscan.Scan(iotest.OneByteReader(bytes.NewReader(pack)), large, slow); err != nil || !slices.Equal(slow.all, want) {
		t.Errorf("byte by byte: %.400q, %v", slow.all, err)
	}
}

// TestWatcherIsToldOfBases: git's own packs name the base of a delta by its place.
func TestWatcherIsToldOfBases(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	text := strings.Repeat("a line that both have\n", 100) + gittest.Noise(200)
	w.Commit("a", text+"the longer version stands as it is")
	w.Commit("a", text+"short")
	pack := gittest.Input(t, w.Dir, []byte("main\n"), "pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q")
	s := &seen{}
	if _, err := packscan.Scan(bytes.NewReader(pack), limits, s); err != nil {
		t.Fatal(err)
	}
	delta := slices.IndexFunc(s.all, func(o string) bool { return strings.HasPrefix(o, "6 true ") && strings.Contains(o, "short") })
	base := slices.IndexFunc(s.all, func(o string) bool { return strings.HasPrefix(o, "3 ") && strings.HasSuffix(o, `stands as it is"`) })
	if base < 0 || delta < base {
		t.Errorf("%q", s.all)
	}
}
