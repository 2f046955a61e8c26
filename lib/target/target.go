// Package target knows what a relay should be asked for: a value that the changes of GRASP_TARGETS fold into, and the changes that lead from
// one such value to another (spec/sync.md, What we want). Discovery writes with it, relay workers read with it, so that both mean the same.
package target

import (
	"bytes"
	"encoding/hex"
	"maps"
	"slices"

	"tendril.dev/proto"
)

// Target is what one relay should be asked for. The zero value asks for nothing; a target that has only layer 1 has a URL and no repository.
type Target struct {
	URL       string // normalised, to connect to
	Bootstrap bool
	Repos     map[string]Repo // by reference, 30617:<pubkey>:<identifier>
}

// Repo is what is wanted of one repository. Its slices are never changed in place, so values may share them.
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

func compareIDs(a, b ID) int { return bytes.Compare(a[:], b[:]) }

// SortIDs gives the ids sorted and each once; it may reorder its argument.
func SortIDs(ids []ID) []ID {
	slices.SortFunc(ids, compareIDs)
	return slices.Clip(slices.Compact(ids))
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

// Roots counts the root events of all repositories; one that belongs to two counts twice.
func (t Target) Roots() int {
	n := 0
	for _, r := range t.Repos {
		n += len(r.Roots)
	}
	return n
}

// Apply folds one change into the target. t's map is not changed. Ids that are none are passed over.
func (t Target) Apply(c proto.TargetChange) Target {
	if c.Gone {
		return Target{}
	}
	out := Target{URL: c.URL, Bootstrap: c.Bootstrap, Repos: make(map[string]Repo, len(t.Repos)+len(c.Repos))}
	if !c.Snapshot {
		maps.Copy(out.Repos, t.Repos)
	}
	for _, rc := range c.Repos {
		if rc.Gone {
			delete(out.Repos, rc.Ref)
			continue
		}
		r := out.Repos[rc.Ref]
		if rc.Level != "" {
			r.Level = rc.Level
		}
		if len(rc.Authors) > 0 {
			r.Authors = slices.Sorted(slices.Values(rc.Authors))
		}
		if len(rc.AuthorsAdded) > 0 {
			r.Authors = slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.Authors, rc.AuthorsAdded))))
		}
		if r.Level == proto.LevelFull {
			r.Authors = nil
		}
		r.Roots = union(r.Roots, parseIDs(rc.Roots))
		r.Roots = without(r.Roots, parseIDs(rc.RootsGone))
		out.Repos[rc.Ref] = r
	}
	return out
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

func union(a, b []ID) []ID {
	if len(b) == 0 {
		return a
	}
	return SortIDs(append(slices.Clone(a), b...))
}

func without(a, b []ID) []ID {
	if len(b) == 0 {
		return a
	}
	return Missing(a, b)
}

// Missing gives the ids of a that are not in b; both are sorted.
func Missing(a, b []ID) []ID {
	var out []ID
	for _, id := range a {
		for len(b) > 0 && compareIDs(b[0], id) < 0 {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != id {
			out = append(out, id)
		}
	}
	return out
}
