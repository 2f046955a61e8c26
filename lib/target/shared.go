package target

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"unsafe"
	"weak"
)

const (
	// fewestShared is how many ids are worth looking for a list that has the same.
	fewestShared = 32
	// sampled is how many ids of a list decide where it is looked for.
	sampled = 32
	// mostAlike is how many lists are kept that look alike. Who has a list that differs from
	// another only where nobody looks may well have a few such; more than that do not share theirs.
	mostAlike = 8
	// mostResults is how many results are remembered.
	mostResults = 256
	// mostOf is of how many lists one may be to be remembered.
	mostOf = 256
)

// lists are the lists of ids of this process that others may want as well, each for as long as
// anybody has it. It is safe for concurrent use.
type lists struct {
	mu      sync.Mutex
	seed    maphash.Seed
	known   map[uint64][]list // those that look alike, by what is looked at
	results map[uint64]result
	latest  [mostResults]uint64 // keys of results, to let go of the oldest
	made    int
}

// list is a list that may have gone. Who has a list has a pointer to its array, so that is what
// says whether anybody does.
type list struct {
	first weak.Pointer[ID]
	ids   int // at first and behind it
}

// result is what was worked out of some lists.
type result struct {
	what  string
	of    []list
	gives list
}

var shared = newLists()

func newLists() *lists {
	return &lists{seed: maphash.MakeSeed(), known: map[uint64][]list{}, results: map[uint64]result{}}
}

// Shared returns a list with the same ids, which everybody in this process gets who asks for these,
// so that what many relays have in common lies in memory once. Neither list may be changed from
// then on.
func Shared(ids []ID) []ID { return shared.of(ids) }

func (l *lists) of(ids []ID) []ID {
	if len(ids) < fewestShared {
		return ids
	}
	key := l.key(ids)
	l.mu.Lock()
	defer l.mu.Unlock()
	alike := slices.DeleteFunc(l.known[key], list.gone)
	for _, one := range alike {
		if same := one.value(); sameList(same, ids) || slices.Equal(same, ids) {
			return same
		}
	}
	if cap(ids) > len(ids)+len(ids)/8 {
		ids = slices.Clone(ids)
	}
	ids = ids[:len(ids):len(ids)]
	if len(alike) == mostAlike {
		return ids
	}
	l.known[key] = append(alike, list{weak.Make(&ids[0]), len(ids)})
	runtime.AddCleanup(&ids[0], l.forget, key)
	return ids
}

// SharedResult returns a shared list of what work gives, which depends on some lists and on what is
// done with them alone. It does not work that out again while somebody has the list that was given
// for the very same lists, which must be shared ones, shortly before: relays that have much in
// common are told of the same changes one after the other.
func SharedResult(what string, work func() []ID, of ...[]ID) []ID {
	return shared.result(what, work, of...)
}

func (l *lists) result(what string, work func() []ID, of ...[]ID) []ID {
	if len(of) > mostOf {
		return l.of(work())
	}
	var few [2]list // of most results, which are not allocated if they are known
	from := append(few[:0], make([]list, len(of))...)
	var h maphash.Hash
	h.SetSeed(l.seed)
	h.WriteString(what)
	for i, ids := range of {
		if len(ids) > 0 {
			from[i] = list{weak.Make(&ids[0]), len(ids)}
		}
		maphash.WriteComparable(&h, from[i])
	}
	key := h.Sum64()
	l.mu.Lock()
	r, known := l.results[key]
	l.mu.Unlock()
	if known && r.what == what && slices.Equal(r.of, from) {
		if ids := r.gives.value(); len(ids) == r.gives.ids {
			return ids
		}
	}
	ids := l.of(work())
	if len(ids) < fewestShared {
		return ids
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := &l.latest[l.made%mostResults]
	l.made++
	delete(l.results, *oldest)
	*oldest = key
	l.results[key] = result{what, slices.Clone(from), list{weak.Make(&ids[0]), len(ids)}}
	return ids
}

// key is the same for lists with the same ids, and another for nearly all others.
func (l *lists) key(ids []ID) uint64 {
	var h maphash.Hash
	h.SetSeed(l.seed)
	for i := range sampled {
		id := &ids[i*(len(ids)-1)/(sampled-1)]
		h.Write(id[:])
	}
	return h.Sum64() + uint64(len(ids))
}

// value is the list if somebody has it still; else nil.
func (l list) value() []ID {
	first := l.first.Value()
	if first == nil {
		return nil
	}
	return unsafe.Slice(first, l.ids)
}

// gone reports whether nobody has the list any more.
func (l list) gone() bool { return l.first.Value() == nil }

// forget lets go of lists that nobody has any more.
func (l *lists) forget(key uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if alike := slices.DeleteFunc(l.known[key], list.gone); len(alike) > 0 {
		l.known[key] = alike
	} else {
		delete(l.known, key)
	}
}
