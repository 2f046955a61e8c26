// Package reconcile finds out which events two sides do not have in common: Negentropy protocol V1,
// the binary messages of NIP-77. Both sides are here, the one that answers ([Respond]) and the one
// that asks ([Start], [Continue]).
//
// Neither side keeps anything between two messages but the filter: every message says by itself
// which ranges are still in question. So each may be answered by another process, on the set as it
// is at that moment, and nothing has to be copied when a session begins. Though events come and go
// meanwhile, the result is right: a range is complete only when fingerprints were equal, or by a
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

	"tendril.dev/lib/nostr"
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

// Holds reports whether an item is in the range.
func (r Range) Holds(i Item) bool { return i.Compare(r.From) >= 0 && i.Compare(r.To) < 0 }

// Sum is what the fingerprint of a range is made of: the number of its items, and the sum of their
// ids, as little-endian numbers, modulo 2^256.
type Sum struct {
	Count uint64
	Total [4]uint64 // the lowest 64 bits first
}

// Add adds an id.
func (s *Sum) Add(id *[32]byte) {
	carry := uint64(0)
	for i := range s.Total {
		s.Total[i], carry = bits.Add64(s.Total[i], binary.LittleEndian.Uint64(id[8*i:]), carry)
	}
	s.Count++
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
	// Items returns the items of a range in order. They must not be changed.
	Items(ctx context.Context, r Range) ([]Item, error)
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

// Items returns the items of a range.
func (p Packed) Items(ctx context.Context, r Range) ([]Item, error) { return p.in(r), ctx.Err() }
