package nostr

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxIdentifier is the longest identifier, in bytes of its encoded form. With ".git" behind it, it
// is still a legal file name.
const MaxIdentifier = 200

// encodedEmpty stands for the empty identifier, which no accepted event has. An encoding that is
// never empty can never turn a path into that of its parent folder.
const encodedEmpty = "%"

// CheckIdentifier refuses what cannot be the identifier of a repository: nothing, more than
// MaxIdentifier bytes once encoded, control characters, and what is not UTF-8. Everything else,
// colons and slashes too, is allowed.
func CheckIdentifier(id string) error {
	if id == "" {
		return errors.New("the identifier (d tag) is missing or empty")
	}
	if len(id) > MaxIdentifier || len(EncodeIdentifier(id)) > MaxIdentifier {
		return fmt.Errorf("the identifier is longer than %d bytes when percent-encoded", MaxIdentifier)
	}
	if !utf8.ValidString(id) {
		return errors.New("the identifier is not valid UTF-8")
	}
	if strings.ContainsFunc(id, unicode.IsControl) {
		return errors.New("the identifier contains control characters")
	}
	return nil
}

// EncodeIdentifier writes an identifier as a path segment and directory name: as it is where it is
// a plain name (ASCII letters, digits, '.', '_' and '-', not starting with '.' or '-'), every other
// byte as '%' and two upper-case hex digits. Two identifiers never share an encoding, and no
// encoding is empty, "." or "..", or contains '/' or NUL.
func EncodeIdentifier(id string) string {
	if id == "" {
		return encodedEmpty
	}
	var b strings.Builder
	for i := range len(id) {
		if plain(id, i) {
			b.WriteByte(id[i])
			continue
		}
		fmt.Fprintf(&b, "%%%02X", id[i])
	}
	return b.String()
}

// DecodeIdentifier undoes EncodeIdentifier, and accepts nothing else: a name that EncodeIdentifier
// would have written in another way is an error, so that one identifier never has two directories.
func DecodeIdentifier(s string) (string, error) {
	if s == encodedEmpty {
		return "", nil
	}
	id, err := url.PathUnescape(s)
	if err != nil || EncodeIdentifier(id) != s {
		return "", fmt.Errorf("decode identifier: %q is not encoded as it should be", s)
	}
	return id, nil
}

// plain reports whether the byte at i stands for itself in an encoded identifier.
func plain(id string, i int) bool {
	switch c := id[i]; {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		return true
	case c == '.', c == '-':
		return i > 0
	}
	return false
}
