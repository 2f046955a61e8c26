package session

import (
	"slices"
	"strings"
)

// Set is what is or was asked of a relay. The zero value is empty. Its lists are
// sorted, hold everything once and are never changed, so that sets share them: what a relay is
// wanted to bring and what it has brought are mostly the same.
type Set struct {
	First bool     // layer 1
	Full  []string // references of repositories wanted whole
	State []string // repositories of which only states are wanted, each with its maintainers; see State
	Roots []string // ids of root events
}

// State is a repository of which only the states of some maintainers are wanted, as an item of a
// set. With other maintainers it is another item.
func State(reference string, maintainers []string) string {
	return strings.Join(maintainers, " ") + "\n" + reference
}

// Empty reports whether nothing is in the set.
func (s Set) Empty() bool { return !s.First && s.Repos() == 0 && len(s.Roots) == 0 }

// Repos counts the repositories.
func (s Set) Repos() int { return len(s.Full) + len(s.State) }

// Diff is the three-way diff: what is wanted and neither pending nor confirmed. It is the only
// place where it is decided what is asked for.
func Diff(wanted, pending, confirmed Set) Set {
	return Set{
		First: wanted.First && !confirmed.First && !pending.First,
		Full:  minus(minus(wanted.Full, confirmed.Full), pending.Full),
		State: minus(minus(wanted.State, confirmed.State), pending.State),
		Roots: minus(minus(wanted.Roots, confirmed.Roots), pending.Roots),
	}
}

// Union is all of them together.
func Union(sets ...Set) Set {
	switch len(sets) {
	case 0:
		return Set{}
	case 1:
		return sets[0]
	}
	half := len(sets) / 2 // one after the other would copy the first ones for each set
	a, b := Union(sets[:half]...), Union(sets[half:]...)
	return Set{First: a.First || b.First, Full: plus(a.Full, b.Full), State: plus(a.State, b.State),
		Roots: plus(a.Roots, b.Roots)}
}

// Only keeps what is still wanted.
func Only(s, wanted Set) Set {
	return Set{
		First: s.First && wanted.First,
		Full:  both(s.Full, wanted.Full), State: both(s.State, wanted.State), Roots: both(s.Roots, wanted.Roots),
	}
}

// minus is what a has and b has not; a itself if b has nothing of it.
func minus(a, b []string) []string { return pick(a, b, false) }

// both is what a and b have; a itself if b has all of it.
func both(a, b []string) []string { return pick(a, b, true) }

// pick is those elements of a that b has, or those that it has not; a itself if these are all.
func pick(a, b []string, has bool) []string {
	leaves := func(e string) bool {
		for len(b) > 0 && b[0] < e {
			b = b[1:]
		}
		return (len(b) > 0 && b[0] == e) != has
	}
	first := slices.IndexFunc(a, leaves)
	if first < 0 {
		return a
	}
	out := slices.Clone(a[:first])
	for _, e := range a[first+1:] {
		if !leaves(e) {
			out = append(out, e)
		}
	}
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
	for _, e := range added {
		for ; len(a) > 0 && a[0] < e; a = a[1:] {
			out = append(out, a[0])
		}
		out = append(out, e)
	}
	return append(out, a...)
}
