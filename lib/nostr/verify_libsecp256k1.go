//go:build libsecp256k1 && cgo && linux

package nostr

/*
#cgo noescape tendril_verify
#cgo nocallback tendril_verify

#include <stddef.h>

// What is needed of the interface of libsecp256k1, which go-nostr compiles into the program. The
// functions are declared weak, so that a go-nostr without them still links: then they are null.
typedef struct secp256k1_context_struct secp256k1_context;
typedef struct { unsigned char data[64]; } secp256k1_xonly_pubkey;

extern const secp256k1_context *const secp256k1_context_static __attribute__((weak));
extern int secp256k1_xonly_pubkey_parse(const secp256k1_context *ctx, secp256k1_xonly_pubkey *pubkey,
	const unsigned char *input32) __attribute__((weak));
extern int secp256k1_schnorrsig_verify(const secp256k1_context *ctx, const unsigned char *sig64,
	const unsigned char *msg, size_t msglen, const secp256k1_xonly_pubkey *pubkey) __attribute__((weak));

static int tendril_linked(void) {
	return &secp256k1_context_static && secp256k1_xonly_pubkey_parse && secp256k1_schnorrsig_verify;
}

// tendril_verify verifies a signature. Where point is not known yet it is read from the author's
// key first, and written for the next time.
static int tendril_verify(unsigned char *point, int known, const unsigned char *author, const unsigned char *id,
	const unsigned char *sig) {
	secp256k1_xonly_pubkey *key = (secp256k1_xonly_pubkey *)point;
	if (!known && !secp256k1_xonly_pubkey_parse(secp256k1_context_static, key, author)) {
		return 0;
	}
	return secp256k1_schnorrsig_verify(secp256k1_context_static, sig, id, 32, key);
}
*/
import "C"

import (
	"sync"
	"unsafe"
)

// linked: libsecp256k1 is in the program. A test sees to it.
var linked = C.tendril_linked() != 0

// point is the point on the curve that a public key names, as libsecp256k1 keeps it. To find it
// costs a tenth of what the check of a signature does, and most authors write more than one event.
type point [64]byte

// verify checks a signature.
func verify(ev *Event, author, id *[32]byte, sig *[64]byte) bool {
	if !linked {
		ok, err := ev.CheckSignature()
		return ok && err == nil
	}
	p, known := points.get(author)
	var have C.int
	if known {
		have = 1
	}
	ok := C.tendril_verify((*C.uchar)(unsafe.Pointer(&p)), have, (*C.uchar)(unsafe.Pointer(author)),
		(*C.uchar)(unsafe.Pointer(id)), (*C.uchar)(unsafe.Pointer(sig))) == 1
	if ok && !known {
		points.put(author, &p)
	}
	return ok
}

// maxPoints bounds how many points are kept; about a quarter of a MiB.
const maxPoints = 2048

// cache keeps the points of the authors whose right signatures were seen last, at least half of
// maxPoints and at most all.
type cache struct {
	mu         sync.Mutex
	young, old map[[32]byte]point
}

var points = cache{young: map[[32]byte]point{}}

func (c *cache) get(author *[32]byte) (p point, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, known = c.young[*author]; known {
		return p, true
	}
	if p, known = c.old[*author]; known {
		c.keep(author, &p)
	}
	return p, known
}

func (c *cache) put(author *[32]byte, p *point) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(author, p)
}

// keep adds a point. The lock is held.
func (c *cache) keep(author *[32]byte, p *point) {
	if len(c.young) >= maxPoints/2 {
		c.young, c.old = make(map[[32]byte]point, maxPoints/2), c.young
	}
	c.young[*author] = *p
}
