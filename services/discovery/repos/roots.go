package repos

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/services/discovery/wanted"
)

// anybody stands for the author of a root event whose author is not known.
const anybody = 0

// authorOf is a little of a public key: most root events are so known not to be somebody's. It is
// anybody for some authors.
func authorOf(pubkey string) byte {
	if len(pubkey) < 2 {
		return anybody
	}
	n, err := strconv.ParseUint(pubkey[:2], 16, 8)
	if err != nil {
		return anybody
	}
	return byte(n)
}

// addRoot notes a root event with every repository that is known of those it names.
func (b *Book) addRoot(ev *nostr.Event) (changed bool) {
	id, ok := target.ParseID(ev.ID)
	if !ok {
		return false
	}
	refs := nip34.RootRefs(ev)
	slices.SortFunc(refs, compareRefs)
	for _, ref := range refs {
		repo := b.repository(ref)
		if repo == nil || !b.nameRoot(wanted.ShortOf(id), authorOf(ev.PubKey), repo) {
			continue
		}
		repo.add(wanted.ShortOf(id))
		b.dirty[ref.Identifier] = true
		changed = true
	}
	if changed {
		b.hear(id)
	}
	return changed
}

func compareRefs(a, b nip34.RepoRef) int {
	return cmp.Or(strings.Compare(a.PubKey, b.PubKey), strings.Compare(a.Identifier, b.Identifier))
}

// AddRoots notes root events that name a repository, whoever wrote them. It may reorder its
// argument and keeps none of it. It reports whether that may change a target.
func (b *Book) AddRoots(ref nip34.RepoRef, ids []wanted.Short) (changed bool) {
	repo := b.repository(ref)
	if repo == nil {
		return false
	}
	repo.list()
	ids = target.SortIDs(ids)
	fresh := ids[:0]
	for _, id := range ids {
		if b.nameRoot(id, anybody, repo) {
			fresh = append(fresh, id)
		}
	}
	if len(fresh) == 0 {
		return false
	}
	b.dirty[ref.Identifier] = true
	switch w := b.wants[ref.String()]; {
	case len(repo.sorted) > 0:
		repo.sorted = target.Union(repo.sorted, fresh)
	case w != nil && slices.Equal(w.repo.Roots, fresh):
		repo.sorted = w.repo.Roots // as it was before the book was made anew
	default:
		repo.sorted = slices.Clone(fresh)
	}
	return true
}

// nameRoot notes one repository of a root event, whose id must be added to the repository's set.
// It reports false if that was known, or one too many.
func (b *Book) nameRoot(id wanted.Short, author byte, repo *repository) bool {
	if repo.has(id) || b.namesMost(id) {
		return false
	}
	b.roots.add(id, placeOf(repo, author))
	b.rootCount++
	return true
}

// namesMost reports whether a root event names as many repositories as count. Which of its places
// are those of another id is looked up only if it may.
func (b *Book) namesMost(id wanted.Short) bool {
	places, named := 0, 0
	for range b.roots.like(id) {
		places++
	}
	if places < maxRefs {
		return false
	}
	for range b.named(id) {
		named++
	}
	return named >= maxRefs
}

// named are the repositories that a root event is known to name.
func (b *Book) named(id wanted.Short) iter.Seq[*repository] {
	return func(yield func(*repository) bool) {
		var last *repository
		for p := range b.roots.like(id) {
			// Places of one repository follow each other: its set may have several ids like this
			// one.
			repo := b.numbered[p.number()]
			if repo != last && repo.has(id) && !yield(repo) {
				return
			}
			last = repo
		}
	}
}

// mayDelete reports whether a root event is known that somebody may have written.
func (b *Book) mayDelete(pubkey string, id wanted.Short) bool {
	for p := range b.roots.like(id) {
		if (p.author() == anybody || p.author() == authorOf(pubkey)) && b.numbered[p.number()].has(id) {
			return true
		}
	}
	return false
}

// ForgetRoot drops a root event that is deleted.
func (b *Book) ForgetRoot(id target.ID) (changed bool) {
	if changed = b.DropRoot(wanted.ShortOf(id)); changed {
		b.hear(id)
	}
	return changed
}

// DropRoot drops a root event of which no more is known than its short id.
func (b *Book) DropRoot(id wanted.Short) (changed bool) {
	for _, repo := range slices.Collect(b.named(id)) {
		b.loseRoot(id, repo)
		repo.lose(id)
		b.dirty[repo.ref.Identifier] = true
		changed = true
	}
	return changed
}

// loseRoot drops one repository of a root event.
func (b *Book) loseRoot(id wanted.Short, repo *repository) {
	b.roots.remove(id, repo.number)
	b.rootCount--
}

// mostHeard is how many whole ids are kept of root events that came or went, until they are taken.
const mostHeard = 1 << 16

// hear keeps the whole id of a root event that came or went, unless there are very many.
func (b *Book) hear(id target.ID) {
	if len(b.heard) < mostHeard {
		b.heard = append(b.heard, id)
	}
}

// TakeHeard returns the whole ids of root events that came or went since the last call, one by one,
// not in a list. There may be fewer of them than there were.
func (b *Book) TakeHeard() []target.ID {
	heard := b.heard
	b.heard = nil
	return heard
}

// number assigns a repository a number of its own; false: there are too many.
func (b *Book) number(repo *repository) bool {
	if last := len(b.unused) - 1; last >= 0 {
		repo.number, b.unused = b.unused[last], b.unused[:last]
		b.numbered[repo.number] = repo
		return true
	}
	if len(b.numbered) == mostNumbers {
		return false
	}
	repo.number = uint32(len(b.numbered))
	b.numbered = append(b.numbered, repo)
	return true
}

// unnumber takes the number of a repository back, of which no root event is left. When there are
// none, no room is kept for them.
func (b *Book) unnumber(repo *repository) {
	b.numbered[repo.number] = nil
	b.unused = append(b.unused, repo.number)
	if len(b.unused) == len(b.numbered) {
		b.numbered, b.unused = nil, nil
	}
}
