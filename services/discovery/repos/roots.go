package repos

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
)

// rootSet collects the root events of a repository. Its sorted list is made when it is asked for
// and then shared by every target, until an id comes or goes.
type rootSet struct {
	sorted      []target.ID
	fresh, gone []target.ID
}

func (s *rootSet) list() []target.ID {
	if len(s.fresh) > 0 {
		s.sorted = target.Union(s.sorted, target.SortIDs(s.fresh))
		s.fresh = nil
	}
	if len(s.gone) > 0 {
		s.sorted = target.Without(s.sorted, target.SortIDs(s.gone))
		s.gone = nil
	}
	return s.sorted
}

// mostUnsorted is how many ids that came, and how many that went, are looked through one by one
// before the list is made anew: each time costs as much as the list is long.
const mostUnsorted = 64

func (s *rootSet) has(id target.ID) bool {
	if len(s.fresh) > mostUnsorted {
		s.list()
	}
	if slices.Contains(s.gone, id) {
		return false
	}
	if slices.Contains(s.fresh, id) {
		return true
	}
	_, found := slices.BinarySearchFunc(s.sorted, id, target.ID.Compare)
	return found
}

// add takes in an id that the set does not have.
func (s *rootSet) add(id target.ID) {
	if slices.Contains(s.gone, id) {
		s.list()
	}
	s.fresh = append(s.fresh, id)
}

// lose drops an id that the set has.
func (s *rootSet) lose(id target.ID) {
	if s.gone = append(s.gone, id); len(s.gone) > mostUnsorted {
		s.list()
	}
}

// place says which repository a root event names, by its number, and in its last eight bits to whom
// the event may belong: a book may know millions of them.
type place uint32

// mostNumbers is how many repositories there may be at once: their log would have tens of
// gigabytes.
const mostNumbers = 1 << 24

func placeOf(repo *repository, author byte) place { return place(repo.number<<8) | place(author) }

func (p place) number() uint32 { return uint32(p) >> 8 }
func (p place) author() byte   { return byte(p) }

// prefix is the beginning of an id. Places are kept by it, because the whole ids are in the lists
// of the repositories already. Where two ids begin alike, the second is kept as if it named a
// further repository (Book.shared).
func prefix(id target.ID) uint32 { return binary.BigEndian.Uint32(id[:4]) }

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
		if repo == nil || !b.nameRoot(id, authorOf(ev.PubKey), repo) {
			continue
		}
		repo.add(id)
		b.dirty[ref.Identifier] = true
		changed = true
	}
	return changed
}

func compareRefs(a, b nip34.RepoRef) int {
	return cmp.Or(strings.Compare(a.PubKey, b.PubKey), strings.Compare(a.Identifier, b.Identifier))
}

// AddRoots notes root events that name a repository, whoever wrote them, and keeps the list. It
// reports whether that may change a target.
func (b *Book) AddRoots(ref nip34.RepoRef, ids []target.ID) (changed bool) {
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
	if w := b.wants[ref.String()]; len(repo.sorted) == 0 && w != nil && slices.Equal(w.repo.Roots, fresh) {
		repo.sorted = w.repo.Roots // as it was before the book was made anew
	} else {
		if cap(fresh)-len(fresh) > len(fresh)/8 {
			fresh = slices.Clone(fresh)
		}
		repo.sorted = target.Union(repo.sorted, fresh)
	}
	return true
}

// nameRoot notes one repository of a root event, whose id must be added to the repository's set.
// It reports false if that was known, or one too many.
func (b *Book) nameRoot(id target.ID, author byte, repo *repository) bool {
	others := b.shared[id]
	if len(others) >= maxRefs-1 || slices.Contains(others, repo) {
		return false
	}
	key := prefix(id)
	switch first, taken := b.roots[key]; {
	case !taken:
		b.roots[key] = placeOf(repo, author)
	case first.number() == repo.number && repo.has(id):
		return false
	default:
		b.shared[id] = append(others, repo)
	}
	b.rootCount++
	return true
}

// first is the place of a root event, unless only Book.shared knows it.
func (b *Book) first(id target.ID) (p place, ok bool) {
	p, ok = b.roots[prefix(id)]
	if !ok {
		return p, false
	}
	repo := b.numbered[p.number()]
	// The list of the same repository may have another id that begins alike.
	return p, !slices.Contains(b.shared[id], repo) && repo.has(id)
}

// mayDelete reports whether a root event is known that somebody may have written.
func (b *Book) mayDelete(pubkey string, id target.ID) bool {
	if p, ok := b.first(id); ok {
		return p.author() == anybody || p.author() == authorOf(pubkey)
	}
	return len(b.shared[id]) > 0
}

// ForgetRoot drops a root event that is deleted.
func (b *Book) ForgetRoot(id target.ID) (changed bool) {
	all := b.shared[id]
	if p, ok := b.first(id); ok {
		all = append(all, b.numbered[p.number()])
		delete(b.roots, prefix(id))
	}
	for _, repo := range all {
		repo.lose(id)
		b.dirty[repo.ref.Identifier] = true
		b.rootCount--
	}
	delete(b.shared, id)
	return len(all) > 0
}

// loseRoot drops one repository of a root event.
func (b *Book) loseRoot(id target.ID, repo *repository) {
	b.rootCount--
	others := b.shared[id]
	if i := slices.Index(others, repo); i >= 0 {
		others = slices.Concat(others[:i], others[i+1:])
	} else if len(others) > 0 {
		b.roots[prefix(id)] = placeOf(others[0], b.roots[prefix(id)].author())
		others = others[1:]
	} else {
		delete(b.roots, prefix(id))
	}
	if len(others) > 0 {
		b.shared[id] = others
	} else {
		delete(b.shared, id)
	}
}

// number returns a repository a number of its own; false: there are too many.
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
