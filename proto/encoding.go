package proto

import (
	"errors"
	"fmt"
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

const upperHex = "0123456789ABCDEF"

// ErrEncoding is wrapped by every error of the encoders and decoders of this package.
var ErrEncoding = errors.New("not a valid encoding")

// EncodeRelay turns a relay's identity, "host[:port][/path]", into a name for subjects and keys.
// Dots stay, so a name may be several tokens (`grasp.target.relay.example.com`): it is always the
// last thing in its subject. ':' becomes '_'.
func EncodeRelay(key string) (string, error) {
	if key == "" {
		return "", fmt.Errorf("encode relay: %w: empty", ErrEncoding)
	}
	var b strings.Builder
	b.Grow(len(key))
	for i := range len(key) {
		switch c := key[i]; {
		case isPlain(c), c == '-', c == '/':
			b.WriteByte(c)
		case c == '.' && !dotNeedsEscape(key, i):
			b.WriteByte(c)
		case c == ':':
			b.WriteByte('_')
		default:
			writeEscape(&b, c)
		}
	}
	if b.Len() > MaxEncodedLength {
		return "", fmt.Errorf("encode relay: %w: longer than %d bytes", ErrEncoding, MaxEncodedLength)
	}
	return b.String(), nil
}

// DecodeRelay is the inverse of [EncodeRelay]. It refuses whatever EncodeRelay would not have
// written.
func DecodeRelay(name string) (string, error) {
	key, err := unescape(name, func(c byte) (byte, bool) {
		switch {
		case c == '_':
			return ':', true
		case isPlain(c), c == '-', c == '/', c == '.':
			return c, true
		}
		return 0, false
	})
	if err != nil {
		return "", fmt.Errorf("decode relay %q: %w", name, err)
	}
	if again, err := EncodeRelay(key); err != nil || again != name {
		return "", fmt.Errorf("decode relay %q: %w: not canonical", name, ErrEncoding)
	}
	return key, nil
}

// EncodeIdentifier turns a repository identifier (a `d` tag, any bytes) into exactly one subject
// token.
func EncodeIdentifier(identifier string) (string, error) {
	if identifier == "" {
		return emptyToken, nil
	}
	var b strings.Builder
	b.Grow(len(identifier))
	for i := range len(identifier) {
		if c := identifier[i]; isPlain(c) || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			writeEscape(&b, c)
		}
	}
	if b.Len() > MaxEncodedLength {
		return "", fmt.Errorf("encode identifier: %w: longer than %d bytes", ErrEncoding, MaxEncodedLength)
	}
	return b.String(), nil
}

// DecodeIdentifier is the inverse of [EncodeIdentifier]. It refuses whatever EncodeIdentifier would
// not have written.
func DecodeIdentifier(token string) (string, error) {
	if token == emptyToken {
		return "", nil
	}
	identifier, err := unescape(token, func(c byte) (byte, bool) {
		return c, isPlain(c) || c == '-' || c == '_'
	})
	if err != nil {
		return "", fmt.Errorf("decode identifier %q: %w", token, err)
	}
	if again, err := EncodeIdentifier(identifier); err != nil || again != token {
		return "", fmt.Errorf("decode identifier %q: %w: not canonical", token, ErrEncoding)
	}
	return identifier, nil
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// dotNeedsEscape: a dot at either end of a name or next to another dot would make an empty token,
// which NATS refuses.
func dotNeedsEscape(s string, i int) bool {
	return i == 0 || i == len(s)-1 || s[i-1] == '.'
}

func writeEscape(b *strings.Builder, c byte) {
	b.WriteByte('=')
	b.WriteByte(upperHex[c>>4])
	b.WriteByte(upperHex[c&15])
}

func unescape(s string, plain func(byte) (byte, bool)) (string, error) {
	if s == "" {
		return "", fmt.Errorf("%w: empty", ErrEncoding)
	}
	if len(s) > MaxEncodedLength {
		return "", fmt.Errorf("%w: longer than %d bytes", ErrEncoding, MaxEncodedLength)
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '=' {
			if i+2 >= len(s) {
				return "", fmt.Errorf("%w: '=' without two hex digits", ErrEncoding)
			}
			hi, lo := strings.IndexByte(upperHex, s[i+1]), strings.IndexByte(upperHex, s[i+2])
			if hi < 0 || lo < 0 {
				return "", fmt.Errorf("%w: '=' without two hex digits", ErrEncoding)
			}
			b.WriteByte(byte(hi<<4 | lo))
			i += 2
			continue
		}
		c, ok := plain(s[i])
		if !ok {
			return "", fmt.Errorf("%w: byte %q must be escaped", ErrEncoding, s[i])
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}
