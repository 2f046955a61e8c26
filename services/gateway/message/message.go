// Package message is what clients say to the relay and what it answers (NIP-01; NIP-42 for AUTH;
// NIP-45 for COUNT; NIP-77 for NEG-OPEN, NEG-MSG and NEG-CLOSE). What comes in was written by a
// stranger: it is parsed strictly, within limits, and refused in one sentence that says why.
package message

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"tendril.dev/lib/nostr"
)

// MaxSubscriptionID is the longest id of a subscription, in characters.
const MaxSubscriptionID = 250

// Limits bound what one message may ask.
type Limits struct {
	Filters      int // of a REQ or COUNT
	Values       int // in all lists of one filter together
	DefaultLimit int // limit of a filter that names none
	MaxLimit     int // larger limits are lowered to it
}

// Message is what a client says: an [Event], an [Auth], a [Request], a [Count], a [Close], a
// [NegOpen], a [NegMsg] or a [NegClose].
type Message interface{ isMessage() }

// Event offers an event. Its fields have the right form; its id and signature have not been
// checked.
type Event struct{ Event *nostr.Event }

// Auth answers the relay's challenge (NIP-42). Its fields have the right form; nothing else of it
// has been checked.
type Auth struct{ Event *nostr.Event }

// Request opens a subscription. Each filter's Limit is set and within bounds.
type Request struct {
	ID      string
	Filters []nostr.Filter
	Size    int // of the message, in bytes: what the subscription costs to keep
}

// Count asks how many events match. The filters' limits mean nothing here.
type Count struct {
	ID      string
	Filters []nostr.Filter
}

// Close ends a subscription.
type Close struct{ ID string }

func (Event) isMessage()   {}
func (Auth) isMessage()    {}
func (Request) isMessage() {}
func (Count) isMessage()   {}
func (Close) isMessage()   {}

// Error is a message that was refused. It knows how the client hears of it.
type Error struct {
	EventID      string // the event that was refused, if its id could be read
	Subscription string // the subscription that was refused, if its id could be read
	Session      string // the session of reconciliation that was refused, if its id could be read
	Text         string // with NIP-01's prefix
}

func (e *Error) Error() string { return e.Text }

// Answer is the message that tells the client: OK for an event, CLOSED for a subscription, NEG-ERR
// for a session of reconciliation, otherwise NOTICE.
func (e *Error) Answer() []byte {
	switch {
	case e.EventID != "":
		return OK(e.EventID, false, e.Text)
	case e.Subscription != "":
		return Closed(e.Subscription, e.Text)
	case e.Session != "":
		return NegErr(e.Session, e.Text)
	}
	return Notice(e.Text)
}

func refuse(format string, args ...any) *Error {
	return &Error{Text: "invalid: " + fmt.Sprintf(format, args...)}
}

// Parse reads one message. Its error is always an [*Error].
func (l Limits) Parse(data []byte) (Message, error) {
	m, err := l.parse(data)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (l Limits) parse(data []byte) (Message, *Error) {
	if !utf8.Valid(data) {
		return nil, refuse("a message must be UTF-8")
	}
	data = bytes.TrimLeft(data, " \t\r\n")
	if len(data) == 0 || data[0] != '[' || !json.Valid(data) {
		return nil, refuse("a message must be a JSON array")
	}
	parts := slices.Collect(inside(data))
	if len(parts) == 0 {
		return nil, refuse("a message must name its type")
	}
	verb, err := text(parts[0])
	if err != nil {
		return nil, refuse("the type of a message must be a string")
	}
	switch verb {
	case "EVENT":
		if len(parts) != 2 {
			return nil, refuse("EVENT takes one event")
		}
		ev, refused := parseEvent(parts[1])
		if refused != nil {
			return nil, refused
		}
		return Event{ev}, nil
	case "AUTH":
		if len(parts) != 2 {
			return nil, refuse("AUTH takes one event")
		}
		ev, refused := parseEvent(parts[1])
		if refused != nil {
			return nil, refused
		}
		return Auth{ev}, nil
	case "REQ", "COUNT":
		return l.parseRequest(verb, parts[1:], len(data))
	case "CLOSE":
		if len(parts) != 2 {
			return nil, refuse("CLOSE takes one subscription id")
		}
		id, refused := subscriptionID(parts[1])
		if refused != nil {
			return nil, refused
		}
		return Close{id}, nil
	case "NEG-OPEN":
		return l.parseNegOpen(parts[1:])
	case "NEG-MSG":
		return parseNegMsg(parts[1:])
	case "NEG-CLOSE":
		return parseNegClose(parts[1:])
	}
	return nil, refuse("unknown type of message %s; known are EVENT, REQ, CLOSE, COUNT, AUTH, NEG-OPEN, NEG-MSG and NEG-CLOSE", clip(verb))
}

func (l Limits) parseRequest(verb string, parts []json.RawMessage, size int) (Message, *Error) {
	if len(parts) == 0 {
		return nil, refuse("%s needs a subscription id", verb)
	}
	id, refused := subscriptionID(parts[0])
	if refused != nil {
		return nil, refused
	}
	parts = parts[1:]
	if len(parts) == 0 {
		return nil, refuse("%s needs at least one filter", verb).on(id)
	}
	if len(parts) > l.Filters {
		return nil, refuse("%d filters, at most %d are taken", len(parts), l.Filters).on(id)
	}
	filters := make([]nostr.Filter, 0, len(parts))
	for _, part := range parts {
		f, refused := l.parseFilter(part)
		if refused != nil {
			return nil, refused.on(id)
		}
		filters = append(filters, f)
	}
	if verb == "COUNT" {
		return Count{id, filters}, nil
	}
	return Request{id, filters, size}, nil
}

func (e *Error) on(subscription string) *Error {
	e.Subscription = subscription
	return e
}

// subscriptionID refuses with a NOTICE: a CLOSED would have to repeat an id that is none.
func subscriptionID(raw json.RawMessage) (string, *Error) {
	id, err := text(raw)
	switch {
	case err != nil:
		return "", refuse("a subscription id must be a string")
	case id == "":
		return "", refuse("a subscription id must not be empty")
	case utf8.RuneCountInString(id) > MaxSubscriptionID:
		return "", refuse("a subscription id has at most %d characters", MaxSubscriptionID)
	}
	return id, nil
}

// clip makes a stranger's words short enough to be repeated.
func clip(s string) string {
	const most = 40
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// OK answers an event.
func OK(eventID string, ok bool, text string) []byte { return encode("OK", eventID, ok, text) }

// Challenge is what a client signs to prove who it is (NIP-42).
func Challenge(challenge string) []byte { return encode("AUTH", challenge) }

// EOSE says that the stored events of a subscription have been sent.
func EOSE(subscription string) []byte { return encode("EOSE", subscription) }

// Closed says that a subscription was refused or ended by the relay.
func Closed(subscription, text string) []byte { return encode("CLOSED", subscription, text) }

// Notice tells the client something for people to read.
func Notice(text string) []byte { return encode("NOTICE", text) }

// Counted answers a COUNT. approximate: there are at least so many.
func Counted(subscription string, n int, approximate bool) []byte {
	return encode("COUNT", subscription, struct {
		Count       int  `json:"count"`
		Approximate bool `json:"approximate,omitempty"`
	}{n, approximate})
}

// EventHead is the beginning of an EVENT message for a subscription; the event's JSON and a closing
// bracket make it whole.
func EventHead(subscription string) []byte {
	head := encode("EVENT", subscription)
	head[len(head)-1] = ','
	return head
}

func encode(parts ...any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(parts); err != nil {
		panic(fmt.Sprintf("message: strings, booleans and numbers always encode: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
