package proto

import "time"

// Headers carry facts about a message, on a candidate about all events of its pack; its payload
// stays what a person wants to read.
const (
	// HeaderSource says where an event came from; see [Source].
	HeaderSource = "Grasp-Source"
	// HeaderRelay is the normalised URL of the relay that a synced event came from.
	HeaderRelay = "Grasp-Relay"
	// HeaderClient is the key of the client that asks: an IPv4 address or an IPv6 /64 prefix,
	// worked out at the front door. It is on candidates of users, and on the HTTP requests that the
	// gateway passes on to purgatory workers; empty for everything that did not come through the
	// front door.
	HeaderClient = "Grasp-Client"
	// HeaderReply is the subject for the verdict, always one of [VerdictSubject]. JetStream itself
	// uses the reply subject of a published message for its acknowledgement, so ours rides in a
	// header.
	HeaderReply = "Grasp-Reply"
	// HeaderRef is a token of the sender's own for a pack, repeated with its verdicts.
	HeaderRef = "Grasp-Ref"
	// HeaderAction says what purgatory asks for on the release lane; see [Action].
	HeaderAction = "Grasp-Action"
	// HeaderReason is the sentence that goes with an action or a rejection.
	HeaderReason = "Grasp-Reason"
	// HeaderRemoved is the id of an event that has left the log, on the empty message that stands
	// in its place for [RemovedKept]: nothing that is hosted here needed it any more
	// ([ActionRemove]), or its time is over.
	HeaderRemoved = "Grasp-Removed"
	// HeaderFloor is on a deletion request that names a version of an addressable event by its id. It
	// is where that version stood, a [Floor] as JSON, once for each address: older versions do not
	// come back. The log may not have the deleted version any more, and never had one that was held.
	HeaderFloor = "Grasp-Floor"
	// HeaderRequest is on a deletion request and on a request to vanish: a [Request] as JSON.
	HeaderRequest = "Grasp-Request"
	// HeaderReleased is on the message that takes the place of a claim whose holder has let it go. A
	// claim that is gone without it was removed by another hand, and its holder may still work.
	HeaderReleased = "Grasp-Released"
	// HeaderTimeout is on a question of a micro service, or to a purgatory worker: how long the asker
	// waits for the answer, like "12.5s", counted from when the question is received. The clocks of
	// two machines are not compared.
	HeaderTimeout = "Grasp-Timeout"
	// HeaderWorking is on an empty message to the asker of a question: a replica works on the answer,
	// or will when it is its turn. It comes every second.
	HeaderWorking = "Grasp-Working"
	// HeaderTraceParent is W3C trace context: on a pack, one for each line, with commas between and
	// nothing for an event without.
	HeaderTraceParent = "traceparent"
)

// Floor is the place of a deleted version of an addressable or replaceable event, whose author is
// that of the deletion request. What is older, or as old with a higher id, does not come back.
type Floor struct {
	Kind       int    `json:"kind"`
	Identifier string `json:"d,omitempty"`
	CreatedAt  int64  `json:"created_at"`
	ID         string `json:"id"`
}

// Request is what ingest decided of an author's request: a deletion request (NIP-09) or a request to
// vanish (NIP-62). Indexes carry it out as it stands there, also under other settings later.
type Request struct {
	// At is when it was accepted, in seconds since 1970. What it takes away is kept for the grace
	// period from then on.
	At int64 `json:"at"`
	// Vanishes: all events of the author up to the request's time are gone.
	Vanishes bool `json:"vanishes,omitempty"`
	// Until is when it leaves the log, in seconds since 1970, because it has changed nothing and kept
	// nothing out. 0: it stays.
	Until int64 `json:"until,omitempty"`
}

// RemovedKept is how long the log keeps the empty message in place of an event that has left it. An
// index that was away for longer is made again from the log.
const RemovedKept = 30 * 24 * time.Hour

// Source says how an event reached us.
type Source string

// The sources of events, by which `ngit_sync_events_total` counts (docs/metrics.md).
const (
	SourceUser      Source = "direct"    // submitted by a client of our own relay
	SourceLive      Source = "live"      // a live subscription
	SourceStartup   Source = "startup"   // historic sync of a fresh start
	SourceReconnect Source = "reconnect" // historic sync of a quick reconnect
	SourceDaily     Source = "daily"     // historic sync of the daily fresh start
	SourceRelease   Source = "release"   // purgatory: its git data is there
	SourceImport    Source = "import"    // an operator's file, see `tendril import`
)

// Synced reports whether the event came from another relay.
func (s Source) Synced() bool {
	switch s {
	case SourceLive, SourceStartup, SourceReconnect, SourceDaily:
		return true
	}
	return false
}

// Action is what purgatory asks ingest to do with an event, a held one but for the last.
type Action string

// The actions of the release lane.
const (
	ActionRelease Action = "release" // its git data is there: decide again and accept
	ActionExpire  Action = "expire"  // its time is over
	ActionExtend  Action = "extend"  // its time starts again
	// ActionRemove: the repository that an accepted event was for has been removed. The event
	// leaves the log, unless something that is still here needs it.
	ActionRemove Action = "remove"
)
