package intake

// recent remembers the last keys that were added, at least half of most and at most most of them.
type recent[K comparable] struct {
	most       int
	young, old map[K]struct{}
}

func newRecent[K comparable](most int) recent[K] {
	return recent[K]{most: most, young: map[K]struct{}{}}
}

func (r *recent[K]) add(k K) {
	if r.has(k) {
		return
	}
	if len(r.young) >= r.most/2 {
		r.young, r.old = make(map[K]struct{}, r.most/2), r.young
	}
	r.young[k] = struct{}{}
}

func (r *recent[K]) has(k K) bool {
	_, young := r.young[k]
	if young {
		return true
	}
	_, old := r.old[k]
	return old
}
