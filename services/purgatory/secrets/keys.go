package secrets

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"
)

const (
	// nsecBegin is how a secret key begins as NIP-19 writes it, and nsecLength how long it is.
	nsecBegin  = "nsec1"
	nsecLength = 63
	// leastDifferent is how many different bytes of 32 a key must have. Keys that people make up
	// for tests have fewer.
	leastDifferent = 12
)

// publishedKeys are secret keys that NIPs give as examples.
var publishedKeys = []string{
	"67dea2ed018072d675f5415ecfaed7d2597555e202d85b3d65ea4e58d2d92ffa", // NIP-19
	"7f7ff03d123792d6ac594bfa67bf6d0c0ab55b6b1fdb6249303fe861f1ccba9a", // NIP-06
	"c15d739894c81a2fcfd3a2df85a0d2c0dbc47a280d092799f144d73d7ae78add", // NIP-06
}

// findNsec finds a nostr secret key (NIP-19) whose checksum is right. What stands around it does
// not matter: a checksum of 30 bits is right by chance in no text that there is.
func findNsec(content []byte, at int) (start, end int, ok bool) {
	end = at + nsecLength
	if end > len(content) {
		return 0, 0, false
	}
	_, value, err := nip19.Decode(string(content[at:end]))
	key, isKey := value.(string)
	if err != nil || !isKey {
		return 0, 0, false
	}
	raw, err := hex.DecodeString(key)
	if err != nil || len(raw) != 32 || slices.Contains(publishedKeys, key) {
		return 0, 0, false
	}
	slices.Sort(raw)
	return at, end, len(slices.Compact(raw)) >= leastDifferent
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
}

const (
	// pemKey is in the first line of every private key in PEM (RFC 7468), and of those of OpenSSH
	// and OpenPGP.
	pemKey   = "PRIVATE KEY"
	pemBegin = "-----BEGIN"
	dashes   = "-----"

	// maxPEMLabel is how long the words before pemKey may be: "ENCRYPTED", "RSA", "OPENSSH".
	maxPEMLabel = 32
	// maxPEM is the length of the longest key that is looked for, with everything around it.
	maxPEM = 64 << 10
	// leastPEM and pemEntropy are how many letters of Base64 a key must have, and how many bits
	// each of them. Sentences and dots in place of a key have fewer.
	leastPEM   = 64
	pemEntropy = 4.6
)

// findPEM finds a private key in PEM by the words in its first line. Its lines may be those of a
// string in a program: quoted, and ending in \n.
func findPEM(content []byte, at int) (start, end int, ok bool) {
	from := max(0, at-maxPEMLabel-len(pemBegin))
	begin := bytes.LastIndex(content[from:at], []byte(pemBegin))
	if begin < 0 {
		return 0, 0, false
	}
	start = from + begin
	if strings.Trim(string(content[start+len(pemBegin):at]), " ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
		return 0, 0, false
	}
	rest := bytes.TrimPrefix(content[at+len(pemKey):min(len(content), at+maxPEM)], []byte(" BLOCK"))
	rest, found := bytes.CutPrefix(rest, []byte(dashes))
	if !found {
		return 0, 0, false
	}
	body, rest, found := bytes.Cut(rest, []byte(dashes))
	if !found || !bytes.HasPrefix(rest, []byte("END")) {
		return 0, 0, false
	}
	letters := pemLetters(body)
	end = at + len(pemKey) + bytes.Index(content[at+len(pemKey):], body) + len(body)
	return start, end, len(letters) >= leastPEM && entropy(letters) > pemEntropy
}

// pemLetters are the letters of Base64 of a key, without the ends of its lines.
func pemLetters(body []byte) []byte {
	letters := make([]byte, 0, len(body))
	for i := 0; i < len(body); i++ {
		c := body[i]
		if c == '\\' && i+1 < len(body) && (body[i+1] == 'n' || body[i+1] == 'r') {
			i++
			continue
		}
		if isWord(c) && c != '_' || c == '+' || c == '/' {
			letters = append(letters, c)
		}
	}
	return letters
}

// beginsPEM reports whether a private key in PEM begins in a text.
func beginsPEM(text []byte) bool {
	for {
		at := bytes.Index(text, []byte(pemKey))
		if at < 0 {
			return false
		}
		if bytes.Contains(text[max(0, at-maxPEMLabel-len(pemBegin)):at], []byte(pemBegin)) {
			return true
		}
		text = text[at+len(pemKey):]
	}
}
