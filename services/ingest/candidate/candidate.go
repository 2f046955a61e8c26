// Package candidate reads what other services ask ingest to decide: an event and the facts that ride in the headers of its message.
//
// Signatures are checked where events come in (spec/policy.md, first check), because that is what costs time. The id is checked
// here again, because it costs nothing and is what every later step stands on.
package candidate

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
)

// MaxEventBytes bounds an event's JSON. It leaves room for headers, and for the rest of a held entry, in a message of 1 MiB.
const MaxEventBytes = 1<<20 - 64<<10

// Bounds of header values, in bytes. What is longer is dropped: none of it decides anything.
const (
	maxRelay  = 512
	maxClient = 64
	maxRef    = 128
	maxReason = 256
	maxTrace  = 128
)

// Candidate is one event that waits for a decision.
type Candidate struct {
	Event  *nostr.Event
	Raw    []byte // the event's JSON as the log will hold it
	Lane   proto.Lane
	Source proto.Source
	Relay  string       // that a synced event came from
	Client string       // client key of the user that submitted it, see proto.HeaderClient
	Action proto.Action // on the release lane
	Reason string       // that goes with the action
	Trace  string       // W3C trace context
	Again  bool         // it was parked: that it was rejected before is no answer now

	Reply string // verdict subject, valid, or "": nobody waits
	Ref   string // the sender's own token
}

// ErrMalformed is wrapped by every error of [Parse].
var ErrMalformed = errors.New("not a candidate")

// Parse reads a candidate. With an error it still gives Reply and Ref where those can be read, so
// that the sender need not wait for a verdict that never comes.
func Parse(subject string, header nats.Header, data []byte) (Candidate, error) {
	c := Candidate{
		Source: proto.Source(header.Get(proto.HeaderSource)),
		Relay:  bounded(header.Get(proto.HeaderRelay), maxRelay),
		Client: bounded(header.Get(proto.HeaderClient), maxClient),
		Action: proto.Action(header.Get(proto.HeaderAction)),
		Reason: bounded(header.Get(proto.HeaderReason), maxReason),
		Trace:  bounded(header.Get(proto.HeaderTraceParent), maxTrace),
		Ref:    bounded(header.Get(proto.HeaderRef), maxRef),
	}
	if reply := header.Get(proto.HeaderReply); reply != "" {
		if _, err := proto.ParseVerdictSubject(reply); err == nil {
			c.Reply = reply
		}
	}
	lane, err := proto.ParseLane(subject)
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	c.Lane = lane
	if err := c.checkOrigin(); err != nil {
		return c, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if c.Event, c.Raw, err = parseEvent(data); err != nil {
		return c, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return c, nil
}

// OfHeld is a candidate of ingest's own, with which no message came: it asks for a decision on a
// held event, as purgatory would.
func OfHeld(ev *nostr.Event, action proto.Action) (*Candidate, error) {
	raw, err := ev.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("the held event %s cannot be written: %w", ev.ID, err)
	}
	return &Candidate{Event: ev, Raw: raw, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: action}, nil
}

// checkOrigin holds source and action against the lane, so that no header can say more than the lane that it came by.
func (c *Candidate) checkOrigin() error {
	if c.Lane != proto.LaneRelease {
		c.Action = ""
	}
	if c.Lane != proto.LaneUser {
		c.Client = ""
	}
	switch c.Lane {
	case proto.LaneUser:
		c.Source = proto.SourceUser
	case proto.LaneRelease:
		c.Source = proto.SourceRelease
		switch c.Action {
		case proto.ActionRelease, proto.ActionExpire, proto.ActionExtend:
		default:
			return fmt.Errorf("%s is %q, want release, expire or extend", proto.HeaderAction, c.Action)
		}
	default:
		if !c.Source.Synced() {
			return fmt.Errorf("%s is %q, want one of the sources of synced events", proto.HeaderSource, c.Source)
		}
	}
	return nil
}

// parseEvent reads an event and writes it again: the log holds exactly what the id speaks of, whatever else the JSON carried.
func parseEvent(data []byte) (*nostr.Event, []byte, error) {
	if !utf8.Valid(data) {
		return nil, nil, errors.New("the event is not valid UTF-8")
	}
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(data); err != nil {
		return nil, nil, fmt.Errorf("the event is not valid JSON: %w", err)
	}
	switch {
	case !nip34.IsHex64(ev.PubKey):
		return nil, nil, errors.New("the public key is not 64 lower-case hex digits")
	case len(ev.Sig) != 128:
		return nil, nil, errors.New("the signature is not 128 hex digits")
	case ev.Kind < 0 || ev.Kind > math.MaxUint16:
		return nil, nil, errors.New("the kind is not a number from 0 to 65535")
	case ev.CreatedAt < 0 || ev.CreatedAt > math.MaxUint32:
		return nil, nil, errors.New("created_at is not a time that fits 32 bits")
	case !ev.CheckID():
		return nil, nil, errors.New("the id is not that of the event")
	}
	raw, err := ev.MarshalJSON()
	if err != nil {
		return nil, nil, fmt.Errorf("the event cannot be written: %w", err)
	}
	if len(raw) > MaxEventBytes {
		return nil, nil, fmt.Errorf("the event is larger than %d bytes", MaxEventBytes)
	}
	return ev, raw, nil
}

func bounded(s string, most int) string {
	if len(s) > most {
		return ""
	}
	return s
}
