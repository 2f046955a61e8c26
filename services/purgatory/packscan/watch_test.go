package packscan_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/repository/gittest"
)

// seen writes down what a Watcher is shown.
type seen []string

func (s *seen) Watch(o packscan.Object) {
	*s = append(*s, fmt.Sprintf("%v %v %q", o.Delta, o.Base > 0, o.Content))
}

func TestWatcherSeesFilesAndWhatDeltasAdd(t *testing.T) {
	t.Parallel()
	add := func(text string) []byte { return append([]byte{byte(len(text))}, text...) }
	copied := []byte{0x90, 3} // three bytes from the beginning of the base
	delta := slices.Concat(gittest.DeltaHeader(5, 14), add("one"), add("two"), copied, add("three"))
	pack := gittest.Pack(
		gittest.Blob([]byte("hello")),
		gittest.Blob(nil),
		gittest.Blob(bytes.Repeat([]byte("x"), packscan.WatchedBytes+1)),
		gittest.RefDelta([]byte("hello"), delta),
		gittest.RefDelta([]byte("hello"), slices.Concat(gittest.DeltaHeader(5, 3), []byte{20}, []byte("cut off"))),
		gittest.RefDelta([]byte("hello"), slices.Concat(gittest.DeltaHeader(5, 3), []byte{0xff, 1})),
	)
	var got seen
	if _, err := packscan.Scan(bytes.NewReader(pack), packscan.Limits{Objects: 10, ObjectBytes: 2 << 20, Bytes: 8 << 20}, &got); err != nil {
		t.Fatal(err)
	}
	want := seen{`false false "hello"`, `false false ""`, `true false "onetwo\nthree"`, `true false "cut off"`, `true false ""`}
	if !slices.Equal(got, want) {
		t.Errorf("seen:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
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
	places := map[int64]string{}
	watch := watcher(func(o packscan.Object) {
		switch {
		case !o.Delta:
			places[o.Offset] = string(o.Content)
		case !strings.HasSuffix(places[o.Base], "stands as it is") || !strings.Contains(string(o.Content), "short"):
			t.Errorf("a delta that adds %q to %q", o.Content, places[o.Base])
		default:
			places[o.Offset] = "delta"
		}
	})
	if _, err := packscan.Scan(bytes.NewReader(pack), limits, watch); err != nil || len(places) != 2 {
		t.Errorf("%d objects seen, %v", len(places), err)
	}
}

type watcher func(packscan.Object)

func (w watcher) Watch(o packscan.Object) { w(o) }
