package intake

import (
	"errors"
	"fmt"

	"tendril.dev/lib/nostr"
)

// ErrForged is wrapped by the errors that say why an event is not what it claims to be. Who
// sends such an event has not checked it, or has made it up.
var ErrForged = errors.New("not a genuine event")

var (
	errForm      = fmt.Errorf("%w: its id, public key or signature is not lower-case hex of the right length", ErrForged)
	errID        = fmt.Errorf("%w: it has another id", ErrForged)
	errSignature = fmt.Errorf("%w: its signature is wrong", ErrForged)
)

// CheckSignature reports whether the signature of an event whose id is right is its author's. The
// error wraps [ErrForged].
func CheckSignature(ev *nostr.Event) error {
	if !nostr.Signed(ev) {
		return errSignature
	}
	return nil
}

// key is what makes an event and its signature one thing: two copies with the same key that are
// both genuine are the same to the last byte that matters. The signature belongs to it because a
// copy with the right id and a wrong signature must not speak for the good one.
type key struct {
	id  [32]byte
	sig [64]byte
}

// keyOf reads an event's key. The public key is looked at too, because go-nostr writes into an
// array of 32 bytes also what is longer.
func keyOf(ev *nostr.Event) (k key, ok bool) {
	return k, nostr.ReadHex(k.id[:], ev.ID) && nostr.ReadHex(k.sig[:], ev.Sig) && nostr.IsHex64(ev.PubKey)
}

// same reports whether two events with the same key say the same. Then one check of the id speaks
// for both.
func same(a, b *nostr.Event) bool {
	if a == b {
		return true
	}
	if a.PubKey != b.PubKey || a.CreatedAt != b.CreatedAt || a.Kind != b.Kind || a.Content != b.Content || len(a.Tags) != len(b.Tags) {
		return false
	}
	for i, tag := range a.Tags {
		if len(tag) != len(b.Tags[i]) {
			return false
		}
		for j, value := range tag {
			if value != b.Tags[i][j] {
				return false
			}
		}
	}
	return true
}
