package repos

import (
	"slices"

	"tendril.dev/lib/target"
	"tendril.dev/services/discovery/wanted"
)

// rootSet collects the root events of a repository. Its sorted list is made when it is asked for
// and then shared by every target, until an id comes or goes.
type rootSet struct {
	sorted      []wanted.Short
	fresh, gone []wanted.Short
}

func (s *rootSet) list() []wanted.Short {
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

func (s *rootSet) has(id wanted.Short) bool {
	if len(s.fresh) > mostUnsorted {
		s.list()
	}
	if slices.Contains(s.gone, id) {
		return false
	}
	if slices.Contains(s.fresh, id) {
		return true
	}
	_, found := slices.BinarySearchFunc(s.sorted, id, wanted.Short.Compare)
	return found
}

// add takes in an id that the set does not have.
func (s *rootSet) add(id wanted.Short) {
	if slices.Contains(s.gone, id) {
		s.list()
	}
	s.fresh = append(s.fresh, id)
}

// lose drops an id that the set has.
func (s *rootSet) lose(id wanted.Short) {
	if s.gone = append(s.gone, id); len(s.gone) > mostUnsorted {
		s.list()
	}
}
