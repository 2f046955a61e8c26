package nostr

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// ErrEncoding is wrapped by errors about bytes that are not UTF-8, which JSON must be.
var ErrEncoding = errors.New("not valid UTF-8")

// Parse reads an event. plain says that data is the usual JSON of an event: exactly the seven
// fields of NIP-01, each once; on one line; no whitespace but a single space after a colon or a
// comma; integers without fraction or exponent; valid UTF-8 without half surrogates. Every reader
// of JSON finds the same event in such bytes, so they can be stored and served as they are.
//
// All else that go-nostr can read is given too, with plain false: such an event must be encoded
// anew. Whether the values make sense, the id above all, is for the caller to check. The event
// shares no memory with data.
func Parse(data []byte) (ev *Event, plain bool, err error) {
	ev, err = parse(data, func() string { return string(data) })
	if ev != nil || err != nil {
		return ev, true, err
	}
	ev, err = parseAny(data)
	return ev, false, err
}

// ParseCopy is [Parse] for data that will be overwritten. raw is a copy of data if that is plain,
// and nil otherwise. The strings of a small event are pieces of raw, so that both together are one
// copy; no caller may write to it.
func ParseCopy(data []byte) (ev *Event, raw []byte, err error) {
	ev, err = parse(data, func() string {
		raw = bytes.Clone(data)
		return unsafe.String(unsafe.SliceData(raw), len(raw))
	})
	switch {
	case err != nil:
		return nil, nil, err
	case ev == nil:
		ev, err = parseAny(data)
		return ev, nil, err
	case raw == nil:
		raw = bytes.Clone(data)
	}
	return ev, raw, nil
}

// parse reads plain JSON. The event is nil if it is not plain. share gives the data as a string; it
// is called once at most, for a small event.
func parse(data []byte, share func() string) (*Event, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("read event: %w", ErrEncoding)
	}
	return readPlain(data, share), nil
}

// parseAny reads all that go-nostr can read.
func parseAny(data []byte) (*Event, error) {
	ev := new(Event)
	if err := ev.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	return ev, nil
}

// shareBelow is the size in bytes up to which the tags, content and signature of an event are
// pieces of one string. Larger ones get a string each, so that a caller who keeps a tag for long
// keeps little else with it.
const shareBelow = 2048

// reader reads plain JSON from its start. Its methods say whether what they ask for was there;
// after a false nothing of it is of use.
type reader struct {
	data   []byte
	shared string // data again, of a small event; "": every string is made for itself
	at     int

	// Values of all tags, and where each tag ends among them.
	values []string
	ends   []int
}

// Fields of an event, one bit each.
const (
	fieldID = 1 << iota
	fieldPubKey
	fieldCreatedAt
	fieldKind
	fieldTags
	fieldContent
	fieldSig

	allFields = 1<<iota - 1
)

// readPlain returns the event, or nil if its JSON is not plain.
func readPlain(data []byte, share func() string) *Event {
	r := readers.Get().(*reader)
	defer r.release()
	r.data = data
	if len(data) <= shareBelow {
		r.shared = share()
	}
	return r.event()
}

// readers are kept for their lists, which no event keeps.
var readers = sync.Pool{New: func() any { return new(reader) }}

// maxKeptValues is how long a list may be that is kept.
const maxKeptValues = 1024

func (r *reader) release() {
	if cap(r.values) > maxKeptValues || cap(r.ends) > maxKeptValues {
		return
	}
	clear(r.values)
	*r = reader{values: r.values[:0], ends: r.ends[:0]}
	readers.Put(r)
}

func (r *reader) event() *Event {
	if !r.skip('{') {
		return nil
	}
	ev := new(Event)
	for seen := 0; seen != allFields; {
		if seen != 0 && !r.separator(',') {
			return nil
		}
		field := r.field(ev)
		if field == 0 || seen&field != 0 {
			return nil
		}
		seen |= field
	}
	if !r.skip('}') || r.at != len(r.data) {
		return nil
	}
	return ev
}

// field reads one name and its value into the event. It gives the field's bit; 0: none.
func (r *reader) field(ev *Event) int {
	name, ok := r.name()
	if !ok || !r.separator(':') {
		return 0
	}
	switch string(name) {
	case "id":
		// The id and the key are what others keep for long: they are strings of their own.
		if ev.ID, ok = r.text(); ok {
			ev.ID = r.own(ev.ID)
			return fieldID
		}
	case "pubkey":
		if ev.PubKey, ok = r.text(); ok {
			ev.PubKey = r.own(ev.PubKey)
			return fieldPubKey
		}
	case "created_at":
		if n, ok := r.integer(); ok {
			ev.CreatedAt = Timestamp(n)
			return fieldCreatedAt
		}
	case "kind":
		if n, ok := r.integer(); ok {
			ev.Kind = int(n)
			return fieldKind
		}
	case "tags":
		if ev.Tags, ok = r.tags(); ok {
			return fieldTags
		}
	case "content":
		if ev.Content, ok = r.text(); ok {
			return fieldContent
		}
	case "sig":
		if ev.Sig, ok = r.text(); ok {
			return fieldSig
		}
	}
	return 0
}

// skip passes over one byte.
func (r *reader) skip(c byte) bool {
	if r.at >= len(r.data) || r.data[r.at] != c {
		return false
	}
	r.at++
	return true
}

// separator passes over a colon or comma and the space that may follow it.
func (r *reader) separator(c byte) bool {
	if !r.skip(c) {
		return false
	}
	r.skip(' ')
	return true
}

// name reads the name of a field. No name of ours needs an escape.
func (r *reader) name() ([]byte, bool) {
	if !r.skip('"') {
		return nil, false
	}
	start := r.at
	for r.at < len(r.data) {
		if c := r.data[r.at]; c == '"' {
			r.at++
			return r.data[start : r.at-1], true
		}
		r.at++
	}
	return nil, false
}

// integer reads a number of at most 18 digits as JSON writes it.
func (r *reader) integer() (int64, bool) {
	negative := r.skip('-')
	start := r.at
	var n int64
	for r.at < len(r.data) && r.data[r.at] >= '0' && r.data[r.at] <= '9' {
		n = n*10 + int64(r.data[r.at]-'0')
		r.at++
		if r.at-start > 18 {
			return 0, false
		}
	}
	digits := r.at - start
	if digits == 0 || r.data[start] == '0' && (digits > 1 || negative) {
		return 0, false
	}
	if negative {
		n = -n
	}
	return n, true
}

// tags reads a list of lists of strings. All values lie in one slice, each tag is a part of it.
func (r *reader) tags() (Tags, bool) {
	if !r.skip('[') {
		return nil, false
	}
	for first := true; !r.skip(']'); first = false {
		if !first && !r.separator(',') || !r.tag() {
			return nil, false
		}
		r.ends = append(r.ends, len(r.values))
	}
	values := append(make([]string, 0, len(r.values)), r.values...)
	tags := make(Tags, len(r.ends))
	start := 0
	for i, end := range r.ends {
		tags[i] = values[start:end:end]
		start = end
	}
	return tags, true
}

func (r *reader) tag() bool {
	if !r.skip('[') {
		return false
	}
	for first := true; !r.skip(']'); first = false {
		if !first && !r.separator(',') {
			return false
		}
		value, ok := r.text()
		if !ok {
			return false
		}
		r.values = append(r.values, value)
	}
	return true
}

// special are the bytes that mean something in a string, or may not stand there.
var special = func() (is [256]bool) {
	for c := range ' ' {
		is[c] = true
	}
	is['"'], is['\\'] = true, true
	return is
}()

// text reads a string.
func (r *reader) text() (string, bool) {
	if !r.skip('"') {
		return "", false
	}
	start, rest := r.at, r.data[r.at:]
	for i, c := range rest {
		if !special[c] {
			continue
		}
		r.at = start + i
		switch c {
		case '"':
			r.at++
			if r.shared != "" {
				return r.shared[start : start+i], true
			}
			return string(rest[:i]), true
		case '\\':
			return r.escaped(start)
		}
		break
	}
	return "", false
}

// own makes a string of its own of one that may be a piece of a larger one.
func (r *reader) own(s string) string {
	if r.shared == "" {
		return s
	}
	return strings.Clone(s)
}
