package nostr

import "github.com/nbd-wtf/go-nostr/nip19"

// Npub is how people read a public key; what is no key is given back as it is.
func Npub(pubkey string) string {
	if !IsHex64(pubkey) {
		return pubkey
	}
	npub, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		return pubkey
	}
	return npub
}
