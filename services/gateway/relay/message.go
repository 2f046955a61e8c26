package relay

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

// bounds are what one message may ask.
type bounds struct {
	filters      int // of a REQ or COUNT
	values       int // in all lists of one filter together
	defaultLimit int // limit of a filter that names none
	maxLimit     int // larger limits are lowered to it
}

// message is what a client says (NIP-01; NIP-42 for AUTH; NIP-45 for COUNT; NIP-77 for NEG-OPEN,
// NEG-MSG and NEG-CLOSE). Only its form has been checked.
type message struct {
	verb  string
	id    string       // of the event, subscription or session; "" if it could not be read
	event *nostr.Event // of EVENT and AUTH
	// filters are those of REQ, COUNT and NEG-OPEN. For REQ, limits are set and within bounds.
	filters []nostr.Filter
	frame   []byte // of NEG-OPEN and NEG-MSG: a message of the inner protocol, not looked at yet
	size    int    // in bytes: what a subscription or session costs to keep
}

// question is the name of the subscription or session that a message concerns; "" if it concerns
// none. The ids of sessions are another matter than those of subscriptions.
func (m message) question() string {
	switch {
	case m.id == "" || m.verb == "EVENT" || m.verb == "AUTH":
		return ""
	case strings.HasPrefix(m.verb, "NEG-"):
		return "NEG " + m.id
	}
	return "REQ " + m.id
}

// refusal tells the client why a message was refused, with NIP-01's prefix: OK for an event, CLOSED
// for a subscription, NEG-ERR for a session of reconciliation, otherwise NOTICE.
func (m message) refusal(why string) []byte {
	switch {
	case m.id == "":
		return encode("NOTICE", why)
	case m.verb == "EVENT" || m.verb == "AUTH":
		return encode("OK", m.id, false, why)
	case strings.HasPrefix(m.verb, "NEG-"):
		return encode("NEG-ERR", m.id, strings.Replace(why, "rate-limited:", "blocked:", 1)) // NIP-77
	}
	return encode("CLOSED", m.id, why)
}

func invalid(format string, args ...any) error { return fmt.Errorf("invalid: "+format, args...) }

// parse reads one message, which a stranger has written. An error says to the client why it is
// refused; then as much of it is returned as could be read. The strings of a message are parts of
// one copy of it.
func (b bounds) parse(data []byte) (m message, err error) {
	m.size = len(data)
	if !utf8.Valid(data) {
		return m, invalid("a message must be UTF-8")
	}
	// gjson takes it for granted that the syntax is right.
	whole := gjson.ParseBytes(data)
	if !whole.IsArray() || !json.Valid(data) {
		return m, invalid("a message must be a JSON array")
	}
	most := 3 + max(b.filters, 2) // the type, the id, and one more than there may be after them
	var parts []gjson.Result
	whole.ForEach(func(_, part gjson.Result) bool {
		parts = append(parts, part)
		return len(parts) < most
	})
	if len(parts) == 0 || parts[0].Type != gjson.String {
		return m, invalid("a message must begin with its type, a string")
	}
	m.verb, parts = parts[0].Str, parts[1:]
	switch m.verb {
	case "EVENT", "AUTH":
		if len(parts) != 1 {
			return m, invalid("%s takes one event", m.verb)
		}
		m.id, m.event, err = parseEvent(parts[0])
		return m, err
	case "REQ", "COUNT", "CLOSE", "NEG-OPEN", "NEG-MSG", "NEG-CLOSE":
		if m.id, err = subscriptionID(m.verb, parts); err != nil {
			return m, err
		}
		return m, b.parseRest(&m, parts[1:])
	}
	return m, invalid("unknown type of message %s; known are EVENT, REQ, CLOSE, COUNT, AUTH, NEG-OPEN, NEG-MSG and "+
		"NEG-CLOSE", clip(m.verb))
}

func subscriptionID(verb string, parts []gjson.Result) (string, error) {
	switch {
	case len(parts) == 0:
		return "", invalid("%s needs a subscription id", verb)
	case parts[0].Type != gjson.String:
		return "", invalid("a subscription id must be a string")
	case parts[0].Str == "":
		return "", invalid("a subscription id must not be empty")
	case utf8.RuneCountInString(parts[0].Str) > MaxSubscriptionID:
		return "", invalid("a subscription id has at most %d characters", MaxSubscriptionID)
	}
	return parts[0].Str, nil
}

// parseRest reads what comes after the id of a subscription or session.
func (b bounds) parseRest(m *message, parts []gjson.Result) (err error) {
	filters := parts
	switch m.verb {
	case "CLOSE", "NEG-CLOSE":
		if len(parts) != 0 {
			return invalid("%s takes one subscription id", m.verb)
		}
		return nil
	case "NEG-OPEN":
		if len(parts) != 2 {
			return invalid("NEG-OPEN takes a subscription id, one filter and a message")
		}
		filters = parts[:1]
		m.frame, err = parseFrame(parts[1])
	case "NEG-MSG":
		if len(parts) != 1 {
			return invalid("NEG-MSG takes a subscription id and a message")
		}
		filters = nil
		m.frame, err = parseFrame(parts[0])
	default:
		if len(parts) == 0 {
			return invalid("%s needs at least one filter", m.verb)
		}
		if len(parts) > b.filters {
			return invalid("more than %d filters", b.filters)
		}
	}
	for _, part := range filters {
		f, wrong := b.parseFilter(part)
		if wrong != nil {
			return wrong
		}
		if m.verb == "REQ" {
			if f.Limit == 0 && !f.LimitZero {
				f.Limit = max(b.defaultLimit, len(f.IDs)) // who names ids means all of them
			}
			f.Limit = min(f.Limit, b.maxLimit)
		}
		m.filters = append(m.filters, f)
	}
	return err
}

// parseFrame reads the hex digits of a message of the inner protocol of NIP-77.
func parseFrame(raw gjson.Result) ([]byte, error) {
	frame, err := hex.DecodeString(raw.Str)
	if raw.Type != gjson.String || err != nil {
		return nil, invalid("a message of NIP-77 must be a string of hex digits, two for each byte")
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

// encode makes a message of the relay.
func encode(parts ...any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(parts); err != nil {
		panic(fmt.Sprintf("relay: strings, booleans and numbers always encode: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
