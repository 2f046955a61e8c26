package eventdb

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// entries are keys and values on their way into the index.
type entries struct {
	list  []entry
	order []place
	arena []byte
}

type entry struct{ key, value []byte }

// place is where an entry stands: the beginning of its key and its number.
type place struct {
	head uint64
	n    int
}

func (e *entries) reset() {
	clear(e.list)
	e.list, e.order, e.arena = e.list[:0], e.order[:0], e.arena[:0]
}

// add takes an entry over; neither slice is copied.
func (e *entries) add(key, value []byte) {
	var head [8]byte
	copy(head[:], key)
	e.order = append(e.order, place{binary.BigEndian.Uint64(head[:]), len(e.list)})
	e.list = append(e.list, entry{key, value})
}

// copied adds an entry whose key is copied.
func (e *entries) copied(key string, value []byte) {
	from := len(e.arena)
	e.arena = append(e.arena, key...)
	e.add(e.arena[from:], value)
}

// event adds all that an event has in the index except for its identity and coordinate.
func (e *entries) event(a *addition) {
	p := a.posting()
	from := len(e.arena)
	e.arena = appendEvent(e.arena, a.Seq)
	e.add(e.arena[from:], a.packed)
	if p.expiry != 0 {
		e.add(keyExpiry(p.expiry, a.eid), nil)
	}
	from = len(e.arena)
	e.arena = p.append(e.arena)
	value := e.arena[from:]
	var where [placeLen]byte
	at := appendPlace(where[:0], a.Event.CreatedAt, a.eid)
	e.posting(append(e.arena, tableTime), at, value)
	e.posting(appendAuthor(e.arena, a.author), at, value)
	e.posting(appendKind(e.arena, p.kind), at, value)
	for _, tag := range a.Event.Tags {
		if len(tag) >= 2 && isIndexedTag(tag[0]) {
			e.posting(appendTag(e.arena, tag[0][0], tag[1]), at, value)
		}
	}
}

// posting adds a posting, the prefix of whose key was appended to the arena.
func (e *entries) posting(prefixed, at, value []byte) {
	from := len(e.arena)
	e.arena = append(prefixed, at...)
	e.add(e.arena[from:], value)
}

// each gives the entries to fn roughly in the order of their keys. Pebble takes them in faster so:
// from where it put the last one it finds the place of the next one in a few steps.
func (e *entries) each(fn func(key, value []byte) error) error {
	slices.SortFunc(e.order, func(a, b place) int { return cmp.Or(cmp.Compare(a.head, b.head), cmp.Compare(a.n, b.n)) })
	for _, at := range e.order {
		if err := fn(e.list[at.n].key, e.list[at.n].value); err != nil {
			return err
		}
	}
	return nil
}
