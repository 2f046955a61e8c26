// Package items knows what can be asked of a relay beyond its announcements, and works out what is new: the three-way diff, the only place
// where it is decided what layers 2 and 3 ask for (spec/sync.md).
package items

import (
	"maps"
	"slices"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// Set is what is or was asked for. The zero value is empty; a Set that others may hold is not changed.
type Set struct {
	Full  map[string]bool     // references of repositories wanted whole
	State map[string][]string // references of repositories of which only states are wanted, and whose
	Roots map[target.ID]bool  // root events
}

// Of lists what a target wants. A root event that belongs to several repositories is one item.
func Of(t target.Target) Set {
	var s Set
	for ref, r := range t.Repos {
		if r.Level == proto.LevelStateOnly {
			s.addState(ref, r.Authors)
			continue
		}
		s.addFull(ref)
		for _, id := range r.Roots {
			s.addRoot(id)
		}
	}
	return s
}

func (s *Set) addFull(ref string) {
	if s.Full == nil {
		s.Full = map[string]bool{}
	}
	s.Full[ref] = true
}

func (s *Set) addState(ref string, authors []string) {
	if s.State == nil {
		s.State = map[string][]string{}
	}
	s.State[ref] = authors
}

func (s *Set) addRoot(id target.ID) {
	if s.Roots == nil {
		s.Roots = map[target.ID]bool{}
	}
	s.Roots[id] = true
}

// Empty reports whether nothing is in the set.
func (s Set) Empty() bool { return len(s.Full) == 0 && len(s.State) == 0 && len(s.Roots) == 0 }

// New is the three-way diff: what is wanted and neither pending nor confirmed. A state-only repository whose maintainers changed is new.
func New(wanted, pending, confirmed Set) Set {
	var out Set
	for ref := range wanted.Full {
		if !pending.Full[ref] && !confirmed.Full[ref] {
			out.addFull(ref)
		}
	}
	for ref, authors := range wanted.State {
		if !slices.Equal(pending.State[ref], authors) && !slices.Equal(confirmed.State[ref], authors) {
			out.addState(ref, authors)
		}
	}
	for id := range wanted.Roots {
		if !pending.Roots[id] && !confirmed.Roots[id] {
			out.addRoot(id)
		}
	}
	return out
}

// Union is both together; where both have a state-only repository, b's maintainers count.
func Union(a, b Set) Set {
	if a.Empty() {
		return b
	}
	out := Set{Full: maps.Clone(a.Full), State: maps.Clone(a.State), Roots: maps.Clone(a.Roots)}
	for ref := range b.Full {
		out.addFull(ref)
	}
	for ref, authors := range b.State {
		out.addState(ref, authors)
	}
	for id := range b.Roots {
		out.addRoot(id)
	}
	return out
}

// Only keeps what is still wanted.
func Only(s, wanted Set) Set {
	var out Set
	for ref := range s.Full {
		if wanted.Full[ref] {
			out.addFull(ref)
		}
	}
	for ref, authors := range s.State {
		if _, ok := wanted.State[ref]; ok {
			out.addState(ref, authors)
		}
	}
	for id := range s.Roots {
		if wanted.Roots[id] {
			out.addRoot(id)
		}
	}
	return out
}
