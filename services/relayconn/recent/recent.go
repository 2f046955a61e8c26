// Package recent remembers what was seen lately, within a bound.
package recent

// Set remembers the last keys that were added, at least half of most and at most most of them. It
// is for one goroutine at a time.
type Set[K comparable] struct {
	most       int
	young, old map[K]struct{}
}

// New makes a set of at most most keys.
func New[K comparable](most int) Set[K] {
	return Set[K]{most: most, young: map[K]struct{}{}}
}

// Add remembers a key.
func (s *Set[K]) Add(k K) {
	if s.Has(k) {
		return
	}
	if len(s.young) >= s.most/2 {
		s.young, s.old = make(map[K]struct{}, s.most/2), s.young
	}
	s.young[k] = struct{}{}
}

// Has reports whether a key is remembered.
func (s *Set[K]) Has(k K) bool {
	_, young := s.young[k]
	if young {
		return true
	}
	_, old := s.old[k]
	return old
}
