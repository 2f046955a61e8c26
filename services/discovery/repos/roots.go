package repos

import (
	"cmp"
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
		s.sorted = target.Missing(s.sorted, target.SortIDs(s.gone))
		s.gone = nil
	}
	return s.sorted
}

// anybody stands for the author of a root event whose author is not known.
const anybody = 0

// keyStart is the beginning of a public key, to tell whose a root event is without keeping all of
// it.
func keyStart(pubkey string) uint64 {
	if len(pubkey) < 16 {
		return 0
	}
	n, err := strconv.ParseUint(pubkey[:16], 16, 64)
	if err != nil {
		return 0
	}
	return n
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
		changed = b.nameRoot(id, keyStart(ev.PubKey), ref) || changed
	}
	return changed
}

func compareRefs(a, b nip34.RepoRef) int {
	return cmp.Or(strings.Compare(a.PubKey, b.PubKey), strings.Compare(a.Identifier, b.Identifier))
}

// AddRoot notes a root event that names a repository, whoever wrote it. It reports whether that may
// change a target.
func (b *Book) AddRoot(id target.ID, ref nip34.RepoRef) (changed bool) {
	return b.nameRoot(id, anybody, ref)
}

// nameRoot notes a root event with one repository, if that is known.
func (b *Book) nameRoot(id target.ID, author uint64, ref nip34.RepoRef) (changed bool) {
	repo := b.repository(ref)
	if repo == nil || b.hasRoot(id, repo) || len(b.shared[id]) >= maxRefs-1 {
		return false
	}
	if _, known := b.roots[id]; known {
		b.shared[id] = append(b.shared[id], repo)
	} else {
		b.roots[id] = rootEvent{repo, author}
	}
	if len(repo.gone) > 0 {
		repo.list() // it may be the very one that had gone
	}
	repo.fresh = append(repo.fresh, id)
	b.dirty[ref.Identifier] = true
	b.rootCount++
	return true
}

func (b *Book) hasRoot(id target.ID, repo *repository) bool {
	if b.roots[id].repo == repo {
		return true
	}
	for _, other := range b.shared[id] {
		if other == repo {
			return true
		}
	}
	return false
}

// ForgetRoot drops a root event that is deleted.
func (b *Book) ForgetRoot(id target.ID) (changed bool) {
	root, known := b.roots[id]
	if !known {
		return false
	}
	for _, repo := range append(b.shared[id], root.repo) {
		repo.gone = append(repo.gone, id)
		b.dirty[repo.ref.Identifier] = true
		b.rootCount--
	}
	delete(b.roots, id)
	delete(b.shared, id)
	return true
}

// loseRoot drops one repository of a root event.
func (b *Book) loseRoot(id target.ID, repo *repository) {
	b.rootCount--
	root, others := b.roots[id], b.shared[id]
	if root.repo != repo {
		for i, other := range others {
			if other == repo {
				others = append(others[:i:i], others[i+1:]...)
				break
			}
		}
	} else if len(others) > 0 {
		b.roots[id] = rootEvent{others[0], root.author}
		others = others[1:]
	} else {
		delete(b.roots, id)
	}
	if len(others) > 0 {
		b.shared[id] = others
	} else {
		delete(b.shared, id)
	}
}
