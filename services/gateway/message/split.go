package message

import (
	"bytes"
	"encoding/json"
	"iter"
)

// inside returns the values of a JSON array, or the names and values of an object by turns. The
// syntax of raw must have been checked, and must begin with the bracket. What it returns are parts
// of raw. To decode each level anew, as encoding/json does, would cost several times as much for
// the largest filters.
func inside(raw json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		for at := 1; ; {
			for between(raw[at]) {
				at++
			}
			if raw[at] == ']' || raw[at] == '}' {
				return
			}
			end := at + valueEnd(raw[at:])
			if !yield(raw[at:end:end]) {
				return
			}
			at = end
		}
	}
}

// between reports whether a byte stands between two values.
func between(c byte) bool {
	return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == ',' || c == ':'
}

// valueEnd returns the length of the value that b begins with; something comes after it.
func valueEnd(b []byte) int {
	depth := 0
	for i := 0; ; i++ {
		switch c := b[i]; {
		case c == '"':
			i += stringEnd(b[i:]) - 1
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			if depth--; depth < 0 {
				return i // it closes what the value, a number or a word, is in
			}
		case depth == 0 && between(c):
			return i
		default:
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
}

// stringEnd returns the length of the string literal that b begins with.
func stringEnd(b []byte) int {
	for end := 1; ; end++ {
		end += bytes.IndexByte(b[end:], '"')
		escapes := 0
		for b[end-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return end + 1
		}
	}
}
