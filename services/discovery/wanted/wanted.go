// Package wanted is what relays should be asked for, as discovery keeps it: values like those of
// lib/target, whose root events are known by half of their ids. There may be millions of them, and
// whole ids are needed only where a change is written.
package wanted

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// Short is the first half of an event id, 128 bits. The log tells an author's events apart by as
// much (proto.ShortIDLength), because nobody can make two events that begin alike for so long.
type Short [16]byte

// ShortOf is the short form of an id.
func ShortOf(id target.ID) Short { return Short(id[:len(Short{})]) }

// Compare orders short ids as [target.ID.Compare] orders ids.
func (s Short) Compare(other Short) int {
	a, b := binary.BigEndian.Uint64(s[:8]), binary.BigEndian.Uint64(other[:8])
	if a != b {
		return cmp.Compare(a, b)
	}
	return bytes.Compare(s[8:], other[8:])
}

// Target is what one relay should be asked for. The zero value asks for nothing; a target that has
// only layer 1 has a URL and no repository.
type Target struct {
	URL       string // normalised, to connect to
	Bootstrap bool
	Repos     map[string]Repo // by reference, 30617:<pubkey>:<identifier>
}

// Repo is what is wanted of one repository. Its slices are never changed in place, so values may
// share them.
type Repo struct {
	Level   proto.Level
	Authors []string // StateOnly: the maintainers known, sorted
	Roots   []Short  // root events, sorted
	sum     *sum     // of these; nil: not worked out
}

// Of is a target with the short forms of its ids.
func Of(t target.Target) Target {
	short := Target{URL: t.URL, Bootstrap: t.Bootstrap, Repos: make(map[string]Repo, len(t.Repos))}
	for ref, r := range t.Repos {
		short.Repos[ref] = Repo{Level: r.Level, Authors: r.Authors, Roots: ShortIDs(r.Roots)}
	}
	return short
}

// ShortIDs are the short forms of some ids.
func ShortIDs(ids []target.ID) []Short {
	if len(ids) == 0 {
		return nil
	}
	short := make([]Short, len(ids))
	for n, id := range ids {
		short[n] = ShortOf(id)
	}
	return short
}

// Exists reports whether the target is one at all.
func (t Target) Exists() bool { return t.URL != "" }

// Level is the highest level that the target wants of a repository; empty: it has none.
func (t Target) Level() (highest proto.Level) {
	for _, r := range t.Repos {
		if r.Level == proto.LevelFull {
			return r.Level
		}
		highest = r.Level
	}
	return highest
}

// Equal reports whether the same is wanted of a repository.
func (r Repo) Equal(o Repo) bool {
	return r.Level == o.Level && slices.Equal(r.Authors, o.Authors) && (SameList(r.Roots, o.Roots) || slices.Equal(r.Roots, o.Roots))
}

// SameList reports whether two lists are the very same one in memory, or both empty.
func SameList(a, b []Short) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// RootChanges are the root events that only the second of two versions of a repository has, and
// those that only the first has, sorted.
func RootChanges(from, to Repo) (added, gone []Short) { return Changes(from.Roots, to.Roots) }

// Changes are the same of two lists.
func Changes(from, to []Short) (added, gone []Short) {
	if SameList(from, to) {
		return nil, nil
	}
	a, b := from, to
	for len(a) > 0 && len(b) > 0 {
		switch order := a[0].Compare(b[0]); {
		case order < 0:
			gone, a = append(gone, a[0]), a[1:]
		case order > 0:
			added, b = append(added, b[0]), b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	return append(added, b...), append(gone, a...)
}

// Diff returns the changes that lead from one target to another, as [target.Diff] does. It is told
// the whole ids of the root events that came and went, sorted, by the references of their
// repositories; of those whose root events are in lists they are not needed.
func Diff(from, to Target, added, gone map[string][]target.ID, lists target.Lists, limit int) []proto.TargetChange {
	before := target.Target{URL: from.URL, Bootstrap: from.Bootstrap, Repos: map[string]target.Repo{}}
	after := target.Target{URL: to.URL, Bootstrap: to.Bootstrap, Repos: map[string]target.Repo{}}
	less, changed := target.Changed(from.Repos, to.Repos)
	for _, ref := range less {
		before.Repos[ref] = target.Repo{}
	}
	for _, ref := range changed {
		if r, known := from.Repos[ref]; known {
			before.Repos[ref] = target.Repo{Level: r.Level, Authors: r.Authors, Roots: gone[ref]}
		}
		r, roots := to.Repos[ref], added[ref]
		if lists[ref] > 0 {
			roots = InList
		}
		after.Repos[ref] = target.Repo{Level: r.Level, Authors: r.Authors, Roots: roots}
	}
	return lists.Diff(before, after, limit)
}

// InList stands for root events of a repository that are in its list, so that those that were
// wanted before are others.
var InList = []target.ID{{}}

// Large returns the references of repositories of which so many root events or more are others in
// the second target than in the first.
func Large(from, to Target, fewest int) (refs []string) {
	_, changed := target.Changed(from.Repos, to.Repos)
	for _, ref := range changed {
		a, b := from.Repos[ref].Roots, to.Repos[ref].Roots
		if !SameList(a, b) && target.Others(a, b, fewest) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// Find returns those of some ids that begin as the short ones do, and the short ones of which none
// does. Both lists are sorted.
func Find(ids []target.ID, short []Short) (found []target.ID, missing []Short) {
	for _, s := range short {
		n, ok := slices.BinarySearchFunc(ids, s, func(id target.ID, s Short) int { return ShortOf(id).Compare(s) })
		if ids = ids[n:]; ok {
			found = append(found, ids[0])
		} else {
			missing = append(missing, s)
		}
	}
	return found, missing
}

// WithoutRoots is the target without some root events of repositories, sorted, by their references.
// t's map is not changed.
func (t Target) WithoutRoots(gone map[string][]Short) Target {
	if len(gone) == 0 {
		return t
	}
	t.Repos = maps.Clone(t.Repos)
	for ref, ids := range gone {
		r := t.Repos[ref]
		t.Repos[ref] = Repo{Level: r.Level, Authors: r.Authors, Roots: target.Without(r.Roots, ids)}
	}
	return t
}
