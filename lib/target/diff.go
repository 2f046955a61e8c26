package target

import (
	"reflect"
	"slices"

	"tendril.dev/proto"
)

// Bytes of a change as JSON, at most: of one beside its URL and repositories, of one repository
// beside its reference and lists, and of one id or author in a list.
const (
	changeBytes = 128
	repoBytes   = 224
	itemBytes   = 67
)

// Lists are lists of root events that a target may name, by reference of the repository: the
// sequence of the message after which the list is what is wanted of it.
type Lists map[string]uint64

// Diff returns the changes that lead from one target to another, none if they are the same. Their
// order matters. No change is larger than limit, in bytes of JSON, unless a single repository's
// reference is.
func Diff(from, to Target, limit int) []proto.TargetChange { return Lists(nil).Diff(from, to, limit) }

// Diff is the same with changes that name these lists, where the root events differ.
func (lists Lists) Diff(from, to Target, limit int) []proto.TargetChange {
	if !to.Exists() {
		if !from.Exists() {
			return nil
		}
		return []proto.TargetChange{{URL: from.URL, Gone: true}}
	}
	p := packer{url: to.URL, bootstrap: to.Bootstrap, limit: limit - changeBytes - quoted(to.URL), lists: lists}
	gone, changed := Changed(from.Repos, to.Repos)
	for _, ref := range gone {
		p.begin(ref, 0)
		p.add(proto.RepoChange{Ref: ref, Gone: true}, 0)
	}
	for _, ref := range changed {
		p.addRepo(ref, from.Repos[ref], to.Repos[ref])
	}
	if from.URL != to.URL || from.Bootstrap != to.Bootstrap {
		p.flushAlways()
	}
	return p.flush()
}

// Changed are the references that only the repositories of the first target have, and those that
// the second has anew or otherwise, sorted. Targets that share their repositories, as most of two
// versions do, cost next to nothing.
func Changed[R interface{ Equal(R) bool }](from, to map[string]R) (gone, changed []string) {
	if len(from) == len(to) && reflect.ValueOf(from).Pointer() == reflect.ValueOf(to).Pointer() {
		return nil, nil
	}
	for ref := range from {
		if _, kept := to[ref]; !kept {
			gone = append(gone, ref)
		}
	}
	for ref, r := range to {
		if old, known := from[ref]; !known || !r.Equal(old) {
			changed = append(changed, ref)
		}
	}
	slices.Sort(gone)
	slices.Sort(changed)
	return gone, changed
}

// Equal reports whether the same is wanted of a repository.
func (r Repo) Equal(o Repo) bool {
	return r.Level == o.Level && slices.Equal(r.Authors, o.Authors) && sameRoots(r, o)
}

func sameRoots(a, b Repo) bool { return sameList(a.Roots, b.Roots) || slices.Equal(a.Roots, b.Roots) }

// Others reports whether so many ids or more are in only one of two sorted lists.
func Others[I Ordered[I]](a, b []I, fewest int) bool {
	if n := len(a) - len(b); n >= fewest || -n >= fewest {
		return true
	}
	return len(Missing(a, b))+len(Missing(b, a)) >= fewest
}

// Snapshot returns changes that mean the target whatever was said before; the first is to replace
// all earlier ones (Nats-Rollup).
func Snapshot(t Target, limit int) []proto.TargetChange { return Lists(nil).Snapshot(t, limit) }

// Snapshot is the same with changes that name these lists.
func (lists Lists) Snapshot(t Target, limit int) []proto.TargetChange {
	if !t.Exists() {
		return nil
	}
	changes := lists.Diff(Target{}, t, limit)
	changes[0].Snapshot = true
	return changes
}

// packer cuts changes of repositories into messages of bounded size.
type packer struct {
	url       string
	bootstrap bool
	limit     int // bytes of the repositories of one change
	lists     Lists
	full      []proto.TargetChange
	repos     []proto.RepoChange
	bytes     int
}

// begin makes sure that the change at hand has room for an entry with so many items, and says for
// how many it has; 1 at least.
func (p *packer) begin(ref string, items int) (room int) {
	entry := repoBytes + quoted(ref)
	if len(p.repos) > 0 && p.bytes+entry+itemBytes*min(items, 1) > p.limit {
		p.flushAlways()
	}
	return max(1, (p.limit-p.bytes-entry)/itemBytes)
}

func (p *packer) add(c proto.RepoChange, items int) {
	p.repos = append(p.repos, c)
	p.bytes += repoBytes + quoted(c.Ref) + itemBytes*items
}

// addRepo adds what is different of one repository, in as many parts as it takes: the first says
// the level and replaces the authors, the others add to the lists.
func (p *packer) addRepo(ref string, from, to Repo) {
	c := proto.RepoChange{Ref: ref}
	if from.Level != to.Level {
		c.Level = to.Level
	}
	var authors []string
	if to.Level == proto.LevelStateOnly && (c.Level != "" || !slices.Equal(from.Authors, to.Authors)) {
		authors = to.Authors
	}
	var added, gone []ID
	if at := p.lists[ref]; at > 0 && !sameRoots(from, to) {
		c.RootsAt = at
	} else {
		added, gone = differences(from.Roots, to.Roots)
	}
	for part := 0; part == 0 || len(authors)+len(added)+len(gone) > 0; part++ {
		left := len(authors) + len(added) + len(gone)
		room := p.begin(ref, left)
		some := authors[:min(len(authors), room)]
		authors = authors[len(some):]
		if part == 0 {
			c.Authors = some
		} else {
			c.AuthorsAdded = some
		}
		c.Roots, added = hexUpTo(added, room-len(some))
		c.RootsGone, gone = hexUpTo(gone, room-len(some)-len(c.Roots))
		p.add(c, left-len(authors)-len(added)-len(gone))
		c = proto.RepoChange{Ref: ref}
	}
}

// quoted is the most bytes that a string takes as JSON.
func quoted(s string) int {
	n := 2
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			n += 6 // as \u003c
		} else {
			n++
		}
	}
	return n
}

// differences compares two sorted lists; the very same slice, which is the usual case, costs
// nothing.
func differences(from, to []ID) (added, gone []ID) {
	if sameList(from, to) {
		return nil, nil
	}
	return Missing(to, from), Missing(from, to)
}

func sameList(a, b []ID) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

func hexUpTo(ids []ID, room int) (list []string, rest []ID) {
	n := min(len(ids), room)
	for _, id := range ids[:n] {
		list = append(list, id.String())
	}
	return list, ids[n:]
}

func (p *packer) flushAlways() {
	p.full = append(p.full, proto.TargetChange{URL: p.url, Bootstrap: p.bootstrap, Repos: p.repos})
	p.repos, p.bytes = nil, 0
}

func (p *packer) flush() []proto.TargetChange {
	if len(p.repos) > 0 {
		p.flushAlways()
	}
	for i := range len(p.full) - 1 {
		p.full[i].More = true
	}
	return p.full
}
