package proto

import (
	"time"

	"github.com/nbd-wtf/go-nostr"
)

// Outcome is how a candidate ended.
type Outcome string

// The outcomes. They map to NIP-01 OK messages as policy.md says: all but Rejected are OK true.
const (
	Accepted  Outcome = "accepted"  // in the log
	HeldBack  Outcome = "held"      // in purgatory
	Duplicate Outcome = "duplicate" // known already, or older than what replaced it
	Rejected  Outcome = "rejected"
	Done      Outcome = "done" // an expire, extend or remove action was carried out
)

// Messages of OK, which clients may rely on.
const (
	// MessagePurgatory answers an event that waits for git data.
	MessagePurgatory = "purgatory: won't be served until git data arrives"
)

// Verdict is how one candidate ended. It is sent only after the commit that holds the event.
type Verdict struct {
	ID      string  `json:"id"`   // event id
	Kind    int     `json:"kind"` // event kind
	Outcome Outcome `json:"outcome"`
	Message string  `json:"message,omitempty"` // what an OK carries, with NIP-01's prefix
	Seq     uint64  `json:"seq,omitempty"`     // sequence in GRASP_EVENTS, if accepted or removed
	// Retry: it was rejected for something that may change. It may be accepted later: when what it
	// names is accepted, or when there is room for it again.
	Retry bool `json:"retry,omitempty"`
	// RetryAt, in seconds since 1970, is when the event may be offered again: the daily budget of
	// its author, address or relay is used up until then, or the service is full.
	RetryAt int64 `json:"retry_at,omitempty"`
}

// OK reports what the OK message to a user says.
func (v Verdict) OK() bool { return v.Outcome != Rejected }

// Verdicts is the payload on a verdict subject: how the events of one pack ended, in its order. It
// is sent when all of them are decided and committed.
type Verdicts struct {
	Ref      string    `json:"ref,omitempty"` // the pack's HeaderRef
	Verdicts []Verdict `json:"verdicts"`
}

// Usage is a value of the bucket grasp-usage: what a party has stored on a day.
type Usage struct {
	Day   int64 `json:"day"` // since 1970, in UTC
	Bytes int64 `json:"bytes"`
}

// Phase is where a held event stands (purgatory.md).
type Phase string

// The phases of a held event.
const (
	PhaseWaiting Phase = "waiting" // the hunt is on
	PhaseSilent  Phase = "silent"  // an announcement whose 30 minutes are over: kept for 24 hours, its repository deleted
	PhaseVouched Phase = "vouched" // a maintainer's announcement that does not list us: released or dropped with the held ones that vouch for it
)

// Held is a value of the bucket grasp-held.
type Held struct {
	Event      *nostr.Event `json:"event"`
	Identifier string       `json:"identifier"`
	Source     Source       `json:"source"`
	Relay      string       `json:"relay,omitempty"`
	Client     string       `json:"client,omitempty"`   // client key of whoever submitted it, see HeaderClient
	Reserved   bool         `json:"reserved,omitempty"` // in the room of owners and maintainers of served repositories
	Phase      Phase        `json:"phase"`
	HeldAt     time.Time    `json:"held_at"`
	ExpiresAt  time.Time    `json:"expires_at"` // of this phase
}

// RejectedEvent is a message of GRASP_REJECTED: enough to not fetch or judge the event again.
type RejectedEvent struct {
	ID        string          `json:"id"`
	Kind      int             `json:"kind"`
	PubKey    string          `json:"pubkey"`
	CreatedAt nostr.Timestamp `json:"created_at"`
	Reason    string          `json:"reason"`
	Missing   []string        `json:"missing,omitempty"` // what would heal it: event ids, addresses, "d:<identifier>" for an announcement
	Relay     string          `json:"relay,omitempty"`
	// Rules are the operator's lists by which an announcement was rejected, in short: by other
	// lists it may be welcome. Empty: there were none.
	Rules string `json:"rules,omitempty"`
}

// Level is how much of a repository is wanted (sync.md).
type Level string

// The levels of a repository.
const (
	LevelFull      Level = "full"  // an accepted announcement: all that tags it
	LevelStateOnly Level = "state" // a held announcement: only its state events
)

// TargetChange is a message of GRASP_TARGETS: what to ask one relay for, as a change to what its
// earlier messages said. A message with the header Nats-Rollup is a snapshot's first part and
// replaces all earlier ones.
type TargetChange struct {
	URL       string       `json:"url"` // normalised, to connect to
	Bootstrap bool         `json:"bootstrap,omitempty"`
	Snapshot  bool         `json:"snapshot,omitempty"` // forget everything said before
	Gone      bool         `json:"gone,omitempty"`     // no target any more: close the connection
	More      bool         `json:"more,omitempty"`     // the next message belongs to the same change: a part is no target
	Repos     []RepoChange `json:"repos,omitempty"`
}

// RepoChange changes what is wanted of one repository from one relay.
type RepoChange struct {
	Ref     string   `json:"ref"` // 30617:<pubkey>:<identifier>
	Gone    bool     `json:"gone,omitempty"`
	Level   Level    `json:"level,omitempty"`   // empty: as it was
	Authors []string `json:"authors,omitempty"` // StateOnly: the maintainers known; replaces the list if not empty
	// AuthorsAdded are further ones, of a list that does not fit into one message.
	AuthorsAdded []string `json:"authors_added,omitempty"`
	// RootsAt says that the root events are those of the repository's own list as it was after this
	// message of it, see [RootsChange], whatever was said of them before. 0: as they were.
	RootsAt   uint64   `json:"roots_at,omitempty"`
	Roots     []string `json:"roots,omitempty"`      // ids of root events added
	RootsGone []string `json:"roots_gone,omitempty"` // ids of root events that are no more
	// Since, in a snapshot, is the sequence of the last of the messages that it replaces that
	// changed the repository; 0: the snapshot itself does.
	Since uint64 `json:"since,omitempty"`
}

// RootsChange is a message of GRASP_TARGETS on a subject of [RootsSubject]: a change of the list of
// one repository's root events, which targets of several relays name by [RepoChange.RootsAt], so
// that many ids are told once and not once for each relay. A message with the header Nats-Rollup is
// a snapshot's first part.
type RootsChange struct {
	Ref      string `json:"ref"`                // 30617:<pubkey>:<identifier>
	Prev     uint64 `json:"prev,omitempty"`     // sequence of the message that this one changes the list of; 0: of none
	Snapshot bool   `json:"snapshot,omitempty"` // forget everything said before
	Gone     bool   `json:"gone,omitempty"`     // no target names the list any more
	More     bool   `json:"more,omitempty"`     // the next message belongs to the same change
	// Roots and RootsGone are ids of root events that are added, and that are no more.
	Roots     []string `json:"roots,omitempty"`
	RootsGone []string `json:"roots_gone,omitempty"`
}

// RelayState is a value of the bucket grasp-relays: how the connection to a relay stands, so that a
// successor goes on there.
type RelayState struct {
	URL            string    `json:"url"`
	Worker         string    `json:"worker"`
	Connection     int       `json:"connection"` // sync.md: 0 disconnected … 4 connected_historic_sync_failures
	Health         int       `json:"health"`     // sync.md: 1 healthy … 5 rate_limited
	Failures       int       `json:"failures,omitempty"`
	LastError      string    `json:"last_error,omitempty"`
	LastConnected  time.Time `json:"last_connected,omitzero"`
	DisconnectedAt time.Time `json:"disconnected_at,omitzero"`
	NextAttempt    time.Time `json:"next_attempt,omitzero"`
	FailingSince   time.Time `json:"failing_since,omitzero"`
	NaughtyUntil   time.Time `json:"naughty_until,omitzero"`
	NextDaily      time.Time `json:"next_daily,omitzero"` // the next daily fresh start
	// CompleteUntil is up to when nothing is missing of what is confirmed and of layer 1; absent
	// while a fresh start has not come that far.
	CompleteUntil time.Time `json:"complete_until,omitzero"`
	// ConfirmedRevision is the sequence in GRASP_TARGETS up to which everything that was asked for
	// is confirmed.
	ConfirmedRevision uint64 `json:"confirmed_revision,omitempty"`
	// ConfirmedLists says that root events of lists that the target names are among that; false
	// where a version confirmed it that knew no lists.
	ConfirmedLists bool `json:"confirmed_lists,omitempty"`
	Repos          int  `json:"repos,omitempty"`         // confirmed repositories
	Roots          int  `json:"roots,omitempty"`         // confirmed root events
	Subscriptions  int  `json:"subscriptions,omitempty"` // open on the connection
}

// Worker is a value of the bucket grasp-workers. Its key expires unless the worker keeps beating.
type Worker struct {
	Name        string    `json:"name"`
	Group       string    `json:"group"`
	Incarnation string    `json:"incarnation"`       // differs for every start
	Address     string    `json:"address,omitempty"` // host:port of its internal HTTP, if others must reach it
	Started     time.Time `json:"started"`
	// Leaving is true while the worker stops: it keeps the claims that it still has until its work
	// on them has ended, and gets no others.
	Leaving bool `json:"leaving,omitempty"`
}

// Claim is a value of the bucket grasp-claims; its revision fences the holder.
type Claim struct {
	Worker      string    `json:"worker"`
	Incarnation string    `json:"incarnation"`
	Since       time.Time `json:"since"`
}

// GitNotice is what purgatory tells on `grasp.git.<identifier>.<verb>`, for people who watch.
type GitNotice struct {
	Identifier string   `json:"identifier"`
	Owner      string   `json:"owner,omitempty"` // npub of the repository
	URL        string   `json:"url,omitempty"`
	Event      string   `json:"event,omitempty"` // id
	Kind       int      `json:"kind,omitempty"`
	Objects    []string `json:"objects,omitempty"` // at most a few of them
	Bytes      int64    `json:"bytes,omitempty"`
	Millis     int64    `json:"ms,omitempty"`
	Reason     string   `json:"reason,omitempty"`
}

// WriterMark is what a new writer appends to both heads on taking over.
type WriterMark struct {
	Writer string    `json:"writer"`
	At     time.Time `json:"at"`
}

// KnownID is an event that need not be fetched: it is accepted, held, or was rejected lately. An
// answer of grasp.query.ids is a stream of messages, each a JSON array of these; an empty array
// ends it.
type KnownID struct {
	ID        string          `json:"id"`
	CreatedAt nostr.Timestamp `json:"created_at"`
}

// ReconcileQuery asks grasp.query.reconcile what to say to a relay next in a session of NIP-77. The
// set is what is known for the filter: accepted, held, or rejected lately. Nothing is kept between
// two queries, so that each may be answered by another replica.
type ReconcileQuery struct {
	Filter nostr.Filter `json:"filter"` // its limit is not looked at
	// Message is what the relay has answered; none: the session begins.
	Message []byte `json:"message,omitempty"`
	// Seq is the sequence of the log that the replica must have applied before it answers: the one
	// of what the asker knows to be accepted. 0: any.
	Seq uint64 `json:"seq,omitempty"`
}

// ReconcileAnswer is one message, or an error with the headers of the micro service protocol, whose
// codes are [QueryBad], [QueryTooMany] and [QueryFailed].
type ReconcileAnswer struct {
	// Message is for the relay; none: all is settled.
	Message []byte `json:"message,omitempty"`
	// Missing is the ids that the relay has named and nobody here knows, 32 bytes each. An id may
	// come again with a later message.
	Missing []byte `json:"missing,omitempty"`
	// Known is how many events of the filter are known, of an answer that begins a session.
	Known uint64 `json:"known,omitempty"`
	// Alone is how many of these the relay has turned out not to have, by its last message.
	Alone uint64 `json:"alone,omitempty"`
}

// Codes of errors of the grasp.query services.
const (
	QueryBad     = "400" // the filter, or the relay's message, is none
	QueryBehind  = "409" // this replica has not applied the sequence that the query names: ask another
	QueryTooMany = "413" // too many events match: ask for a shorter time
	QueryFailed  = "503" // ask again
)
