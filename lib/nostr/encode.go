package nostr

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// errEncoding is about bytes that are not UTF-8, which JSON must be.
var errEncoding = errors.New("not valid UTF-8")

// Parse reads an event. Whether the values make sense, the id above all, is for the caller to check.
// What is stored and served of an event is [Encode] of it, never the bytes that a stranger sent: so
// every reader of JSON finds the same event in it. The event shares no memory with data.
func Parse(data []byte) (*Event, error) {
	ev := new(Event)
	err := errEncoding
	if utf8.Valid(data) {
		err = ev.UnmarshalJSON(data)
	}
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	return ev, nil
}

// eventOverhead is about how many bytes an event takes beside its text and the headers of its tags
// and of their values.
const eventOverhead, tagOverhead, valueOverhead = 1024, 24, 16

// Memory is about how many bytes of memory an event takes together with its JSON, which will be made
// of it: the text counts twice.
func Memory(ev *Event) int64 {
	text, headers := len(ev.Content), tagOverhead*cap(ev.Tags)
	for _, tag := range ev.Tags {
		headers += valueOverhead * cap(tag)
		for _, value := range tag {
			text += len(value)
		}
	}
	return eventOverhead + int64(headers+2*text)
}

// Encode writes the shortest JSON of an event, on one line. go-nostr's own may be three times as
// long as what a client wrote, because it escapes more than must be, and then not fit where that
// did. Bytes that are no UTF-8 become U+FFFD.
func Encode(ev *Event) []byte {
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
	b = appendTags(b, ev.Tags)
	b = appendString(append(b, `],"content":`...), ev.Content)
	b = appendString(append(b, `,"sig":`...), ev.Sig)
	if b = append(b, '}'); !utf8.Valid(b) {
		return []byte(string(bytes.Runes(b)))
	}
	return b
}

// appendTags appends what stands between the brackets of an event's tags.
func appendTags(b []byte, tags Tags) []byte {
	for i, tag := range tags {
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
	return b
}

// appendString appends a string as JSON, with no more escapes than it needs (RFC 8259, section 7;
// NIP-01 wants the same of what an id is the hash of). Bytes that are no UTF-8 stay.
func appendString(b []byte, s string) []byte {
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
