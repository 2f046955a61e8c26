package repos

import (
	"hash/maphash"
	"iter"
	"slices"
	"sort"

	"tendril.dev/services/discovery/wanted"
)

// place says which repository a root event names, by its number, and in its last eight bits to whom
// the event may belong: a book may know millions of them.
type place uint32

// mostNumbers is how many repositories there may be at once: their log would have tens of
// gigabytes.
const mostNumbers = 1 << 24

func placeOf(repo *repository, author byte) place { return place(repo.number<<8) | place(author) }

func (p place) number() uint32 { return uint32(p) >> 8 }
func (p place) author() byte   { return byte(p) }

// segments is how many parts a table has. With 500,000 places each is 12 kB, and to put one in
// moves half of that.
const segments = 1 << 8

// places is a table of which root events name which repositories. It takes 6 to 7 bytes for each,
// because it does not have the ids, which are in the sets of the repositories already: it gives the
// places of all ids that it cannot tell from one, and who looks for that one asks the repositories.
// One in 65,536 of the other ids of its part is such an id.
type places struct {
	hash  func(wanted.Short) uint64
	parts [][]entry // by the last bits of the hash, each sorted
	count int
}

// entry is a place of an id: the first 16 bits of the id's hash, and the halves of the place.
type entry [3]uint16

func entryOf(mark uint16, p place) entry { return entry{mark, uint16(p >> 16), uint16(p)} }

func (e entry) mark() uint16 { return e[0] }
func (e entry) place() place { return place(e[1])<<16 | place(e[2]) }

// order is the entry as a number, by which entries are sorted.
func (e entry) order() uint64 { return uint64(e[0])<<32 | uint64(e.place()) }

// from is where the entries of a part begin that are not less than one.
func from(part []entry, e entry) int {
	least := e.order()
	return sort.Search(len(part), func(n int) bool { return part[n].order() >= least })
}

// newPlaces makes an empty table. Its hash has a seed of its own: whoever makes events cannot make
// their ids alike.
func newPlaces() *places {
	seed := maphash.MakeSeed()
	return &places{
		hash:  func(id wanted.Short) uint64 { return maphash.Bytes(seed, id[:]) },
		parts: make([][]entry, segments),
	}
}

// part is where the places of an id are, and what they are marked with there.
func (t *places) part(id wanted.Short) (part *[]entry, mark uint16) {
	h := t.hash(id)
	return &t.parts[h%segments], uint16(h >> 48)
}

// like returns the places of all ids that the table cannot tell from one, sorted. The table must
// not be changed meanwhile.
func (t *places) like(id wanted.Short) iter.Seq[place] {
	return func(yield func(place) bool) {
		part, mark := t.part(id)
		first := from(*part, entryOf(mark, 0))
		for _, e := range (*part)[first:] {
			if e.mark() != mark || !yield(e.place()) {
				return
			}
		}
	}
}

// add notes a place of an id, which the table does not have.
func (t *places) add(id wanted.Short, p place) {
	part, mark := t.part(id)
	e := entryOf(mark, p)
	n := from(*part, e)
	if len(*part) == cap(*part) {
		*part = resized(*part)
	}
	*part = slices.Insert(*part, n, e)
	t.count++
}

// remove takes out the place of an id that names a repository, which the table has. Where the
// repository has several ids like this one, it is not known any more to whom the others belong.
func (t *places) remove(id wanted.Short, number uint32) {
	part, mark := t.part(id)
	first := from(*part, entryOf(mark, place(number<<8)))
	last := first
	for last < len(*part) && (*part)[last].mark() == mark && (*part)[last].place().number() == number {
		last++
	}
	for n := first; n < last-1; n++ {
		(*part)[n] = entryOf(mark, place(number<<8)|anybody)
	}
	*part = slices.Delete(*part, last-1, last)
	if cap(*part) > 64 && len(*part) < cap(*part)/2 {
		*part = resized(*part)
	}
	t.count--
}

// resized has the same entries, and room for an eighth more.
func resized(part []entry) []entry {
	return append(make([]entry, 0, len(part)+len(part)/8+4), part...)
}
