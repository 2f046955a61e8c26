package target

import (
	"context"
	"maps"

	"tendril.dev/proto"
)

// Named says where the root events of a repository are told that a target does not tell itself: in
// a list of the repository's own, which targets of other relays name too.
type Named struct {
	At    uint64 // sequence in GRASP_TARGETS of the message after which the list is meant
	added []ID   // sorted: what the target itself has said since
	gone  []ID
}

// Roots returns the root events that are wanted, where those are the list's, sorted.
func (n Named) Roots(list []ID) []ID {
	if len(n.added)+len(n.gone) == 0 {
		return list
	}
	return Shared(Without(with(list, Shared(n.added)), n.gone))
}

// Named returns the lists that the target names, by reference of the repository. The value stays as
// it is when more changes are taken.
func (f *Folded) Named() map[string]Named { return maps.Clone(f.named) }

// name keeps what a change says of root events that are in a list, and returns the change
// without that.
func (f *Folded) name(c proto.RepoChange) proto.RepoChange {
	n, named := f.named[c.Ref]
	if c.RootsAt > 0 {
		n, named = Named{At: c.RootsAt}, true
		r := f.target.Repos[c.Ref]
		r.Roots = nil
		f.target.Repos[c.Ref] = r
	}
	if !named {
		return c
	}
	added, gone := parseIDs(c.Roots), parseIDs(c.RootsGone)
	n.added = Without(Union(n.added, added), gone)
	n.gone = Union(Without(n.gone, added), gone)
	if f.named == nil {
		f.named = map[string]Named{}
	}
	f.named[c.Ref] = n
	c.Roots, c.RootsGone = nil, nil
	return c
}

// With is the target with these root events of some of its repositories, by reference.
func (t Target) With(roots map[string][]ID) Target {
	if len(roots) == 0 {
		return t
	}
	t.Repos = maps.Clone(t.Repos)
	for ref, ids := range roots {
		r := t.Repos[ref]
		r.Roots = ids
		t.Repos[ref] = r
	}
	return t
}

// ListDiff returns the changes that lead from one list of root events to another, none if they are
// the same. No change is larger than limit, in bytes of JSON, unless the reference is. The caller
// chains them by [proto.RootsChange.Prev].
func ListDiff(ref string, from, to []ID, limit int) []proto.RootsChange {
	added, gone := differences(from, to)
	return ListChanges(ref, added, gone, limit)
}

// ListChanges is the same where it is known which ids come and go.
func ListChanges(ref string, added, gone []ID, limit int) (changes []proto.RootsChange) {
	most := max(1, (limit-changeBytes-quoted(ref))/itemBytes)
	for len(added)+len(gone) > 0 {
		c := proto.RootsChange{Ref: ref}
		c.Roots, added = hexUpTo(added, most)
		c.RootsGone, gone = hexUpTo(gone, most-len(c.Roots))
		c.More = len(added)+len(gone) > 0
		changes = append(changes, c)
	}
	return changes
}

// ListSnapshot returns changes that mean the list whatever was said before; the first is to replace
// all earlier ones (Nats-Rollup).
func ListSnapshot(ref string, list []ID, limit int) []proto.RootsChange {
	changes := ListDiff(ref, nil, list, limit)
	if len(changes) == 0 {
		changes = []proto.RootsChange{{Ref: ref}}
	}
	changes[0].Snapshot = true
	return changes
}

// step is what one message of a list changes.
type step struct{ added, gone []ID }

// mostSteps bounds how many messages a list is put together from. Discovery replaces them by a
// snapshot after 64, or twice those of the last snapshot.
const mostSteps = 100_000

// List puts a list together as it was after a message: from that message back to a snapshot, to
// the first one, or to one after which the list is known. whole is false if one of them is not
// there any more; the list is what the others say then.
func List(ctx context.Context, at uint64, known func(at uint64) ([]ID, bool), get func(ctx context.Context, at uint64) (proto.RootsChange, bool, error)) (list []ID, whole bool, err error) {
	var steps []step
	for at > 0 && len(steps) < mostSteps {
		if list, whole = known(at); whole {
			break
		}
		c, found, err := get(ctx, at)
		if err != nil {
			return nil, false, err
		}
		if !found || c.Gone {
			break
		}
		steps = append(steps, step{parseIDs(c.Roots), parseIDs(c.RootsGone)})
		if whole = c.Snapshot || c.Prev == 0; whole || c.Prev >= at {
			break
		}
		at = c.Prev
	}
	for len(steps) > 0 {
		last := steps[len(steps)-1]
		list = Without(Union(list, last.added), last.gone)
		steps = steps[:len(steps)-1]
	}
	return list, whole, nil
}
