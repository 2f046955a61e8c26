// Package history holds what the past of a relay is asked for with: sets of wanted items and their
// difference, filters, walks from page to page, and who of a worker walks where. It does no I/O.
package history

import (
	"maps"
	"slices"
)

// Set is what is or was asked of a relay. The zero value is empty. Its lists are
// sorted, hold everything once and are never changed, so that sets share them: what a relay is
// wanted to bring and what it has brought are mostly the same.
type Set struct {
	First bool                // layer 1
	Full  []string            // references of repositories wanted whole
	State map[string][]string // references of repositories of which only states are wanted, and whose
	Roots []string            // ids of root events
}

func (s *Set) addState(ref string, authors []string) {
	if s.State == nil {
		s.State = map[string][]string{}
	}
	s.State[ref] = authors
}

// Empty reports whether nothing is in the set.
func (s Set) Empty() bool {
	return !s.First && len(s.Full) == 0 && len(s.State) == 0 && len(s.Roots) == 0
}

// Repos counts the repositories.
func (s Set) Repos() int { return len(s.Full) + len(s.State) }

// Diff is the three-way diff: what is wanted and neither pending nor confirmed. It is the only
// place where it is decided what layers 2 and 3 ask for. A state-only repository whose maintainers
// changed is new.
func Diff(wanted, pending, confirmed Set) Set {
	out := Set{
		Full:  minus(minus(wanted.Full, confirmed.Full), pending.Full),
		Roots: minus(minus(wanted.Roots, confirmed.Roots), pending.Roots),
	}
	for ref, authors := range wanted.State {
		if !pending.asksState(ref, authors) && !confirmed.asksState(ref, authors) {
			out.addState(ref, authors)
		}
	}
	return out
}

func (s Set) asksState(ref string, authors []string) bool {
	asked, ok := s.State[ref]
	return ok && slices.Equal(asked, authors)
}

// Union is both together; where both have a state-only repository, b's maintainers count.
func Union(a, b Set) Set {
	out := Set{First: a.First || b.First, Full: plus(a.Full, b.Full), Roots: plus(a.Roots, b.Roots), State: a.State}
	switch {
	case len(a.State) == 0:
		out.State = b.State
	case len(b.State) > 0:
		out.State = maps.Clone(a.State)
		maps.Copy(out.State, b.State)
	}
	return out
}

// Only keeps what is still wanted.
func Only(s, wanted Set) Set {
	out := Set{First: s.First && wanted.First, Full: both(s.Full, wanted.Full), Roots: both(s.Roots, wanted.Roots)}
	for ref, authors := range s.State {
		if _, ok := wanted.State[ref]; ok {
			out.addState(ref, authors)
		}
	}
	return out
}

func same(a, b []string) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// minus is what a has and b has not; a itself if b has nothing of it.
func minus(a, b []string) []string {
	if same(a, b) {
		return nil
	}
	return pick(a, b, false)
}

// both is what a and b have; a itself if b has all of it.
func both(a, b []string) []string {
	if same(a, b) {
		return a
	}
	return pick(a, b, true)
}

// pick is those elements of a that b has, or those that it has not; a itself if these are all.
func pick(a, b []string, has bool) []string {
	picked := func(e string) bool {
		i, found := slices.BinarySearch(b, e)
		b = b[i:]
		return found == has
	}
	n := slices.IndexFunc(a, func(e string) bool { return !picked(e) })
	if n < 0 {
		return a
	}
	out := slices.Clone(a[:n])
	for _, e := range a[n+1:] {
		if picked(e) {
			out = append(out, e)
		}
	}
	return slices.Clip(out)
}

// plus is what a or b has; one of them itself if the other adds nothing.
func plus(a, b []string) []string {
	added := minus(b, a)
	switch {
	case len(added) == 0:
		return a
	case len(a) == 0:
		return b
	}
	out := slices.Concat(a, added)
	slices.Sort(out)
	return out
}
