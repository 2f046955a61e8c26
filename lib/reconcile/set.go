// Package reconcile finds out which events two sides do not have in common: Negentropy protocol V1,
// the binary messages of NIP-77. Both sides are here, the one that answers ([Respond]) and the one
// that asks ([Start], [Continue]).
//
// Neither side keeps anything between two messages but the filter: every message says by itself
// which ranges are still in question. So each may be answered by another process, on the set as it
// is at that moment, and nothing has to be copied when a session begins. Though events come and go
// meanwhile, the result is right: a range is settled only when fingerprints were equal, or by a
// list of ids that was exact when it was made. So an event that one side has throughout and the
// other never is always found, and one that both have throughout is never reported. What comes or
// goes during the session may be seen either way, as if the session had run before or after it.
package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

// Item is an event as reconciliation sees it, and the place of one in the order: oldest first, and
// the lower id first among equals.
type Item struct {
	CreatedAt nostr.Timestamp
	ID        [32]byte
}

// End comes after every item. An event of that very time, or of one before 1970, has no place in
// the protocol and is in no set.
var End = Item{CreatedAt: math.MaxInt64}

// Compare returns which of two items comes first.
func (i Item) Compare(o Item) int {
	if i.CreatedAt != o.CreatedAt {
		return cmp.Compare(i.CreatedAt, o.CreatedAt)
	}
	return bytes.Compare(i.ID[:], o.ID[:])
}

// Between returns a short place after a and at or before b, for a before b.
func Between(a, b Item) Item {
	cut := Item{CreatedAt: b.CreatedAt}
	if a.CreatedAt == b.CreatedAt {
		same := 0
		for same < len(b.ID)-1 && a.ID[same] == b.ID[same] {
			same++
		}
		copy(cut.ID[:], b.ID[:same+1])
	}
	return cut
}

// Range is the items at or after From and before To.
type Range struct{ From, To Item }

// Everything is the range of all items.
var Everything = Range{To: End}

// Within returns the part of the range that is not older than since and not younger than until;
// nil: no bound. The range is empty if From does not come before To.
func (r Range) Within(since, until *nostr.Timestamp) Range {
	if since != nil && *since > r.From.CreatedAt {
		r.From = Item{CreatedAt: *since}
	}
	if until != nil && *until < r.To.CreatedAt {
		r.To = Item{CreatedAt: max(*until+1, 0)}
	}
	return r
}

// Empty reports whether nothing can be in the range.
func (r Range) Empty() bool { return r.From.Compare(r.To) >= 0 }

// Holds reports whether an item is in the range.
func (r Range) Holds(i Item) bool { return i.Compare(r.From) >= 0 && i.Compare(r.To) < 0 }

// Sum is what the fingerprint of a range is made of: the number of its items, and the sum of their
// ids, as little-endian numbers, modulo 2^256. Sums of ranges that do not overlap can be added.
type Sum struct {
	Count uint64
	Total [4]uint64 // the lowest 64 bits first
}

// Add adds an id.
func (s *Sum) Add(id *[32]byte) { s.Plus(sumOf(id)) }

// Remove takes an id away that was added.
func (s *Sum) Remove(id *[32]byte) { s.Minus(sumOf(id)) }

func sumOf(id *[32]byte) Sum {
	return Sum{Count: 1, Total: [4]uint64{
		binary.LittleEndian.Uint64(id[:]), binary.LittleEndian.Uint64(id[8:]),
		binary.LittleEndian.Uint64(id[16:]), binary.LittleEndian.Uint64(id[24:]),
	}}
}

// Plus adds the sum of another range.
func (s *Sum) Plus(o Sum) {
	carry := uint64(0)
	for i := range s.Total {
		s.Total[i], carry = bits.Add64(s.Total[i], o.Total[i], carry)
	}
	s.Count += o.Count
}

// Minus takes the sum of a range away that was added.
func (s *Sum) Minus(o Sum) {
	borrow := uint64(0)
	for i := range s.Total {
		s.Total[i], borrow = bits.Sub64(s.Total[i], o.Total[i], borrow)
	}
	s.Count -= o.Count
}

// Fingerprint returns what the other side is told of a range (NIP-77, Fingerprint algorithm).
func (s Sum) Fingerprint() [fingerprintLen]byte {
	var b []byte
	for _, part := range s.Total {
		b = binary.LittleEndian.AppendUint64(b, part)
	}
	digest := sha256.Sum256(appendVarint(b, s.Count))
	return [fingerprintLen]byte(digest[:fingerprintLen])
}

// Set is what one side has. It may change between two calls; each call sees it at one moment.
type Set interface {
	// Sum adds up a range.
	Sum(ctx context.Context, r Range) (Sum, error)
	// Items returns the first items of a range in order, at most so many. They are valid until the
	// next call.
	Items(ctx context.Context, r Range, most int) ([]Item, error)
	// Cut returns places inside of a range, in order and none twice, that divide it into that many
	// parts of about the same number of items, or into fewer. Of a range with few items it may
	// return none.
	Cut(ctx context.Context, r Range, parts int) ([]Item, error)
}

// Packed is a set that is kept in memory, in order and none twice.
type Packed []Item

// ItemBytes is what an item takes up in memory.
const ItemBytes = 40

// Pack makes a set of items, whose slice it takes over.
func Pack(items []Item) Packed {
	items = slices.DeleteFunc(items, func(i Item) bool { return !Everything.Holds(i) })
	slices.SortFunc(items, Item.Compare)
	return slices.Compact(items)
}

// in returns the items of a range.
func (p Packed) in(r Range) Packed {
	from, _ := slices.BinarySearchFunc(p, r.From, Item.Compare)
	to, _ := slices.BinarySearchFunc(p, r.To, Item.Compare)
	return p[from:max(from, to)]
}

// Sum adds up a range.
func (p Packed) Sum(ctx context.Context, r Range) (s Sum, err error) {
	some := p.in(r)
	for i := range some {
		s.Add(&some[i].ID)
	}
	return s, ctx.Err()
}

// Items returns the first items of a range.
func (p Packed) Items(ctx context.Context, r Range, most int) ([]Item, error) {
	some := p.in(r)
	return some[:min(len(some), most)], ctx.Err()
}

// Cut divides a range into parts of the same size.
func (p Packed) Cut(ctx context.Context, r Range, parts int) (cuts []Item, err error) {
	some := p.in(r)
	for n := 1; n < parts; n++ {
		if at := n * len(some) / parts; at > (n-1)*len(some)/parts {
			cuts = append(cuts, Between(some[at-1], some[at]))
		}
	}
	return cuts, ctx.Err()
}

// Union is several sets as one. No item should be in two of them: one that is counts twice in sums,
// which costs messages, but is listed once.
type Union []Set

// Sum adds up a range.
func (u Union) Sum(ctx context.Context, r Range) (s Sum, err error) {
	for _, set := range u {
		part, err := set.Sum(ctx, r)
		if err != nil {
			return Sum{}, err
		}
		s.Plus(part)
	}
	return s, nil
}

// Items returns the first items of a range.
func (u Union) Items(ctx context.Context, r Range, most int) ([]Item, error) {
	if len(u) == 1 {
		return u[0].Items(ctx, r, most)
	}
	var all []Item
	for _, set := range u {
		some, err := set.Items(ctx, r, most)
		if err != nil {
			return nil, err
		}
		if all = Pack(append(all, some...)); len(all) > most {
			all = all[:most]
		}
	}
	return all, nil
}

// finer is into how many parts each set is cut for one part of the union.
const finer = 4

// Cut divides a range by the cuts of each set, weighed by what is between two of them.
func (u Union) Cut(ctx context.Context, r Range, parts int) (cuts []Item, err error) {
	if len(u) == 1 {
		return u[0].Cut(ctx, r, parts)
	}
	type weighed struct {
		at     Item
		weight float64
	}
	var all []weighed
	total := 0.0
	for _, set := range u {
		some, err := set.Cut(ctx, r, finer*parts)
		if err != nil {
			return nil, err
		}
		s, err := set.Sum(ctx, r)
		if err != nil {
			return nil, err
		}
		total += float64(s.Count)
		for _, at := range some {
			all = append(all, weighed{at, float64(s.Count) / float64(len(some)+1)})
		}
	}
	slices.SortFunc(all, func(a, b weighed) int { return a.at.Compare(b.at) })
	before, next := 0.0, total/float64(parts)
	for _, w := range all {
		if before += w.weight; before < next || len(cuts) > 0 && cuts[len(cuts)-1] == w.at {
			continue
		}
		cuts, next = append(cuts, w.at), before+total/float64(parts)
	}
	return cuts[:min(len(cuts), parts-1)], nil
}
