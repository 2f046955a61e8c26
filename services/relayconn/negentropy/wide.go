package negentropy

import (
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

// Bounds are what a session about everything that a relay has may take before it is given up.
type Bounds struct {
	Bytes   int // of all messages, both ways
	Missing int // events that the relay has and that are not known here
	Known   int // events that are known here, of all kinds and relays
}

// aloneOf is the part of what is known here, as a divisor, that a relay may lack. One that lacks
// more is asked by filters: most of what is known here is none of its business, or it does not show
// all that it has.
const aloneOf = 8

// Wide is a session about everything that a relay has. For a nil one nothing is counted.
type Wide struct {
	bounds  Bounds
	spent   int    // bytes
	known   uint64 // events here
	alone   uint64 // of these, those that the relay has turned out to lack
	missing uint64 // events that the relay has and that are not known here
	refused bool   // the relay does not take it
}

// Hopeless reports whether asking the relay for everything will not help at any time on this
// connection: it refuses that, or it lacks much of what is known here. Else it may help when more
// of what it has is known.
func (w *Wide) Hopeless() bool {
	return w.refused || w.known > uint64(w.bounds.Known) || w.alone > w.known/aloneOf || w.alone > w.missing
}

// AddWide has everything that the relay has reconciled, whatever filters there are, within some
// bounds. Where the relay does not take that, or it turns out not to be worth it, the owner is told
// to ask for it in another way; that says nothing of other sessions.
func (s *Set) AddWide(bounds Bounds, owner Owner) *Wide {
	x := newSearch(nostr.Filter{}, owner, s.o.Seq())
	x.wide = &Wide{bounds: bounds}
	s.queue = slices.Insert(s.queue, 0, x)
	return x.wide
}

// begin notes how much is known here.
func (w *Wide) begin(known uint64) {
	if w != nil {
		w.known = known
	}
}

// spend notes a message, which goes over the wire as hex digits.
func (w *Wide) spend(message []byte) {
	if w != nil {
		w.spent += 2 * len(message)
	}
}

// took notes what the relay has turned out to lack and to have.
func (w *Wide) took(alone uint64, missing int) {
	if w != nil {
		w.alone += alone
		w.missing += uint64(missing)
	}
}

// beyond reports whether the session must be given up.
func (w *Wide) beyond() bool {
	return w != nil && (w.known > uint64(w.bounds.Known) || w.spent > w.bounds.Bytes || w.missing > uint64(w.bounds.Missing) || w.alone > w.known/aloneOf)
}
