package message

import (
	"encoding/hex"
	"encoding/json"
	"math"

	"tendril.dev/lib/nostr"
)

// NegOpen opens a session of reconciliation (NIP-77), in place of one with the same id if there is
// one. The filter's limit is the one that was given, or 0: all that match are reconciled.
type NegOpen struct {
	ID      string
	Filter  nostr.Filter
	Size    int    // of the filter, in bytes: what the session costs to keep
	Message []byte // the first; not looked at yet
}

// NegMsg goes on with a session.
type NegMsg struct {
	ID      string
	Message []byte // not looked at yet
}

// NegClose ends a session.
type NegClose struct{ ID string }

func (NegOpen) isMessage()  {}
func (NegMsg) isMessage()   {}
func (NegClose) isMessage() {}

func (e *Error) of(session string) *Error {
	e.Session = session
	return e
}

func (l Limits) parseNegOpen(parts []json.RawMessage) (Message, *Error) {
	if len(parts) == 0 {
		return nil, refuse("NEG-OPEN needs a subscription id")
	}
	id, refused := subscriptionID(parts[0])
	if refused != nil {
		return nil, refused
	}
	if len(parts) != 3 {
		return nil, refuse("NEG-OPEN takes a subscription id, one filter and a message").of(id)
	}
	r, refused := l.readFilter(parts[1])
	if refused != nil {
		return nil, refused.of(id)
	}
	switch {
	case r.limit == 0:
		r.filter.LimitZero = true
	case r.limit > 0:
		r.filter.Limit = int(min(r.limit, math.MaxInt32))
	}
	frame, refused := parseFrame(parts[2])
	if refused != nil {
		return nil, refused.of(id)
	}
	return NegOpen{id, r.filter, len(parts[1]), frame}, nil
}

func parseNegMsg(parts []json.RawMessage) (Message, *Error) {
	if len(parts) == 0 {
		return nil, refuse("NEG-MSG needs a subscription id")
	}
	id, refused := subscriptionID(parts[0])
	if refused != nil {
		return nil, refused
	}
	if len(parts) != 2 {
		return nil, refuse("NEG-MSG takes a subscription id and a message").of(id)
	}
	frame, refused := parseFrame(parts[1])
	if refused != nil {
		return nil, refused.of(id)
	}
	return NegMsg{id, frame}, nil
}

func parseNegClose(parts []json.RawMessage) (Message, *Error) {
	if len(parts) != 1 {
		return nil, refuse("NEG-CLOSE takes one subscription id")
	}
	id, refused := subscriptionID(parts[0])
	if refused != nil {
		return nil, refused
	}
	return NegClose{id}, nil
}

// parseFrame reads the hex digits of a message of the inner protocol.
func parseFrame(raw json.RawMessage) ([]byte, *Error) {
	digits, err := text(raw)
	if err != nil {
		return nil, refuse("a message of NIP-77 must be a string")
	}
	frame, err := hex.DecodeString(digits)
	if err != nil {
		return nil, refuse("a message of NIP-77 must be hex digits, two for each byte")
	}
	return frame, nil
}

// NegAnswer is the relay's NEG-MSG.
func NegAnswer(session string, frame []byte) []byte {
	head := encode("NEG-MSG", session)
	head = append(head[:len(head)-1], `,"`...)
	return append(hex.AppendEncode(head, frame), `"]`...)
}

// NegErr says that a session was refused or ended by the relay.
func NegErr(session, text string) []byte { return encode("NEG-ERR", session, text) }

// NegTooMany is NEG-ERR for a filter that too many events match; most would be taken (NIP-77).
func NegTooMany(session, text string, most int) []byte {
	return encode("NEG-ERR", session, text, most)
}
