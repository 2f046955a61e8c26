package nostr

import (
	"crypto/sha256"
	"strconv"
	"sync"
)

// HasID reports whether the id of an event is that of what it says, in lower-case hex digits.
func HasID(ev *Event) bool {
	var claimed [32]byte
	return ReadHex(claimed[:], ev.ID) && hash(ev) == claimed
}

// Signed reports whether the signature of an event is its author's. It takes the event's id for the
// hash of what it says: [HasID] must have said so.
func Signed(ev *Event) bool {
	var id, author [32]byte
	var sig [64]byte
	return ReadHex(id[:], ev.ID) && ReadHex(author[:], ev.PubKey) && ReadHex(sig[:], ev.Sig) && verify(ev, &author, &id, &sig)
}

// hash is the SHA-256 of an event's serialization.
func hash(ev *Event) [32]byte {
	buf := buffers.Get().(*[]byte)
	*buf = serialize((*buf)[:0], ev)
	sum := sha256.Sum256(*buf)
	if cap(*buf) <= keptBytes {
		buffers.Put(buf)
	}
	return sum
}

// buffers are kept for the next event, unless they are larger than keptBytes.
var buffers = sync.Pool{New: func() any { return new(make([]byte, 0, 2<<10)) }}

const keptBytes = 64 << 10

// serialize appends what is hashed to make the id of an event.
func serialize(b []byte, ev *Event) []byte {
	b = append(append(append(b, `[0,"`...), ev.PubKey...), `",`...)
	b = append(strconv.AppendInt(b, int64(ev.CreatedAt), 10), ',')
	b = append(strconv.AppendInt(b, int64(ev.Kind), 10), `,[`...)
	b = appendTags(b, ev.Tags)
	return append(appendString(append(b, `],`...), ev.Content), ']')
}

// ReadHex reads lower-case hex digits that fill dst. It reports whether s is that and no more.
func ReadHex(dst []byte, s string) bool {
	if len(s) != 2*len(dst) {
		return false
	}
	for i := range dst {
		high, low := digit[s[2*i]], digit[s[2*i+1]]
		if high|low > 15 {
			return false
		}
		dst[i] = high<<4 | low
	}
	return true
}

// digit is the value of each lower-case hex digit; 255: none.
var digit = func() (value [256]byte) {
	for i := range value {
		value[i] = 255
	}
	for i, c := range "0123456789abcdef" {
		value[c] = byte(i)
	}
	return value
}()
