package config

import (
	"encoding/hex"
	"errors"
	"strings"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"
)

// groupOrder is what a secret key of secp256k1 is below; one is not 0 either.
const groupOrder = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"

// KeyPair reads a secret key as NGIT_RELAY_OWNER_NSEC and key files hold it: nsec1… (NIP-19) or 64
// hex digits, with spaces around. It returns the secret and the public key, 64 hex digits each. Its
// error never repeats the secret.
func KeyPair(text string) (secret, public string, err error) {
	secret = strings.TrimSpace(text)
	if b, err := hex.DecodeString(secret); err == nil && len(b) == 32 {
		secret = strings.ToLower(secret)
	} else {
		kind, decoded, err := nip19.Decode(secret)
		if err != nil || kind != "nsec" {
			return "", "", errors.New("holds no secret key: want nsec1… or 64 hex digits")
		}
		secret = decoded.(string)
	}
	public, err = nostr.GetPublicKey(secret)
	if err != nil || secret >= groupOrder || secret == strings.Repeat("0", 64) {
		return "", "", errors.New("holds no valid secret key")
	}
	return secret, public, nil
}
