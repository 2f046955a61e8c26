package eventdb

import (
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/reconcile"
)

// walk goes through one order of events, of which all keys have the same prefix, as reconciliation
// wants it: oldest first. The index has it newest first, but within a second both have the lower id
// first.
type walk struct {
	it     *pebble.Iterator
	prefix []byte
	pass   func(value []byte) (bool, error) // passes over an entry; nil: none
	tick   func(steps int) error            // counts steps; nil: nobody does
}

// stretch is a part of a range, from key to key.
type stretch struct {
	lower, upper []byte
	backwards    bool // several seconds, oldest last
}

func itemAt(key []byte) reconcile.Item {
	e := placeOf(key)
	return reconcile.Item{CreatedAt: e.CreatedAt, ID: e.ID}
}

// key is where an item stands.
func (w *walk) key(i reconcile.Item) []byte {
	return appendPlace(slices.Clone(w.prefix), i.CreatedAt, i.ID)
}

// end is where a second ends.
func (w *walk) end(second nostr.Timestamp) []byte {
	return binary.BigEndian.AppendUint64(slices.Clone(w.prefix), invertTime(second)+1)
}

// stretches are what a range consists of, oldest first: a part of a second, whole seconds, a part
// of a second.
func (w *walk) stretches(r reconcile.Range) (parts []stretch) {
	switch {
	case r.Empty():
		return nil
	case r.From.CreatedAt == r.To.CreatedAt:
		return []stretch{{lower: w.key(r.From), upper: w.key(r.To)}}
	}
	// Seconds are whole from this key down.
	whole := w.end(r.From.CreatedAt)
	if r.From.ID != (id{}) {
		parts = append(parts, stretch{lower: w.key(r.From), upper: whole})
		whole = w.key(reconcile.Item{CreatedAt: r.From.CreatedAt})
	}
	parts = append(parts, stretch{lower: w.end(r.To.CreatedAt), upper: whole, backwards: true})
	if r.To.ID != (id{}) {
		parts = append(parts, stretch{lower: w.key(reconcile.Item{CreatedAt: r.To.CreatedAt}), upper: w.key(r.To)})
	}
	return parts
}

// seekSteps is what it counts to go to the beginning of a stretch.
const seekSteps = 16

// begin sets the iterator to a stretch.
func (w *walk) begin(part stretch) error {
	if w.tick != nil {
		if err := w.tick(seekSteps); err != nil {
			return err
		}
	}
	w.it.SetBounds(part.lower, part.upper)
	return nil
}

// step counts a step and reports whether the entry that the iterator stands at counts.
func (w *walk) step() (bool, error) {
	if w.tick != nil {
		if err := w.tick(1); err != nil {
			return false, err
		}
	}
	if w.pass == nil {
		return true, nil
	}
	value, err := w.it.ValueAndErr()
	if err != nil {
		return false, err
	}
	over, err := w.pass(value)
	return !over, err
}

// sum adds up a range.
func (w *walk) sum(r reconcile.Range) (s reconcile.Sum, err error) {
	for _, part := range w.stretches(r) {
		if err := w.begin(part); err != nil {
			return s, err
		}
		for valid := w.it.First(); valid; valid = w.it.Next() {
			counts, err := w.step()
			if err != nil {
				return s, err
			}
			if key := w.it.Key(); counts {
				s.Add((*[idLen]byte)(key[len(key)-idLen:]))
			}
		}
		if err := w.it.Error(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// items returns the first items of a range, at most so many.
func (w *walk) items(r reconcile.Range, most int) (items []reconcile.Item, err error) {
	for _, part := range w.stretches(r) {
		if len(items) == most {
			break
		}
		if part.backwards {
			items, err = w.back(items, part, most)
		} else {
			items, err = w.forth(items, part, most)
		}
		if err != nil {
			return nil, err
		}
	}
	return items, nil
}

// forth appends the items of a stretch within one second.
func (w *walk) forth(items []reconcile.Item, part stretch, most int) ([]reconcile.Item, error) {
	if err := w.begin(part); err != nil {
		return nil, err
	}
	for valid := w.it.First(); valid && len(items) < most; valid = w.it.Next() {
		counts, err := w.step()
		if err != nil {
			return nil, err
		}
		if counts {
			items = append(items, itemAt(w.it.Key()))
		}
	}
	return items, w.it.Error()
}

// back appends the items of whole seconds. It walks them backwards, which turns the ids of a second
// around; where a second has more than there is room for, it is walked again from its beginning.
func (w *walk) back(items []reconcile.Item, part stretch, most int) ([]reconcile.Item, error) {
	if err := w.begin(part); err != nil {
		return nil, err
	}
	begin := len(items) // of the second
	for valid := w.it.Last(); valid; valid = w.it.Prev() {
		counts, err := w.step()
		if err != nil {
			return nil, err
		}
		if !counts {
			continue
		}
		item := itemAt(w.it.Key())
		if begin < len(items) && items[begin].CreatedAt != item.CreatedAt {
			slices.Reverse(items[begin:])
			begin = len(items)
		}
		if len(items) == most {
			if begin == most {
				return items, nil
			}
			second := items[begin].CreatedAt
			whole := stretch{lower: w.key(reconcile.Item{CreatedAt: second}), upper: w.end(second)}
			return w.forth(items[:begin], whole, most)
		}
		items = append(items, item)
	}
	slices.Reverse(items[begin:])
	return items, w.it.Error()
}
