package rawevent

import (
	"strconv"
	"unicode/utf8"

	"github.com/nbd-wtf/go-nostr"
)

// Encode writes the shortest JSON of an event that is plain (see [Parse]). go-nostr's own may be
// three times as long as what a client wrote, because it escapes more than must be, and then not
// fit where that did. Bytes that are no UTF-8 become U+FFFD.
func Encode(ev *nostr.Event) []byte {
	size := 512 + len(ev.Content)
	for _, tag := range ev.Tags {
		for _, value := range tag {
			size += len(value) + len(`"",`)
		}
	}
	b := make([]byte, 0, size)
	b = strconv.AppendInt(append(b, `{"kind":`...), int64(ev.Kind), 10)
	b = appendString(append(b, `,"id":`...), ev.ID)
	b = appendString(append(b, `,"pubkey":`...), ev.PubKey)
	b = strconv.AppendInt(append(b, `,"created_at":`...), int64(ev.CreatedAt), 10)
	b = append(b, `,"tags":[`...)
	for i, tag := range ev.Tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for j, value := range tag {
			if j > 0 {
				b = append(b, ',')
			}
			b = appendString(b, value)
		}
		b = append(b, ']')
	}
	b = appendString(append(b, `],"content":`...), ev.Content)
	b = appendString(append(b, `,"sig":`...), ev.Sig)
	return append(b, '}')
}

// short are the control characters that have an escape of two bytes.
var short = [' ']byte{'\b': 'b', '\t': 't', '\n': 'n', '\f': 'f', '\r': 'r'}

// appendString writes a string of JSON, and escapes only what must be (RFC 8259, section 7).
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	written := 0 // of s
	for i := 0; i < len(s); {
		c := s[i]
		size := 1
		switch {
		case c >= utf8.RuneSelf:
			var r rune
			if r, size = utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
				b = utf8.AppendRune(append(b, s[written:i]...), utf8.RuneError)
				written = i + 1
			}
		case c == '"' || c == '\\':
			b = append(append(b, s[written:i]...), '\\', c)
			written = i + 1
		case c < ' ' && short[c] != 0:
			b = append(append(b, s[written:i]...), '\\', short[c])
			written = i + 1
		case c < ' ':
			b = append(append(b, s[written:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			written = i + 1
		}
		i += size
	}
	return append(append(b, s[written:]...), '"')
}
