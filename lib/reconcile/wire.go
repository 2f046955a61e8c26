package reconcile

import (
	"errors"
	"fmt"
	"math"

	"tendril.dev/lib/nostr"
)

// The messages: a byte with the version, then ranges in order, each with its upper bound, a mode
// and what belongs to the mode. The lower bound is the upper one of the range before. What comes
// after the last range is skipped.
const (
	version        = 0x61 // of the protocol: 1
	fingerprintLen = 16
	maxVarint      = 10 // bytes
)

// How a range is spoken of.
const modeSkip, modeFingerprint, modeIDs = 0, 1, 2

// ErrMessage is the error of a message from the other side that breaks the rules of the protocol.
// The session with it is of no more use; nothing of the set has changed.
var ErrMessage = errors.New("not a negentropy message")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMessage}, args...)...)
}

// appendVarint appends a number in base 128, the highest digits first.
func appendVarint(b []byte, n uint64) []byte {
	var digits [maxVarint]byte
	at := len(digits) - 1
	digits[at] = byte(n & 0x7f)
	for n >>= 7; n > 0; n >>= 7 {
		at--
		digits[at] = byte(n&0x7f) | 0x80
	}
	return append(b, digits[at:]...)
}

// reader reads the ranges of a message, which is a stranger's.
type reader struct {
	rest []byte
	time uint64 // of the last bound
	at   Item   // the last bound
}

func (r *reader) bytes(n uint64) ([]byte, error) {
	if n > uint64(len(r.rest)) {
		return nil, broken("it ends in the middle of a range")
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b, nil
}

func (r *reader) varint() (n uint64, err error) {
	for i := range r.rest {
		if i == maxVarint || n > math.MaxUint64>>7 {
			return 0, broken("a number is too large")
		}
		c := r.rest[i]
		n = n<<7 | uint64(c&0x7f)
		if c < 0x80 {
			r.rest = r.rest[i+1:]
			return n, nil
		}
	}
	return 0, broken("it ends in the middle of a number")
}

// bound reads the upper bound of a range, which must not come before the last one.
func (r *reader) bound() (Item, error) {
	delta, err := r.varint()
	if err != nil {
		return Item{}, err
	}
	size, err := r.varint()
	if err != nil {
		return Item{}, err
	}
	if size > uint64(len(Item{}.ID)) {
		return Item{}, broken("a bound has an id of %d bytes", size)
	}
	prefix, err := r.bytes(size)
	if err != nil {
		return Item{}, err
	}
	if delta == 0 {
		r.at = End
		return End, nil
	}
	// Both are below 2^63, or the sum is too large.
	if delta > math.MaxInt64 || r.time+delta-1 >= math.MaxInt64 {
		return Item{}, broken("a bound is at a time that cannot be")
	}
	r.time += delta - 1
	to := Item{CreatedAt: nostr.Timestamp(r.time)}
	copy(to.ID[:], prefix)
	if to.Compare(r.at) < 0 {
		return Item{}, broken("the ranges are not in order")
	}
	r.at = to
	return to, nil
}

// count reads how many ids follow.
func (r *reader) count() (int, error) {
	n, err := r.varint()
	if err != nil {
		return 0, err
	}
	if n > uint64(len(r.rest))/uint64(len(Item{}.ID)) {
		return 0, broken("it ends in the middle of a list of ids")
	}
	return int(n), nil
}

// writer writes the ranges of a message.
type writer struct {
	out     []byte
	time    uint64 // of the last bound
	skipped Item   // up to here nothing has to be said, which is not written yet; zero: nothing
}

func newWriter() *writer { return &writer{out: []byte{version}} }

// skip notes that a range needs no more words. Ranges that follow each other become one.
func (w *writer) skip(to Item) { w.skipped = to }

// bound begins a range.
func (w *writer) bound(to Item, mode byte) {
	if w.skipped != (Item{}) {
		at := w.skipped
		w.skipped = Item{}
		w.bound(at, modeSkip)
	}
	if to == End {
		w.out = append(w.out, 0, 0, mode)
		return
	}
	w.out = appendVarint(w.out, uint64(to.CreatedAt)-w.time+1)
	w.time = uint64(to.CreatedAt)
	size := len(to.ID)
	for size > 0 && to.ID[size-1] == 0 {
		size--
	}
	w.out = append(appendVarint(w.out, uint64(size)), to.ID[:size]...)
	w.out = append(w.out, mode)
}

func (w *writer) fingerprint(to Item, s Sum) {
	w.bound(to, modeFingerprint)
	mark := s.Fingerprint()
	w.out = append(w.out, mark[:]...)
}

func (w *writer) ids(to Item, items []Item) {
	w.bound(to, modeIDs)
	w.out = appendVarint(w.out, uint64(len(items)))
	for i := range items {
		w.out = append(w.out, items[i].ID[:]...)
	}
}
