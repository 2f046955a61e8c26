package nostr

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// Encode writes the shortest JSON of an event that is plain (see [Parse]). go-nostr's own may be
// three times as long as what a client wrote, because it escapes more than must be, and then not
// fit where that did. Bytes that are no UTF-8 become U+FFFD.
func Encode(ev *Event) []byte {
	size := 512 + len(ev.Content)
	for _, tag := range ev.Tags {
		for _, value := range tag {
			size += len(value) + len(`"",`)
		}
	}
	b := make([]byte, 0, size)
	b = strconv.AppendInt(append(b, `{"kind":`...), int64(ev.Kind), 10)
	b = AppendString(append(b, `,"id":`...), ev.ID)
	b = AppendString(append(b, `,"pubkey":`...), ev.PubKey)
	b = strconv.AppendInt(append(b, `,"created_at":`...), int64(ev.CreatedAt), 10)
	b = append(b, `,"tags":[`...)
	b = AppendTags(b, ev.Tags)
	b = AppendString(append(b, `],"content":`...), ev.Content)
	b = AppendString(append(b, `,"sig":`...), ev.Sig)
	if b = append(b, '}'); !utf8.Valid(b) {
		return []byte(string(bytes.Runes(b)))
	}
	return b
}

// AppendTags appends what stands between the brackets of an event's tags.
func AppendTags(b []byte, tags Tags) []byte {
	for i, tag := range tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for j, value := range tag {
			if j > 0 {
				b = append(b, ',')
			}
			b = AppendString(b, value)
		}
		b = append(b, ']')
	}
	return b
}

// AppendString appends a string as JSON, with no more escapes than it needs (RFC 8259, section 7;
// NIP-01 wants the same of what an id is the hash of). Bytes that are no UTF-8 stay.
func AppendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		escape := escapes[s[i]]
		if escape == "" {
			continue
		}
		b = append(append(b, s[start:i]...), escape...)
		start = i + 1
	}
	return append(append(b, s[start:]...), '"')
}

// escapes are what stands for a byte in a string of JSON; "": the byte itself.
var escapes = func() (of [256]string) {
	const digits = "0123456789abcdef"
	for c := range ' ' {
		of[c] = `\u00` + string(digits[c>>4]) + string(digits[c&15])
	}
	of['"'], of['\\'] = `\"`, `\\`
	of['\b'], of['\t'], of['\n'], of['\f'], of['\r'] = `\b`, `\t`, `\n`, `\f`, `\r`
	return of
}()
