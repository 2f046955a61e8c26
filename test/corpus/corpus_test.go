package corpus

import (
	"os"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestSet: a set has what its spec says, signed, and is made once.
func TestSet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := Spec{Repositories: 3, Roots: 31, Comments: 2, Pulls: true, Commit: "0123456789012345678901234567890123456789"}
	path, err := File(spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != spec.Size() || spec.Size() != 93 {
		t.Fatalf("%d events, want %d", len(lines), spec.Size())
	}
	kinds := map[int]int{}
	roots := map[string]bool{}
	last := nostr.Timestamp(0)
	for _, line := range lines {
		var ev nostr.Event
		if err := ev.UnmarshalJSON(line); err != nil {
			t.Fatal(err)
		}
		if ok, err := ev.CheckSignature(); !ok || !ev.CheckID() {
			t.Fatalf("%s is not signed: %v", line, err)
		}
		kinds[ev.Kind]++
		switch {
		case ev.CreatedAt <= last:
			t.Errorf("%s is not younger than the one before", line)
		case ev.Kind != 1111:
			roots[ev.ID] = true
		case !roots[ev.Tags.Find("E")[1]]:
			t.Errorf("%s has no root", line)
		}
		last = ev.CreatedAt
	}
	if kinds[1621] != 11 || kinds[1617] != 10 || kinds[1618] != 10 || kinds[1111] != 62 {
		t.Errorf("kinds: %v", kinds)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := File(spec, dir)
	if err != nil || again != path {
		t.Fatalf("again: %s, %v", again, err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("it was made again: %v", err)
	}
	more := Threads(spec, spec.Roots, 2)
	if len(more) != 6 || slices.ContainsFunc(lines, func(l []byte) bool { return string(l) == string(more[0]) }) {
		t.Errorf("two more threads: %d events", len(more))
	}
}
