package wire

import (
	"encoding/hex"
	"errors"
	"unicode/utf8"

	"github.com/mailru/easyjson/jlexer"

	"tendril.dev/lib/nostr"
)

// Parse reads one message. A verb that is none of our business gives an empty Kind. The message
// shares no memory with data.
func Parse(data []byte) (m Message, err error) {
	l := jlexer.Lexer{Data: data}
	text := func() string {
		defer l.WantComma()
		return l.String()
	}
	l.Delim('[')
	switch m.Kind = Kind(text()); m.Kind {
	case Event:
		m.Sub = text()
		m.Event = nostr.Read(&l)
		l.WantComma()
	case NegMsg:
		m.Sub = text()
		if m.Frame, err = hex.DecodeString(text()); err != nil {
			m.Frame = nil
		}
	case EOSE:
		m.Sub = text()
	case Closed, NegErr:
		if m.Sub = text(); !l.IsDelim(']') {
			m.Reason = text()
		}
	case Notice, Auth:
		m.Reason = text()
	default:
		m = Message{}
	}
	for !l.IsDelim(']') { // what else it has
		l.SkipRecursive()
		l.WantComma()
	}
	l.Delim(']')
	l.Consumed()
	if !l.Ok() || !utf8.Valid(data) {
		return Message{}, errors.New("parse message: not JSON of the shape of NIP-01")
	}
	m.Reason = m.Reason[:min(len(m.Reason), maxReason)]
	return m, nil
}
