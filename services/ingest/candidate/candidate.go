// Package candidate reads what other services ask ingest to decide: events, and the facts that ride
// in the headers of their message.
//
// The gateway and the relay workers check ids and signatures where events come in, because
// signatures cost time. Ingest does not trust them (policy.md): it checks every id again, and the
// signature of each event that decides about other people's data.
package candidate

import (
	"errors"
	"fmt"
	"math"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// MaxEventBytes bounds an event's JSON. It leaves room for headers, and for the rest of a held
// entry, in a message of 1 MiB.
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
	Raw    []byte // the event's JSON as the log will hold it; it may be a part of the message
	Lane   proto.Lane
	Source proto.Source
	Relay  string       // that a synced event came from
	Client string       // client key of the user that submitted it, see proto.HeaderClient
	Action proto.Action // on the release lane
	Reason string       // that goes with the action
	Trace  string       // W3C trace context
	Again  bool         // it was parked: that it was rejected before is no answer now
}

// Pack is the events of one message, in its order.
type Pack struct {
	Lane   proto.Lane // "": of no lane
	Reply  string     // verdict subject, valid, or "": nobody waits
	Ref    string     // the sender's own token
	Events []Line     // at least one
}

// Line is one line of a pack.
type Line struct {
	Candidate *Candidate
	Err       error // wraps [ErrMalformed]: the line is no candidate
	Bytes     int   // how long the line is
}

// ErrMalformed is wrapped by every error of a [Line].
var ErrMalformed = errors.New("not a candidate")

// Parse reads a message. A line that is no candidate does not concern the others; where the message
// is none, each of its lines says so. Reply and Ref are read whatever else is wrong, so that the
// sender need not wait for verdicts that never come.
func Parse(subject string, header nats.Header, data []byte) Pack {
	p := Pack{Ref: bounded(header.Get(proto.HeaderRef), maxRef)}
	if reply := header.Get(proto.HeaderReply); reply != "" {
		if _, err := proto.ParseVerdictSubject(reply); err == nil {
			p.Reply = reply
		}
	}
	all, err := parseFacts(subject, header)
	p.Lane = all.Lane
	lines, splitErr := proto.SplitPack(data)
	if splitErr != nil {
		lines, err = [][]byte{nil}, splitErr
	}
	p.Events = make([]Line, len(lines))
	for i, line := range lines {
		p.Events[i] = all.line(line, err)
	}
	return p
}

// line reads one event, of which all is known but the event itself.
func (c Candidate) line(data []byte, err error) Line {
	if err == nil {
		c.Event, c.Raw, err = parseEvent(data)
	}
	if err != nil {
		return Line{Err: fmt.Errorf("%w: %w", ErrMalformed, err), Bytes: len(data)}
	}
	return Line{Candidate: &c, Bytes: len(data)}
}

// parseFacts reads what the subject and the headers say of all events of a message.
func parseFacts(subject string, header nats.Header) (Candidate, error) {
	c := Candidate{
		Source: proto.Source(header.Get(proto.HeaderSource)),
		Relay:  bounded(header.Get(proto.HeaderRelay), maxRelay),
		Client: bounded(header.Get(proto.HeaderClient), maxClient),
		Action: proto.Action(header.Get(proto.HeaderAction)),
		Reason: bounded(header.Get(proto.HeaderReason), maxReason),
		Trace:  bounded(header.Get(proto.HeaderTraceParent), maxTrace),
	}
	var err error
	if c.Lane, err = proto.ParseLane(subject); err != nil {
		return c, err
	}
	return c, c.checkOrigin()
}

// OfHeld is a candidate of ingest's own, with which no message came: it asks for a decision on a
// held event, as purgatory would.
func OfHeld(ev *nostr.Event, action proto.Action) *Candidate {
	return &Candidate{Event: ev, Raw: nostr.Encode(ev), Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: action}
}

// checkOrigin holds source and action against the lane, so that no header can say more than the
// lane that it came by.
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
		case proto.ActionRelease, proto.ActionExpire, proto.ActionExtend, proto.ActionRemove:
		default:
			return fmt.Errorf("%s is %q, want release, expire, extend or remove", proto.HeaderAction, c.Action)
		}
	default:
		imported := c.Source == proto.SourceImport && c.Lane == proto.LaneSyncHistoric
		if !c.Source.Synced() && !imported {
			return fmt.Errorf("%s is %q, want one of the sources of this lane", proto.HeaderSource, c.Source)
		}
	}
	return nil
}

// parseEvent reads an event. The log holds the JSON as it came if that is the usual one, and
// otherwise what the id speaks of, written anew, whatever else the JSON carried.
func parseEvent(data []byte) (*nostr.Event, []byte, error) {
	ev, plain, err := nostr.Parse(data)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case !nostr.IsHex64(ev.PubKey):
		return nil, nil, errors.New("the public key is not 64 lower-case hex digits")
	case len(ev.Sig) != 128:
		return nil, nil, errors.New("the signature is not 128 hex digits")
	case ev.Kind < 0 || ev.Kind > math.MaxUint16:
		return nil, nil, errors.New("the kind is not a number from 0 to 65535")
	case ev.CreatedAt < 0 || ev.CreatedAt > math.MaxUint32:
		return nil, nil, errors.New("created_at is not a time that fits 32 bits")
	case !nostr.HasID(ev):
		return nil, nil, errors.New("the id is not that of the event")
	case decides(ev.Kind) && !nostr.Signed(ev):
		return nil, nil, errors.New("the signature is not its author's")
	}
	raw := data
	if !plain {
		raw = nostr.Encode(ev)
	}
	if len(raw) > MaxEventBytes {
		return nil, nil, fmt.Errorf("the event is larger than %d bytes", MaxEventBytes)
	}
	return ev, raw, nil
}

// decides reports whether events of a kind decide about others: deletion requests, announcements,
// states and pull requests.
func decides(kind int) bool {
	switch kind {
	case nostr.KindDeletion, nostr.KindAnnouncement, nostr.KindState, nostr.KindPR, nostr.KindPRUpdate:
		return true
	}
	return false
}

func bounded(s string, most int) string {
	if len(s) > most {
		return ""
	}
	return s
}
