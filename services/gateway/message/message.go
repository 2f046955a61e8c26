// Package message is what clients say to the relay and what it answers (NIP-01; NIP-42 for AUTH;
// NIP-45 for COUNT; NIP-77 for NEG-OPEN, NEG-MSG and NEG-CLOSE). What comes in was written by a
// stranger: it is parsed strictly, within limits, and refused in one sentence that says why.
package message

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

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

// What a client says. The strings of a message are parts of one copy of it.
type (
	// Event offers an event. Its fields have the right form; its id and signature have not been
	// checked.
	Event struct{ Event *nostr.Event }
	// Auth answers the relay's challenge (NIP-42). Nothing but the form has been checked.
	Auth struct{ Event *nostr.Event }
	// Request opens a subscription. Each filter's Limit is set and within bounds.
	Request struct {
		ID      string
		Filters []nostr.Filter
		Size    int // of the message, in bytes: what the subscription costs to keep
	}
	// Count asks how many events match. The filters' limits mean nothing here.
	Count Request
	// Close ends a subscription.
	Close struct{ ID string }
	// NegOpen opens a session of reconciliation (NIP-77), in place of one with the same id if there
	// is one. The filter's limit is the one that was given, or 0: all that match are reconciled.
	NegOpen struct {
		ID      string
		Filter  nostr.Filter
		Size    int    // of the message, in bytes: what the session costs to keep
		Message []byte // the first; not looked at yet
	}
	// NegMsg goes on with a session.
	NegMsg struct {
		ID      string
		Message []byte // not looked at yet
	}
	// NegClose ends a session.
	NegClose struct{ ID string }
)

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

// Parse reads one message: an [Event], an [Auth], a [Request], a [Count], a [Close], a [NegOpen], a
// [NegMsg] or a [NegClose]. Its error is always an [*Error].
func (l Limits) Parse(data []byte) (any, error) {
	m, err := l.parse(data)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (l Limits) parse(data []byte) (any, *Error) {
	if !utf8.Valid(data) {
		return nil, refuse("a message must be UTF-8")
	}
	// gjson takes it for granted that the syntax is right.
	whole := gjson.ParseBytes(data)
	if !whole.IsArray() || !json.Valid(data) {
		return nil, refuse("a message must be a JSON array")
	}
	most := 3 + max(l.Filters, 2) // the type, the id, and one more than there may be after them
	var parts []gjson.Result
	whole.ForEach(func(_, part gjson.Result) bool {
		parts = append(parts, part)
		return len(parts) < most
	})
	if len(parts) == 0 || parts[0].Type != gjson.String {
		return nil, refuse("a message must begin with its type, a string")
	}
	verb, parts := parts[0].Str, parts[1:]
	switch verb {
	case "EVENT", "AUTH":
		if len(parts) != 1 {
			return nil, refuse("%s takes one event", verb)
		}
		ev, refused := parseEvent(parts[0])
		if refused != nil {
			return nil, refused
		}
		if verb == "AUTH" {
			return Auth{ev}, nil
		}
		return Event{ev}, nil
	case "REQ", "COUNT", "CLOSE", "NEG-OPEN", "NEG-MSG", "NEG-CLOSE":
		// Where the id is wrong the answer is a NOTICE: a CLOSED would have to repeat it.
		id, refused := subscriptionID(verb, parts)
		if refused != nil {
			return nil, refused
		}
		m, refused := l.parseFor(verb, id, parts[1:], len(data))
		switch {
		case refused == nil:
			return m, nil
		case strings.HasPrefix(verb, "NEG-"):
			refused.Session = id
		default:
			refused.Subscription = id
		}
		return nil, refused
	}
	return nil, refuse("unknown type of message %s; known are EVENT, REQ, CLOSE, COUNT, AUTH, NEG-OPEN, NEG-MSG and NEG-CLOSE", clip(verb))
}

func subscriptionID(verb string, parts []gjson.Result) (string, *Error) {
	switch {
	case len(parts) == 0:
		return "", refuse("%s needs a subscription id", verb)
	case parts[0].Type != gjson.String:
		return "", refuse("a subscription id must be a string")
	case parts[0].Str == "":
		return "", refuse("a subscription id must not be empty")
	case utf8.RuneCountInString(parts[0].Str) > MaxSubscriptionID:
		return "", refuse("a subscription id has at most %d characters", MaxSubscriptionID)
	}
	return parts[0].Str, nil
}

// parseFor reads what comes after the id of a subscription or session.
func (l Limits) parseFor(verb, id string, parts []gjson.Result, size int) (any, *Error) {
	switch verb {
	case "CLOSE", "NEG-CLOSE":
		if len(parts) != 0 {
			return nil, refuse("%s takes one subscription id", verb)
		}
		if verb == "CLOSE" {
			return Close{id}, nil
		}
		return NegClose{id}, nil
	case "NEG-OPEN":
		if len(parts) != 2 {
			return nil, refuse("NEG-OPEN takes a subscription id, one filter and a message")
		}
		filter, refused := l.parseFilter(parts[0])
		if refused != nil {
			return nil, refused
		}
		frame, refused := parseFrame(parts[1])
		if refused != nil {
			return nil, refused
		}
		return NegOpen{id, filter, size, frame}, nil
	case "NEG-MSG":
		if len(parts) != 1 {
			return nil, refuse("NEG-MSG takes a subscription id and a message")
		}
		frame, refused := parseFrame(parts[0])
		if refused != nil {
			return nil, refused
		}
		return NegMsg{id, frame}, nil
	}
	if len(parts) == 0 {
		return nil, refuse("%s needs at least one filter", verb)
	}
	if len(parts) > l.Filters {
		return nil, refuse("more than %d filters", l.Filters)
	}
	r := Request{ID: id, Size: size}
	for _, part := range parts {
		f, refused := l.parseFilter(part)
		if refused != nil {
			return nil, refused
		}
		l.settleLimit(&f)
		r.Filters = append(r.Filters, f)
	}
	if verb == "COUNT" {
		return Count(r), nil
	}
	return r, nil
}

// parseFrame reads the hex digits of a message of the inner protocol of NIP-77.
func parseFrame(raw gjson.Result) ([]byte, *Error) {
	if raw.Type != gjson.String {
		return nil, refuse("a message of NIP-77 must be a string")
	}
	frame, err := hex.DecodeString(raw.Str)
	if err != nil {
		return nil, refuse("a message of NIP-77 must be hex digits, two for each byte")
	}
	return frame, nil
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

// NegAnswer is the relay's NEG-MSG.
func NegAnswer(session string, frame []byte) []byte {
	return encode("NEG-MSG", session, hex.EncodeToString(frame))
}

// NegErr says that a session was refused or ended by the relay.
func NegErr(session, text string) []byte { return encode("NEG-ERR", session, text) }

// NegTooMany is NEG-ERR for a filter that too many events match; most would be taken (NIP-77).
func NegTooMany(session, text string, most int) []byte {
	return encode("NEG-ERR", session, text, most)
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
