package dossier

import (
	"maps"
	"slices"
)

// trust is who speaks for whom among the announcements of one identifier, read backwards: whose
// announcements name somebody as a maintainer. It is made once for a dossier, because anybody may
// announce an identifier, so that there can be many announcements and states of it.
type trust struct {
	announced map[string]bool
	by        map[string][]string // maintainer → owners that name him or her
	owners    map[string][]string // author → hosted owners that the author speaks for, as far as asked
}

func newTrust(current []Announcement) *trust {
	t := &trust{announced: map[string]bool{}, by: map[string][]string{}, owners: map[string][]string{}}
	for _, a := range current {
		t.announced[a.Ref.PubKey] = true
		for _, maintainer := range a.Maintainers {
			t.by[maintainer] = append(t.by[maintainer], a.Ref.PubKey)
		}
	}
	return t
}

// ownersFor are the owners among the hosted ones for whose repositories the author speaks
// (nostr.AuthorizedOwners), in order of their keys.
func (t *trust) ownersFor(author string, hosted map[string]bool) []string {
	if owners, asked := t.owners[author]; asked {
		return owners
	}
	reached := map[string]bool{}
	if t.announced[author] {
		reached[author] = true
	}
	for queue := []string{author}; len(queue) > 0; queue = queue[1:] {
		for _, owner := range t.by[queue[0]] {
			if !reached[owner] {
				reached[owner] = true
				queue = append(queue, owner)
			}
		}
	}
	maps.DeleteFunc(reached, func(owner string, _ bool) bool { return !hosted[owner] })
	owners := slices.Sorted(maps.Keys(reached))
	t.owners[author] = owners
	return owners
}
