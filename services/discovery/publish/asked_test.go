package publish

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"

	"tendril.dev/lib/target"
)

// TestAnswersAreKeptForAWhile: a repository is asked for once in a publication, unless very many ids
// are at hand when more is asked for.
func TestAnswersAreKeptForAWhile(t *testing.T) {
	t.Parallel()
	lists, asked := map[string][]target.ID{}, []string(nil)
	for n, ref := range []string{"a", "b", "c"} {
		for i := range mostAsked/2 + 1 {
			var id target.ID
			binary.BigEndian.PutUint64(id[:], uint64(i))
			id[31] = byte(n)
			lists[ref] = append(lists[ref], id)
		}
	}
	w := wholeIDs{roots: func(_ context.Context, refs []string) (out [][]target.ID, err error) {
		asked = append(asked, refs...)
		for _, ref := range refs {
			out = append(out, lists[ref])
		}
		return out, nil
	}}
	for n, step := range []struct {
		ask, has []string
		times    int // asked so far
	}{
		{[]string{"a"}, []string{"a"}, 1},
		{[]string{"a"}, []string{"a"}, 1},
		{nil, []string{"a"}, 1},
		{[]string{"a", "b"}, []string{"a", "b"}, 2},
		{[]string{"a"}, []string{"a", "b"}, 2},      // it is much, but nothing more is asked for
		{[]string{"b", "c"}, []string{"b", "c"}, 4}, // it was too much: all of these are asked for, the others are gone
		{[]string{"b"}, []string{"b", "c"}, 4},
		{[]string{"a"}, []string{"a"}, 5},
	} {
		if err := w.ask(t.Context(), slices.Clone(step.ask)); err != nil {
			t.Fatal(err)
		}
		held := 0
		for _, list := range w.asked {
			held += len(list)
		}
		if len(w.asked) != len(step.has) || held != w.held || len(asked) != step.times {
			t.Errorf("%d: it has %d lists of %d ids, counts %d, and asked for %v; want %v", n, len(w.asked), held, w.held, asked, step.has)
		}
		for _, ref := range step.has {
			if !slices.Equal(w.asked[ref], lists[ref]) {
				t.Errorf("%d: it has not what %s has", n, ref)
			}
		}
	}
	if w.forget(); w.asked != nil || w.held != 0 {
		t.Error("something is kept")
	}
}
