package wire

import (
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
func Parse(data []byte) (Message, error) {
	if !json.Valid(data) {
		return Message{}, errNoJSON
	}
	parts := split(data)
	text := func(i int) (string, error) {
		var s string
		if i >= len(parts) {
			return "", fmt.Errorf("parse message: %d elements", len(parts))
		}
		if err := json.Unmarshal(parts[i], &s); err != nil {
			return "", fmt.Errorf("parse message: element %d: %w", i, err)
		}
		return s, nil
	}
	verb, err := text(0)
	if err != nil {
		return Message{}, err
	}
	m := Message{Kind: Kind(verb)}
	switch m.Kind {
	case Event:
		if len(parts) != 3 {
			return Message{}, fmt.Errorf("parse EVENT: %d elements, want 3", len(parts))
		}
		if m.Sub, err = text(1); err == nil {
			m.Event, m.Raw, err = nostr.ParseCopy(parts[2])
		}
	case EOSE:
		m.Sub, err = text(1)
	case NegMsg:
		return parseNegMsg(parts)
	case Closed, NegErr:
		if m.Sub, err = text(1); err == nil && len(parts) > 2 {
			m.Reason, err = text(2)
		}
	case Notice:
		m.Reason, err = text(1)
	case Auth:
		if m.Reason, err = text(1); len(m.Reason) > maxReason {
			return Message{}, nil // no challenge is so long
		}
	case OK:
		return parseOK(parts, text)
	default:
		return Message{}, nil
	}
	if len(m.Reason) > maxReason {
		m.Reason = m.Reason[:maxReason]
	}
	return m, err
}

// parseOK reads the answer to an event.
func parseOK(parts []json.RawMessage, text func(i int) (string, error)) (Message, error) {
	m := Message{Kind: OK}
	var err error
	if m.Sub, err = text(1); err != nil {
		return Message{}, err
	}
	if len(parts) < 3 || json.Unmarshal(parts[2], &m.OK) != nil {
		return Message{}, errors.New("parse OK: it does not say whether")
	}
	if len(parts) > 3 {
		if m.Reason, err = text(3); err != nil {
			return Message{}, err
		}
	}
	if len(m.Reason) > maxReason {
		m.Reason = m.Reason[:maxReason]
	}
	return m, nil
}
