package nostr

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/mailru/easyjson/jlexer"
	"github.com/mailru/easyjson/jwriter"
)

// errEncoding is about bytes that are not UTF-8, which JSON must be.
var errEncoding = errors.New("not valid UTF-8")

// Parse reads an event. Whether the values make sense, the id above all, is for the caller to
// check. What is stored and served of an event is [Encode] of it, never the bytes that a stranger
// sent: so every reader of JSON finds the same event in it. The event shares no memory with data.
func Parse(data []byte) (*Event, error) {
	err := errEncoding
	if utf8.Valid(data) {
		l := jlexer.Lexer{Data: data}
		ev := Read(&l)
		l.Consumed()
		if err = l.Error(); err == nil {
			return ev, nil
		}
	}
	return nil, fmt.Errorf("read event: %w", err)
}

// Read reads an event from within other JSON. Fields that NIP-01 does not know are left out, as are
// those that are null: go-nostr would refuse the event. The error is the lexer's.
func Read(l *jlexer.Lexer) *Event {
	ev := new(Event)
	l.Delim('{')
	for !l.IsDelim('}') {
		name := l.UnsafeFieldName(false)
		l.WantColon()
		switch {
		case l.IsNull():
			l.Skip()
		case name == "id":
			ev.ID = l.String()
		case name == "pubkey":
			ev.PubKey = l.String()
		case name == "created_at":
			ev.CreatedAt = Timestamp(l.Int64())
		case name == "kind":
			ev.Kind = l.Int()
		case name == "tags":
			ev.Tags = readTags(l)
		case name == "content":
			ev.Content = l.String()
		case name == "sig":
			ev.Sig = l.String()
		default:
			l.SkipRecursive()
		}
		l.WantComma()
	}
	l.Delim('}')
	return ev
}

func readTags(l *jlexer.Lexer) Tags {
	tags := Tags{}
	l.Delim('[')
	for !l.IsDelim(']') {
		var tag Tag
		if l.IsNull() {
			l.Skip()
		} else {
			tag = make(Tag, 0, 4)
			l.Delim('[')
			for !l.IsDelim(']') {
				tag = append(tag, l.String())
				l.WantComma()
			}
			l.Delim(']')
		}
		tags = append(tags, tag)
		l.WantComma()
	}
	l.Delim(']')
	return tags
}

// eventOverhead is about how many bytes an event takes beside its text and the headers of its tags
// and of their values.
const eventOverhead, tagOverhead, valueOverhead = 1024, 24, 16

// Memory is about how many bytes of memory an event takes together with its JSON, which will be
// made of it: the text counts twice.
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

// Encode writes the JSON of an event on one line. go-nostr's own may be three times as long as what
// a client wrote, because it escapes more than must be, and then not fit where that did. Bytes that
// are no UTF-8 become U+FFFD.
func Encode(ev *Event) []byte {
	w := jwriter.Writer{NoEscapeHTML: true}
	w.Buffer.Buf = make([]byte, 0, eventOverhead+len(ev.Content)) // mostly enough
	field := func(name, value string) {
		w.RawString(name)
		w.String(value)
	}
	w.RawString(`{"kind":`)
	w.Int(ev.Kind)
	field(`,"id":`, ev.ID)
	field(`,"pubkey":`, ev.PubKey)
	w.RawString(`,"created_at":`)
	w.Int64(int64(ev.CreatedAt))
	w.RawString(`,"tags":[`)
	for i, tag := range ev.Tags {
		if i > 0 {
			w.RawByte(',')
		}
		w.RawByte('[')
		for j, value := range tag {
			if j > 0 {
				w.RawByte(',')
			}
			w.String(value)
		}
		w.RawByte(']')
	}
	field(`],"content":`, ev.Content)
	field(`,"sig":`, ev.Sig)
	w.RawByte('}')
	b, _ := w.BuildBytes() // it fails for a raw value only
	return b
}
