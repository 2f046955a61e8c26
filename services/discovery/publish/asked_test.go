package publish

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/wanted"
)

// TestAnswersAreKeptForAWhile: a repository is asked for once in a publication, unless very many
// ids are at hand when more is asked for.
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

// TestWhatIsNotAcceptedIsNotedOnce: every relay may be asked for the same root events, and all that
// are not accepted any more of all repositories are left out of each.
func TestWhatIsNotAcceptedIsNotedOnce(t *testing.T) {
	t.Parallel()
	const repos, relays = 50, 10
	all := wanted.Target{URL: "wss://r.example", Repos: map[string]wanted.Repo{}}
	stays, gone := wanted.ShortOf(target.ID{1}), []wanted.Short{wanted.ShortOf(target.ID{2}), wanted.ShortOf(target.ID{3})}
	some := map[string][]wanted.Short{}
	for n := range repos {
		ref := fmt.Sprint("30617:aa:", n)
		all.Repos[ref] = wanted.Repo{Level: proto.LevelFull, Roots: append([]wanted.Short{stays}, gone...)}
		some[ref] = all.Repos[ref].Roots
	}
	w := wholeIDs{roots: func(_ context.Context, refs []string) (out [][]target.ID, err error) {
		for range refs {
			out = append(out, []target.ID{{1}})
		}
		return out, nil
	}}
	for range relays {
		found, left, err := w.find(t.Context(), contents{}, all, some)
		if err != nil {
			t.Fatal(err)
		}
		for ref, r := range left.Repos {
			if !slices.Equal(r.Roots, []wanted.Short{stays}) || !slices.Equal(found[ref], []target.ID{{1}}) {
				t.Errorf("of %s %x is wanted, and %x was found", ref, r.Roots, found[ref])
			}
		}
		if len(left.Repos) != repos || len(w.unsaid) != len(gone) {
			t.Fatalf("%d repositories, and %d ids that are noted; want %d and %d", len(left.Repos), len(w.unsaid), repos, len(gone))
		}
	}
	p := Publisher{ids: w}
	if list := p.TakeUnaccepted(); !slices.Equal(list, gone) {
		t.Errorf("told of %x, want %x", list, gone)
	}
	if list := p.TakeUnaccepted(); len(list) > 0 {
		t.Errorf("told of %x again", list)
	}
}
