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

// key is what makes an event and its signature one thing. The signature belongs to it because a
// copy with the right id and a wrong signature must not speak for the good one.
type key struct {
	id  [32]byte
	sig [64]byte
}

// keyOf reads the key of an event whose id is right, so that two with the same key are the same to
// the last byte. The public key is looked at too, because go-nostr writes into an array of 32 bytes
// also what is longer.
func keyOf(ev *nostr.Event) (k key, err error) {
	switch {
	case !nostr.ReadHex(k.id[:], ev.ID) || !nostr.ReadHex(k.sig[:], ev.Sig) || !nostr.IsHex64(ev.PubKey):
		return k, errForm
	case !nostr.HasID(ev):
		return k, errID
	}
	return k, nil
}
