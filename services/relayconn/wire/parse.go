package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tidwall/gjson"

	"tendril.dev/lib/nostr"
)

var errNoJSON = errors.New("parse message: not JSON")

// mostParts is how many elements of a message are looked at: no message that is known has more.
const mostParts = 4

// split returns the first elements of a message as parts of data, which must be JSON. So a message
// of a million elements costs no more than its bytes.
func split(data []byte) (parts []json.RawMessage) {
	message := gjson.ParseBytes(data)
	if !message.IsArray() {
		return nil
	}
	message.ForEach(func(_, v gjson.Result) bool {
		parts = append(parts, data[v.Index:v.Index+len(v.Raw)])
		return len(parts) <= mostParts
	})
	return parts
}

// Parse reads one message. A verb that is none of our business gives an empty Kind. The message
// shares no memory with data.
func Parse(data []byte) (m Message, err error) {
	if !json.Valid(data) {
		return Message{}, errNoJSON
	}
	parts := split(data)
	text := func(i int) (s string) {
		switch {
		case err != nil:
		case i >= len(parts):
			err = fmt.Errorf("parse message: %d elements", len(parts))
		default:
			if err = json.Unmarshal(parts[i], &s); err != nil {
				err = fmt.Errorf("parse message: element %d: %w", i, err)
			}
		}
		return s
	}
	m.Kind = Kind(text(0))
	switch m.Kind {
	case Event, NegMsg:
		if m.Sub = text(1); err == nil && len(parts) != 3 {
			err = fmt.Errorf("parse %s: %d elements, want 3", m.Kind, len(parts))
		}
		switch {
		case err != nil:
		case m.Kind == Event:
			m.Event, err = nostr.Parse(parts[2])
		default:
			m.Frame = frame(parts[2])
		}
	case EOSE:
		m.Sub = text(1)
	case Closed, NegErr:
		if m.Sub = text(1); len(parts) > 2 {
			m.Reason = text(2)
		}
	case Notice:
		m.Reason = text(1)
	case Auth:
		if m.Reason = text(1); len(m.Reason) > maxReason { // no challenge is so long
			return Message{}, nil
		}
	default:
		m = Message{}
	}
	if err != nil {
		return Message{}, err
	}
	m.Reason = m.Reason[:min(len(m.Reason), maxReason)]
	return m, nil
}

// frame reads a message of NIP-77; nil: it does not hold hex digits, of which its session must
// hear. They need no escapes, so the text is what lies between the quotes.
func frame(digits json.RawMessage) []byte {
	if len(digits) < 2 || digits[0] != '"' {
		return nil
	}
	digits = digits[1 : len(digits)-1]
	frame := make([]byte, hex.DecodedLen(len(digits)))
	if _, err := hex.Decode(frame, digits); err != nil {
		return nil
	}
	return frame
}
