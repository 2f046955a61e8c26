// Package history holds what the past of a relay is asked for with: sets of wanted items and their
// difference, filters, walks from page to page, and who of a worker walks where. It does no I/O.
package history

import (
	"maps"
	"slices"
	"strings"
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

// split walks two sorted lists and tells of every element of a whether b has it.
func split(a, b []string, tell func(i int, has bool)) {
	for i, e := range a {
		for len(b) > 0 && strings.Compare(b[0], e) < 0 {
			b = b[1:]
		}
		tell(i, len(b) > 0 && strings.Compare(b[0], e) == 0)
	}
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

func pick(a, b []string, kept bool) []string {
	if len(b) == 0 {
		if kept {
			return nil
		}
		return a
	}
	n := 0
	split(a, b, func(_ int, has bool) {
		if has == kept {
			n++
		}
	})
	switch n {
	case 0:
		return nil
	case len(a):
		return a
	}
	out := make([]string, 0, n)
	split(a, b, func(i int, has bool) {
		if has == kept {
			out = append(out, a[i])
		}
	})
	return out
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
	out := make([]string, 0, len(a)+len(added))
	for len(a) > 0 && len(added) > 0 {
		if strings.Compare(a[0], added[0]) < 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, added = append(out, added[0]), added[1:]
		}
	}
	return append(append(out, a...), added...)
}
