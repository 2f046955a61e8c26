package policy

import (
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
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

// OfHeld is a candidate of ingest's own, with which no message came: it asks for a decision on a
// held event, as purgatory would.
func OfHeld(ev *nostr.Event, action proto.Action) *Candidate {
	return &Candidate{
		Event: ev, Raw: nostr.Encode(ev), Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: action,
	}
}
