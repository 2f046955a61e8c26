package session

import "slices"

// Set is what is or was asked of a relay. The zero value is empty. Its lists are
// sorted, hold everything once and are never changed, so that sets share them: what a relay is
// wanted to bring and what it has brought are mostly the same.
type Set struct {
	First bool     // layer 1
	Full  []string // references of repositories wanted whole
	// States are identifiers of repositories. By any author of a state, the relay is asked for
	// it: who may is ingest's to say.
	States  []string
	Roots   []string // ids of root events
	Replies []string // ids of events below a root (layer 4)
	People  []string // public keys of those whose relay lists and profiles are wanted
}

// Empty reports whether nothing is in the set.
func (s Set) Empty() bool {
	return !s.First && len(s.Full)+len(s.States)+len(s.Roots)+len(s.Replies)+len(s.People) == 0
}

// Above is the set without layer 4.
func (s Set) Above() Set {
	s.Replies = nil
	return s
}

// Diff is the three-way diff: what is wanted and neither pending nor confirmed. It is the only
// place where it is decided what is asked for.
func Diff(wanted, pending, confirmed Set) Set {
	return Set{
		First:   wanted.First && !confirmed.First && !pending.First,
		Full:    minus(minus(wanted.Full, confirmed.Full), pending.Full),
		States:  minus(minus(wanted.States, confirmed.States), pending.States),
		Roots:   minus(minus(wanted.Roots, confirmed.Roots), pending.Roots),
		Replies: minus(minus(wanted.Replies, confirmed.Replies), pending.Replies),
		People:  minus(minus(wanted.People, confirmed.People), pending.People),
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
	return Set{First: a.First || b.First, Full: plus(a.Full, b.Full), States: plus(a.States, b.States),
		Roots: plus(a.Roots, b.Roots), Replies: plus(a.Replies, b.Replies),
		People: plus(a.People, b.People)}
}

// Only keeps what is still wanted.
func Only(s, wanted Set) Set {
	return Set{
		First: s.First && wanted.First,
		Full:  both(s.Full, wanted.Full), States: both(s.States, wanted.States), Roots: both(s.Roots, wanted.Roots),
		Replies: both(s.Replies, wanted.Replies), People: both(s.People, wanted.People),
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
