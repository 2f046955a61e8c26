package repos

import (
	"slices"

	"tendril.dev/lib/target"
	"tendril.dev/services/discovery/wanted"
)

// rootSet collects the root events of a repository. Its sorted list is made when it is asked for
// and then shared by every target, until an id comes or goes.
type rootSet struct {
	sorted []wanted.Short
	fresh  []wanted.Short // those that came since, sorted; none of them is in the list
	gone   []wanted.Short // those that went since, sorted; all of them are in the list
}

func (s *rootSet) list() []wanted.Short {
	if len(s.fresh) > 0 {
		s.sorted = target.Union(s.sorted, slices.Clone(s.fresh))
		s.fresh = nil
	}
	if len(s.gone) > 0 {
		s.sorted = target.Without(s.sorted, s.gone)
		s.gone = nil
	}
	return s.sorted
}

// mostBeside is how many ids that came, and how many that went, are kept beside the list before it
// is made anew. That costs as much as the list is long, and to put an id in its place beside the
// list as much as there are.
const mostBeside = 1 << 11

func (s *rootSet) has(id wanted.Short) bool {
	if _, came := find(s.fresh, id); came {
		return true
	}
	if _, listed := find(s.sorted, id); !listed {
		return false
	}
	_, went := find(s.gone, id)
	return !went
}

// add takes in an id that the set does not have.
func (s *rootSet) add(id wanted.Short) {
	if n, went := find(s.gone, id); went {
		s.gone = slices.Delete(s.gone, n, n+1)
		return
	}
	n, _ := find(s.fresh, id)
	if s.fresh = slices.Insert(s.fresh, n, id); len(s.fresh) > mostBeside {
		s.list()
	}
}

// lose drops an id that the set has.
func (s *rootSet) lose(id wanted.Short) {
	if n, came := find(s.fresh, id); came {
		s.fresh = slices.Delete(s.fresh, n, n+1)
		return
	}
	n, _ := find(s.gone, id)
	if s.gone = slices.Insert(s.gone, n, id); len(s.gone) > mostBeside {
		s.list()
	}
}

// find returns where an id is in a sorted list, or belongs, and whether it is there.
func find(list []wanted.Short, id wanted.Short) (int, bool) {
	return slices.BinarySearchFunc(list, id, wanted.Short.Compare)
}
