package writer

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// maxEventBytes bounds an event's JSON. It leaves room for headers, and for the rest of a held
// entry, in a message of 1 MiB.
const maxEventBytes = 1<<20 - 64<<10

// maxHeader bounds the value of a header, in bytes. What is longer is dropped: none of it decides
// anything.
const maxHeader = 512

// pack is one message of a lane. A batch has all of its events or none.
type pack struct {
	msg     jetstream.Msg
	arrived time.Time // when it was published
	behind  uint64    // messages that waited behind it in its lane

	lane     proto.Lane
	reply    string              // verdict subject, valid, or "": no one waits
	ref      string              // the sender's own token
	next     int                 // of events: the first one without a decision
	events   []*policy.Candidate // at least one; nil: it is none, and has its verdict
	verdicts []proto.Verdict     // one for each event

	comesAgain bool // not all is told that its events heal
}

// readPack reads a message. A line that is no candidate does not concern the others; where the
// message is none, each of its lines says so. reply and ref are read even so, so
// that the sender need not wait for verdicts that never come.
func readPack(m jetstream.Msg) *pack {
	header := m.Headers()
	p := &pack{msg: m, ref: bounded(header.Get(proto.HeaderRef))}
	if meta, err := m.Metadata(); err == nil {
		p.arrived, p.behind = meta.Timestamp, meta.NumPending
	}
	if _, err := proto.ParseVerdictSubject(header.Get(proto.HeaderReply)); err == nil {
		p.reply = header.Get(proto.HeaderReply)
	}
	facts, factsErr := readFacts(m.Subject(), header)
	p.lane = facts.Lane
	lines, err := proto.SplitPack(m.Data())
	if err != nil {
		lines, factsErr = [][]byte{nil}, err
	}
	traces := header.Get(proto.HeaderTraceParent)
	p.events, p.verdicts = make([]*policy.Candidate, len(lines)), make([]proto.Verdict, len(lines))
	for i, data := range lines {
		c, err := facts, factsErr
		c.Trace, traces, _ = strings.Cut(traces, ",")
		c.Trace = strings.Clone(bounded(c.Trace)) // the header may be long, and one event be kept
		if err == nil {
			c.Event, c.Raw, err = readEvent(data)
		}
		if err != nil { // delivered again, it would be none again
			p.verdicts[i] = proto.Verdict{Outcome: proto.Rejected, Message: sentence("invalid: not a candidate: " + err.Error())}
			continue
		}
		p.events[i] = &c
	}
	return p
}

// readFacts reads what the subject and the headers say of all events of a message. No header can
// say more than the lane that it came by.
func readFacts(subject string, header nats.Header) (c policy.Candidate, err error) {
	c = policy.Candidate{
		Source: proto.Source(header.Get(proto.HeaderSource)),
		Relay:  bounded(header.Get(proto.HeaderRelay)),
	}
	if c.Lane, err = proto.ParseLane(subject); err != nil {
		return c, err
	}
	switch c.Lane {
	case proto.LaneUser:
		c.Source, c.Client = proto.SourceUser, bounded(header.Get(proto.HeaderClient))
	case proto.LaneRelease:
		c.Source, c.Reason = proto.SourceRelease, bounded(header.Get(proto.HeaderReason))
		switch c.Action = proto.Action(header.Get(proto.HeaderAction)); c.Action {
		case proto.ActionRelease, proto.ActionExpire, proto.ActionExtend, proto.ActionRemove:
		default:
			return c, fmt.Errorf("%s is %q, want release, expire, extend or remove", proto.HeaderAction, c.Action)
		}
	case proto.LaneImport:
		c.Source = proto.SourceImport
	default:
		if !c.Source.Synced() {
			return c, fmt.Errorf("%s is %q, want one of the sources of this lane", proto.HeaderSource, c.Source)
		}
	}
	return c, nil
}

// readEvent reads an event. The gateway and the relay workers have checked ids and signatures;
// ingest does not trust them: it checks every id, and the signature of each event that decides
// about other people's data. The log holds what the id speaks of, encoded again, and nothing else
// that the JSON carried.
func readEvent(data []byte) (*nostr.Event, []byte, error) {
	ev, err := nostr.Parse(data)
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
	case nostr.KindOf(ev.Kind).Decides && !nostr.Signed(ev):
		return nil, nil, errors.New("the signature is not its author's")
	}
	raw := nostr.Encode(ev)
	if len(raw) > maxEventBytes {
		return nil, nil, fmt.Errorf("the event is larger than %d bytes", maxEventBytes)
	}
	return ev, raw, nil
}

func bounded(s string) string {
	if len(s) > maxHeader {
		return ""
	}
	return s
}
