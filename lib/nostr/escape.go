package nostr

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// escaped reads the rest of a string in which the reader has come to its first backslash.
func (r *reader) escaped(start int) (string, bool) {
	// What is decoded is never longer than what it is decoded from.
	end, ok := r.endOfString()
	if !ok {
		return "", false
	}
	var text strings.Builder
	text.Grow(end - start)
	text.Write(r.data[start:r.at])
	for r.at < end {
		c := r.data[r.at]
		if c != '\\' {
			run := r.at
			for r.at < end && r.data[r.at] != '\\' {
				r.at++
			}
			text.Write(r.data[run:r.at])
			continue
		}
		r.at++
		c = r.data[r.at] // there is one: a backslash before the end would have escaped the quote
		r.at++
		switch c {
		case '"', '\\', '/':
			text.WriteByte(c)
		case 'b':
			text.WriteByte('\b')
		case 'f':
			text.WriteByte('\f')
		case 'n':
			text.WriteByte('\n')
		case 'r':
			text.WriteByte('\r')
		case 't':
			text.WriteByte('\t')
		case 'u':
			letter, ok := r.codePoint(end)
			if !ok {
				return "", false
			}
			text.WriteRune(letter)
		default:
			return "", false
		}
	}
	r.at = end + 1
	return text.String(), true
}

// endOfString finds the quote that ends the string that the reader is in, without moving. Control
// characters may not stand in a string.
func (r *reader) endOfString() (int, bool) {
	for i := r.at; i < len(r.data); i++ {
		switch c := r.data[i]; {
		case c == '"':
			return i, true
		case c < ' ':
			return 0, false
		case c == '\\':
			i++
			if i < len(r.data) && r.data[i] < ' ' {
				return 0, false
			}
		}
	}
	return 0, false
}

// codePoint reads what follows \u, with its second half where it is one of a pair.
func (r *reader) codePoint(end int) (rune, bool) {
	first, ok := r.hex4(end)
	if !ok || !utf16.IsSurrogate(first) {
		return first, ok
	}
	if r.at+2 > end || r.data[r.at] != '\\' || r.data[r.at+1] != 'u' {
		return 0, false
	}
	r.at += 2
	second, ok := r.hex4(end)
	if !ok {
		return 0, false
	}
	letter := utf16.DecodeRune(first, second)
	return letter, letter != utf8.RuneError // no pair decodes to that
}

func (r *reader) hex4(end int) (rune, bool) {
	if r.at+4 > end {
		return 0, false
	}
	var n rune
	for _, c := range r.data[r.at : r.at+4] {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			n = n<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	r.at += 4
	return n, true
}
