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

static int tendril_verify(const unsigned char *author, const unsigned char *id, const unsigned char *sig) {
	secp256k1_xonly_pubkey key;
	return secp256k1_xonly_pubkey_parse(secp256k1_context_static, &key, author) &&
		secp256k1_schnorrsig_verify(secp256k1_context_static, sig, id, 32, &key);
}
*/
import "C"

import "unsafe"

// linked: libsecp256k1 is in the program. A test sees to it.
var linked = C.tendril_linked() != 0

// verify checks a signature.
func verify(ev *Event, author, id *[32]byte, sig *[64]byte) bool {
	if !linked {
		ok, err := ev.CheckSignature()
		return ok && err == nil
	}
	return C.tendril_verify((*C.uchar)(unsafe.Pointer(author)), (*C.uchar)(unsafe.Pointer(id)), (*C.uchar)(unsafe.Pointer(sig))) == 1
}
