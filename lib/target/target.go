// Package target knows what a relay should be asked for: a value that the changes of GRASP_TARGETS
// fold into, and the changes that lead from one such value to another. Discovery writes with it,
// relay workers read with it, so that both mean the same.
package target

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"

	"tendril.dev/proto"
)

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
	Roots   []ID     // root events, sorted
}

// ID is an event id.
type ID [32]byte

// String is the id as 64 hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID reads 64 hex digits.
func ParseID(s string) (ID, bool) {
	var id ID
	if len(s) != 2*len(id) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil
}

// Compare orders ids by their bytes. Ids are hashes, so that the first eight bytes nearly always
// decide.
func (id ID) Compare(other ID) int {
	a, b := binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(other[:8])
	if a != b {
		return cmp.Compare(a, b)
	}
	return bytes.Compare(id[8:], other[8:])
}

// Ordered are ids, whole or short forms of them.
type Ordered[I any] interface {
	comparable
	// Compare orders them by their bytes.
	Compare(I) int
}

// SortIDs returns the ids sorted and each once; it may reorder its argument.
func SortIDs[I Ordered[I]](ids []I) []I {
	slices.SortFunc(ids, I.Compare)
	return slices.Clip(slices.Compact(ids))
}

// Exists reports whether the target is one at all.
func (t Target) Exists() bool { return t.URL != "" }

// Apply folds one change into the target. t's map is not changed. Ids that are none are passed
// over.
func (t Target) Apply(c proto.TargetChange) Target {
	f := Folded{target: t, shared: true}
	f.Take(c)
	return f.target
}

// Folded is a target that changes are folded into. Between two looks at it a change costs what it
// says, however much else is wanted of the relay. The zero value is a target that asks for nothing.
type Folded struct {
	target Target
	shared bool             // somebody else has the target's map: it is not to be changed
	named  map[string]Named // by reference: of repositories whose root events are in a list
}

// Target is what the changes have led to, but for root events that are in lists; [Folded.Named]
// says in which. The value stays as it is when more are taken.
func (f *Folded) Target() Target {
	f.shared = true
	return f.target
}

// Exists reports whether there is a target.
func (f *Folded) Exists() bool { return f.target.Exists() }

// Take folds one change in. Ids that are none are passed over.
func (f *Folded) Take(c proto.TargetChange) {
	if c.Gone {
		*f = Folded{}
		return
	}
	repos := f.target.Repos
	switch {
	case c.Snapshot || repos == nil:
		repos = make(map[string]Repo, len(c.Repos))
	case f.shared:
		repos = make(map[string]Repo, len(f.target.Repos)+len(c.Repos))
		maps.Copy(repos, f.target.Repos)
	}
	named := f.named
	if c.Snapshot {
		named = nil
	}
	*f = Folded{target: Target{URL: c.URL, Bootstrap: c.Bootstrap, Repos: repos}, named: named}
	for _, rc := range c.Repos {
		if rc.Gone {
			delete(repos, rc.Ref)
			delete(f.named, rc.Ref)
		} else {
			rc = f.name(rc)
			repos[rc.Ref] = repos[rc.Ref].apply(rc)
		}
	}
}

// apply is what is wanted of a repository after a change.
func (r Repo) apply(c proto.RepoChange) Repo {
	if c.Level != "" {
		r.Level = c.Level
	}
	if len(c.Authors) > 0 {
		r.Authors = slices.Sorted(slices.Values(c.Authors))
	}
	if len(c.AuthorsAdded) > 0 {
		r.Authors = slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.Authors, c.AuthorsAdded))))
	}
	if r.Level == proto.LevelFull {
		r.Authors = nil
	}
	r.Roots = with(r.Roots, Shared(parseIDs(c.Roots)))
	r.Roots = Shared(Without(r.Roots, parseIDs(c.RootsGone)))
	return r
}

func parseIDs(list []string) []ID {
	ids := make([]ID, 0, len(list))
	for _, s := range list {
		if id, ok := ParseID(s); ok {
			ids = append(ids, id)
		}
	}
	return SortIDs(ids)
}

// Union returns the ids of both, each once; both are sorted. It is one of them if the other is
// empty.
func Union[I Ordered[I]](a, b []I) []I {
	if len(b) == 0 {
		return a
	}
	if len(a) == 0 {
		return b
	}
	out := make([]I, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		order := a[0].Compare(b[0])
		if order <= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out = append(out, b[0])
		}
		if order >= 0 {
			b = b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// with is the ids of both, which are shared lists.
func with(a, b []ID) []ID {
	if len(a) == 0 || len(b) < fewestShared {
		return Union(a, b)
	}
	return SharedResult("union", func() []ID { return Union(a, b) }, a, b)
}

// Without is a without the ids of b; both are sorted. It is a itself if b is empty.
func Without[I Ordered[I]](a, b []I) []I {
	if len(b) == 0 {
		return a
	}
	return missing(make([]I, 0, len(a)), a, b)
}

// Missing returns the ids of a that are not in b; both are sorted.
func Missing[I Ordered[I]](a, b []I) []I { return missing(nil, a, b) }

// missing appends to out what Missing returns.
func missing[I Ordered[I]](out, a, b []I) []I {
	for _, id := range a {
		for len(b) > 0 && b[0].Compare(id) < 0 {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != id {
			out = append(out, id)
		}
	}
	return out
}
