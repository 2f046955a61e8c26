package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"tendril.dev/lib/nostr"
)

// Parse reads one message. A verb that is none of our business gives an empty Kind. The message
// shares no memory with data.
func Parse(data []byte) (Message, error) {
	if sub, event, ok := splitEvent(data); ok {
		return parseEvent(sub, event)
	}
	return parseAny(data)
}

var errNoJSON = errors.New("not JSON")

// parseEvent reads an EVENT of which the parts are known.
func parseEvent(sub string, event []byte) (Message, error) {
	ev, raw, err := nostr.ParseCopy(event)
	if err == nil && raw == nil && !json.Valid(event) {
		err = errNoJSON // go-nostr does not look so closely
	}
	if err != nil {
		return Message{}, fmt.Errorf("parse EVENT: %w", err)
	}
	return Message{Kind: Event, Sub: sub, Event: ev, Raw: raw}, nil
}

// splitEvent finds the parts of an EVENT as nearly all relays write it, in one look at the bytes
// before the event, which may itself be anything. Where it finds none, there may be one all the
// same.
func splitEvent(data []byte) (sub string, event []byte, ok bool) {
	const verb = `"EVENT"`
	rest, ok := bytes.CutPrefix(skipSpace(data), []byte{'['})
	if !ok {
		return "", nil, false
	}
	if rest, ok = bytes.CutPrefix(skipSpace(rest), []byte(verb)); !ok {
		return "", nil, false
	}
	if rest, ok = bytes.CutPrefix(skipSpace(rest), []byte{','}); !ok {
		return "", nil, false
	}
	if rest, ok = bytes.CutPrefix(skipSpace(rest), []byte{'"'}); !ok {
		return "", nil, false
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return "", nil, false
	}
	name, rest := rest[:end], rest[end+1:]
	for _, c := range name {
		if c < ' ' || c == '\\' || c > '~' {
			return "", nil, false // JSON has more to say about it
		}
	}
	if rest, ok = bytes.CutPrefix(skipSpace(rest), []byte{','}); !ok {
		return "", nil, false
	}
	event, ok = bytes.CutSuffix(trimSpace(rest), []byte{']'})
	return string(name), trimSpace(skipSpace(event)), ok
}

// isSpace reports whether c is whitespace of JSON.
func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func skipSpace(data []byte) []byte {
	for len(data) > 0 && isSpace(data[0]) {
		data = data[1:]
	}
	return data
}

func trimSpace(data []byte) []byte {
	for len(data) > 0 && isSpace(data[len(data)-1]) {
		data = data[:len(data)-1]
	}
	return data
}

// parseAny reads any message, an EVENT that is written in an odd way too.
func parseAny(data []byte) (Message, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return Message{}, fmt.Errorf("parse message: %w", err)
	}
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
		sub, err := text(1)
		if err != nil {
			return Message{}, err
		}
		return parseEvent(sub, parts[2])
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
