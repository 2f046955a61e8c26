package proto

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Relay names and identifiers come from strangers and go into subjects and keys, where '.', '*',
// '>' and spaces have meaning. Both encodings below are reversible, canonical (one encoding a
// string) and leave ordinary names as they are, because a person reads them in `nats sub`. A byte
// that may not stand as it is becomes "=XX", its value in upper-case hex.

// MaxEncodedLength bounds an encoded relay or identifier, in bytes, so that no subject grows
// without end.
const MaxEncodedLength = 1024

// emptyToken stands for the empty string, which a subject token cannot be. It is no valid escape,
// so it is unambiguous.
const emptyToken = "="

// ErrEncoding is wrapped by every error of the encoders and decoders of this package: the text is
// too long, empty where it may not be, or not what an encoder writes. The text beside it is empty.
var ErrEncoding = errors.New("not a valid encoding")

// EncodeRelay turns a relay's identity, "host[:port][/path]", into a name for subjects and keys.
// Dots stay, so a name may be several tokens (`grasp.target.relay.example.com`): it is always the
// last thing in its subject. ':' becomes '_'.
func EncodeRelay(key string) (string, error) {
	if key == "" {
		return "", fmt.Errorf("encode relay: %w: empty", ErrEncoding)
	}
	return encode("relay", key, func(i int) byte {
		switch c := key[i]; {
		case isPlain(c), c == '-', c == '/', c == '.' && !dotNeedsEscape(key, i):
			return c
		case c == ':':
			return '_'
		}
		return 0
	})
}

// DecodeRelay is the inverse of [EncodeRelay]. It refuses what EncodeRelay would not have
// written.
func DecodeRelay(name string) (string, error) {
	return decode("relay", name, strings.ReplaceAll(name, "_", ":"), EncodeRelay)
}

// EncodeIdentifier turns a repository identifier (a `d` tag, any bytes) into exactly one subject
// token.
func EncodeIdentifier(identifier string) (string, error) {
	if identifier == "" {
		return emptyToken, nil
	}
	return encode("identifier", identifier, func(i int) byte {
		if c := identifier[i]; isPlain(c) || c == '-' || c == '_' {
			return c
		}
		return 0
	})
}

// DecodeIdentifier is the inverse of [EncodeIdentifier]. It refuses what EncodeIdentifier would
// not have written.
func DecodeIdentifier(token string) (string, error) {
	if token == emptyToken {
		return "", nil
	}
	return decode("identifier", token, token, EncodeIdentifier)
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// dotNeedsEscape: a dot at either end of a name or next to another dot would make an empty token,
// which NATS refuses.
func dotNeedsEscape(s string, i int) bool {
	return i == 0 || i == len(s)-1 || s[i-1] == '.'
}

// encode writes each byte as plain says, or escaped where that is 0.
func encode(what, s string, plain func(i int) byte) (string, error) {
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		if c := plain(i); c != 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", s[i])
		}
	}
	if b.Len() > MaxEncodedLength {
		return "", fmt.Errorf("encode %s: %w: longer than %d bytes", what, ErrEncoding, MaxEncodedLength)
	}
	return b.String(), nil
}

// decode resolves the escapes of a text, and refuses what is not canonical.
func decode(what, token, text string, encode func(string) (string, error)) (string, error) {
	if len(text) > MaxEncodedLength {
		return "", fmt.Errorf("decode %s: %w: longer than %d bytes", what, ErrEncoding, MaxEncodedLength)
	}
	var b strings.Builder
	b.Grow(len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '=' && i+2 < len(text) {
			if escaped, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				c, i = byte(escaped), i+2
			}
		}
		b.WriteByte(c)
	}
	if again, err := encode(b.String()); token == "" || err != nil || again != token {
		return "", fmt.Errorf("decode %s %q: %w: not canonical", what, token, ErrEncoding)
	}
	return b.String(), nil
}
