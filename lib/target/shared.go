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
	fewestShared = 64
	// sampled is how many ids of a list decide where it is looked for.
	sampled = 32
)

// lists are the lists of ids of this process that others may want as well, each for as long as
// anybody has it. It is safe for concurrent use.
type lists struct {
	mu    sync.Mutex
	seed  maphash.Seed
	known map[uint64]list
}

// list is a list that may have gone. Who has a list has a pointer to its array, so that is what
// says whether anybody does.
type list struct {
	first weak.Pointer[ID]
	ids   int // at first and behind it
}

var shared = lists{seed: maphash.MakeSeed(), known: map[uint64]list{}}

// Shared gives a list with the same ids, which everybody in this process gets who asks for these,
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
	if same := l.known[key].value(); sameList(same, ids) || slices.Equal(same, ids) {
		return same
	}
	if cap(ids) > len(ids)+len(ids)/8 {
		ids = slices.Clone(ids)
	}
	ids = ids[:len(ids):len(ids)]
	l.known[key] = list{weak.Make(&ids[0]), len(ids)}
	runtime.AddCleanup(&ids[0], l.forget, key)
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

// forget lets go of a list that nobody has any more, unless another has taken its place.
func (l *lists) forget(key uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known[key].first.Value() == nil {
		delete(l.known, key)
	}
}
