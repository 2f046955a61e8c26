package eventdb

import (
	"bytes"
	"container/heap"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// union walks several ranges at once, newest first, each place once.
type union struct{ spans spans }

// span is one range and where its iterator stands in it.
type span struct {
	prefix []byte
	it     *pebble.Iterator
}

// place is where the span stands: the last part of every index key.
func (s span) place() []byte { k := s.it.Key(); return k[len(k)-placeLen:] }

// add takes an iterator over the range of a prefix in. It belongs to the union from now on.
func (u *union) add(prefix []byte, it *pebble.Iterator) error {
	if !it.First() {
		return it.Close()
	}
	heap.Push(&u.spans, span{prefix, it})
	return nil
}

// place is where the union stands; nil at its end. It is valid until the union moves.
func (u *union) place() []byte {
	if len(u.spans) == 0 {
		return nil
	}
	return u.spans[0].place()
}

// next leaves the place that the union stands at, in every range that has it, and tells how many
// these are.
func (u *union) next() (moved int, err error) {
	left := [placeLen]byte(u.place())
	for len(u.spans) > 0 && bytes.Equal(u.place(), left[:]) {
		if err := u.reorder(u.spans[0].it.Next()); err != nil {
			return moved, err
		}
		moved++
	}
	return moved, nil
}

// seek moves on to the first place at or after the given one, and tells in how many ranges it had
// to.
func (u *union) seek(place []byte) (moved int, err error) {
	for len(u.spans) > 0 && bytes.Compare(u.place(), place) < 0 {
		first := u.spans[0]
		key := append(first.prefix[:len(first.prefix):len(first.prefix)], place...)
		if err := u.reorder(first.it.SeekGE(key)); err != nil {
			return moved, err
		}
		moved++
	}
	return moved, nil
}

// reorder puts the first span, which has moved, where it belongs now, or closes it at its end.
func (u *union) reorder(valid bool) error {
	if valid {
		heap.Fix(&u.spans, 0)
		return nil
	}
	return heap.Pop(&u.spans).(span).it.Close()
}

func (u *union) close() (err error) {
	for _, s := range u.spans {
		err = errors.Join(err, s.it.Close())
	}
	return err
}

// spans is a heap, the one at the best place first.
type spans []span

func (s spans) Len() int           { return len(s) }
func (s spans) Less(i, j int) bool { return bytes.Compare(s[i].place(), s[j].place()) < 0 }
func (s spans) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *spans) Push(x any)        { *s = append(*s, x.(span)) }
func (s *spans) Pop() any {
	old := *s
	last := old[len(old)-1]
	*s = old[:len(old)-1]
	return last
}
