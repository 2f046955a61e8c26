package target

import (
	"maps"
	"slices"

	"tendril.dev/proto"
)

// Bounds of one change, so that a message stays far below the bus's 1 MiB: ids are 64 hex digits, a reference up to a few hundred bytes.
const (
	maxIDsPerChange   = 4000
	maxReposPerChange = 500
)

// Diff gives the changes that lead from one target to another, none if they are the same. Their order matters.
func Diff(from, to Target) []proto.TargetChange {
	if !to.Exists() {
		if !from.Exists() {
			return nil
		}
		return []proto.TargetChange{{URL: from.URL, Gone: true}}
	}
	p := packer{url: to.URL, bootstrap: to.Bootstrap}
	for _, ref := range slices.Sorted(maps.Keys(from.Repos)) {
		if _, kept := to.Repos[ref]; !kept {
			p.add(proto.RepoChange{Ref: ref, Gone: true})
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(to.Repos)) {
		old, known := from.Repos[ref]
		p.addRepo(ref, old, to.Repos[ref], known)
	}
	if from.URL != to.URL || from.Bootstrap != to.Bootstrap {
		p.flushAlways()
	}
	return p.flush()
}

// Snapshot gives changes that mean the target whatever was said before; the first is to replace all earlier ones (Nats-Rollup).
func Snapshot(t Target) []proto.TargetChange {
	if !t.Exists() {
		return nil
	}
	changes := Diff(Target{}, t)
	changes[0].Snapshot = true
	return changes
}

// packer cuts changes of repositories into messages of bounded size.
type packer struct {
	url       string
	bootstrap bool
	full      []proto.TargetChange
	repos     []proto.RepoChange
	ids       int
}

func (p *packer) addRepo(ref string, from, to Repo, known bool) {
	c := proto.RepoChange{Ref: ref}
	changed := !known
	if from.Level != to.Level {
		c.Level, changed = to.Level, true
	}
	if to.Level == proto.LevelStateOnly && (c.Level != "" || !slices.Equal(from.Authors, to.Authors)) {
		c.Authors, changed = to.Authors, true
	}
	added, gone := differences(from.Roots, to.Roots)
	for len(added)+len(gone) > 0 {
		room := maxIDsPerChange - p.ids
		if room == 0 {
			p.flushAlways()
			continue
		}
		c.Roots, added = hexUpTo(added, room)
		c.RootsGone, gone = hexUpTo(gone, room-len(c.Roots))
		p.add(c)
		c, changed = proto.RepoChange{Ref: ref}, false
	}
	if changed {
		p.add(c)
	}
}

// differences compares two sorted lists; the very same slice, which is the usual case, costs nothing.
func differences(from, to []ID) (added, gone []ID) {
	if len(from) == len(to) && (len(to) == 0 || &from[0] == &to[0]) {
		return nil, nil
	}
	return Missing(to, from), Missing(from, to)
}

func hexUpTo(ids []ID, room int) (list []string, rest []ID) {
	n := min(len(ids), room)
	for _, id := range ids[:n] {
		list = append(list, id.String())
	}
	return list, ids[n:]
}

func (p *packer) add(c proto.RepoChange) {
	p.repos = append(p.repos, c)
	p.ids += len(c.Roots) + len(c.RootsGone)
	if len(p.repos) == maxReposPerChange || p.ids >= maxIDsPerChange {
		p.flushAlways()
	}
}

func (p *packer) flushAlways() {
	p.full = append(p.full, proto.TargetChange{URL: p.url, Bootstrap: p.bootstrap, Repos: p.repos})
	p.repos, p.ids = nil, 0
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
