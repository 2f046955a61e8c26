package proto

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr"
)

// Outcome is how a candidate ended.
type Outcome string

// The outcomes. In OK messages (NIP-01) all but Rejected are OK true.
const (
	Accepted  Outcome = "accepted"  // in the log
	HeldBack  Outcome = "held"      // in purgatory
	Duplicate Outcome = "duplicate" // known already, or older than what replaced it
	Rejected  Outcome = "rejected"
	Done      Outcome = "done"   // an expire, extend or remove action was carried out
	PassedOn  Outcome = "passed" // ephemeral: told to subscribers, and not stored
)

// MaxFuture is how far the created_at of an event may be ahead of us, in seconds.
const MaxFuture = 15 * 60

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
	// its author, address or relay is used up until then, the service is full, purgatory is crowded,
	// or the event is dated too far ahead.
	RetryAt int64 `json:"retry_at,omitempty"`
}

// OK reports what the OK message to a user says.
func (v Verdict) OK() bool { return v.Outcome != Rejected }

// MessageBudget is how a verdict begins that is for a budget that is used up, and MessageFull is
// that of a service that is full.
const (
	MessageBudget = "rate-limited: this "
	MessageFull   = "error: this service is full"
)

// TakesNoMore reports whether a verdict is about all that its author, address or relay brings, and
// not about this event: a budget is used up, or the service is full.
func (v Verdict) TakesNoMore() bool {
	return v.RetryAt > 0 && (strings.HasPrefix(v.Message, MessageBudget) || v.Message == MessageFull)
}

// Verdicts is the payload on a verdict subject: how the events of one pack ended, in its order. It
// is sent when all of them are decided and committed.
type Verdicts struct {
	Ref      string    `json:"ref,omitempty"` // the pack's HeaderRef
	Verdicts []Verdict `json:"verdicts"`
}

// Progress is what a process tells on grasp.progress: how it stands, and how far it has read the
// streams that it keeps something of.
type Progress struct {
	Process string    `json:"process"` // what it runs, and its name as a worker
	Version string    `json:"version"`
	Domain  string    `json:"domain"`
	Started time.Time `json:"started"`
	Read    []Reading `json:"read"`
	Disks   []Disk    `json:"disks,omitempty"` // of its folders, each disk once
	// Counts are figures of its services, such as clients.
	Counts map[string]int64 `json:"counts,omitempty"`
	// Troubles are why it is not ready, or takes no new data, by what they concern.
	Troubles map[string]string `json:"troubles,omitempty"`
}

// Disk is the room on the disk of a folder, in bytes.
type Disk struct {
	Folder string `json:"folder"`
	Free   int64  `json:"free"`
	Bytes  int64  `json:"bytes"`
}

// Reading is how far something is made of a stream.
type Reading struct {
	Name   string `json:"name"` // of what is made, as in the metric tendril_projection_lag
	Stream string `json:"stream"`
	Seq    uint64 `json:"seq"` // of the last message that was read
}

// Usage is a value of the bucket grasp-usage: what a party has stored on a day.
type Usage struct {
	Day   int64 `json:"day"` // since 1970, in UTC
	Bytes int64 `json:"bytes"`
}

// Ban is a value of the bucket grasp-bans. Its key says what is banned; [lib/bans] writes and reads
// both.
type Ban struct {
	What   string    `json:"what"`             // as people write it: npub, npub/identifier, identifier, event id
	Reason string    `json:"reason,omitempty"` // what clients are told
	By     string    `json:"by,omitempty"`     // npub of the operator's key (NIP-86), or user@host of a command
	At     time.Time `json:"at"`
	Purge  bool      `json:"purge,omitempty"` // what is stored is removed when the grace period is over
}

// Member is a value of the bucket grasp-bans, under the key of a member of a private service: an
// operator has added or removed it.
type Member struct {
	Npub    string    `json:"npub"`
	By      string    `json:"by,omitempty"` // user@host of a command
	At      time.Time `json:"at"`
	Removed bool      `json:"removed,omitempty"`
}

// ManageRequest is a request of NIP-86 as the front door got it. Ingest answers with a
// [ManageAnswer].
type ManageRequest struct {
	Authorization string `json:"authorization"` // the header (NIP-98)
	Body          []byte `json:"body"`
}

// ManageAnswer is what the front door answers to it.
type ManageAnswer struct {
	Status int    `json:"status"`
	Body   []byte `json:"body"`
}

// Phase is where a held event stands.
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
	Client     string       `json:"client,omitempty"`   // key of the client that submitted it, see HeaderClient
	Reserved   bool         `json:"reserved,omitempty"` // in the room of owners and maintainers of served repositories
	Phase      Phase        `json:"phase"`
	HeldAt     time.Time    `json:"held_at"`
	ExpiresAt  time.Time    `json:"expires_at"`      // of this phase
	Trace      string       `json:"trace,omitempty"` // see HeaderTraceParent
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
	// FetchFrom are the relays to ask for the event by its id, because something that it missed has
	// come. Such an event does not count as rejected any more, and misses nothing. The message goes
	// when the event is decided again.
	FetchFrom []string `json:"fetch_from,omitempty"`
	// Expired is how often the event waited for its git data in vain: with each time it is remembered
	// for longer.
	Expired int `json:"expired,omitempty"`
	// Rules are the settings by which the event was rejected, in short: by other
	// settings it may be welcome. Empty: there were none.
	Rules string `json:"rules,omitempty"`
}

// MaxFetched is how many ids the messages of one second name on [SubjectFetch], and MaxFetchRelays
// how many relays one of them names.
const (
	MaxFetched     = 32
	MaxFetchRelays = 8
)

// Fetch is a message on [SubjectFetch]: events that were rejected, and of which something that they
// missed has come since. A worker that holds one of the relays asks it for the ids within 30 s; a
// relay that no worker holds is connected to for a minute. What is known is not asked for. Nothing
// keeps the message: ingest says the same again, a minute and ten minutes later, while an event has
// not been decided again.
type Fetch struct {
	IDs    []string `json:"ids"`    // event ids
	Relays []string `json:"relays"` // normalised URLs, those that had the events first
}

// Level is how much of a repository is wanted.
type Level string

// The levels of a repository, and of a person.
const (
	LevelFull      Level = "full"  // an accepted announcement: all that tags it
	LevelStateOnly Level = "state" // a held announcement: only its state events
	// LevelPast: the past of what tags an accepted announcement, once a day, at a relay that its owner
	// or a confirmed maintainer lists (GRASP-03).
	LevelPast Level = "past"
	// LevelPerson: what a participant wrote, or is answered, at a relay that they list. The subject
	// names them as the repository of no identifier; see [PersonRef].
	LevelPerson Level = "person"
)

// PersonRef is in place of a reference what names a person in [WantedSubject].
func PersonRef(pubkey string) string { return prefixRef + pubkey + ":" }

// PersonOf is the person that a reference of [PersonRef] names.
func PersonOf(ref string) (pubkey string, is bool) {
	rest, isRef := strings.CutPrefix(ref, prefixRef)
	pubkey, is = strings.CutSuffix(rest, ":")
	return pubkey, is && isRef && !strings.Contains(pubkey, ":")
}

// Target is a message of GRASP_TARGETS on a subject of [TargetSubject]: the relay is a target. An
// empty message says that it is none any more.
type Target struct {
	URL       string `json:"url"` // normalised, to connect to
	Bootstrap bool   `json:"bootstrap,omitempty"`
	// Further: no repository lists the relay, only people do (GRASP-03), so that layer 1 is not asked
	// for. Live: a connection stands for what comes live. Past: it is visited once a day.
	Further bool `json:"further,omitempty"`
	Live    bool `json:"live,omitempty"`
	Past    bool `json:"past,omitempty"`
	// Repos is what is wanted of repositories, by reference; each is a message of its own.
	Repos map[string]Wanted `json:"-"`
}

// Exists reports whether the target is one at all.
func (t Target) Exists() bool { return t.URL != "" }

// Stands reports whether a connection to the relay is to stand.
func (t Target) Stands() bool { return t.Exists() && (!t.Further || t.Live) }

// VisitKey is the key of the claim on visits of a relay, by its name: another than that of the
// claim on the connection that stands. VisitOf is its inverse.
func VisitKey(name string) string { return name + visitEnd }

// VisitOf returns the relay's name of the key of a claim on visits.
func VisitOf(key string) (name string, is bool) { return strings.CutSuffix(key, visitEnd) }

// visitEnd is no end of a relay's name.
const visitEnd = "." + emptyToken

// Messages are what GRASP_TARGETS has to say of a target, by subject. key is the relay's identity.
// What has no subject, because its name is too long, is left out.
func (t Target) Messages(key string) (map[string][]byte, error) {
	subject, err := TargetSubject(key)
	if err != nil {
		return nil, fmt.Errorf("target of %q: %w", key, err)
	}
	messages := make(map[string][]byte, 1+len(t.Repos))
	if messages[subject], err = json.Marshal(t); err != nil {
		return nil, fmt.Errorf("target of %q: %w", key, err)
	}
	for ref, wanted := range t.Repos {
		subject, err := WantedSubject(key, ref)
		if err != nil {
			continue
		}
		if messages[subject], err = json.Marshal(wanted); err != nil {
			return nil, fmt.Errorf("target of %q: %w", key, err)
		}
	}
	return messages, nil
}

// Wanted is a message of GRASP_TARGETS on a subject of [WantedSubject]: what is wanted of one
// repository from one relay. An empty message says that nothing is wanted any more.
type Wanted struct {
	Level Level `json:"level"`
	// Of a person: Roots are the ids of the root events that they wrote, live; Threads the past of the
	// threads that they take part in; Lists their relay list and profile.
	Roots   bool `json:"roots,omitempty"`
	Threads bool `json:"threads,omitempty"`
	Lists   bool `json:"lists,omitempty"`
	// Why says whose list led to the relay, of a repository.
	Why string `json:"why,omitempty"`
}

// RelayState is a value of the bucket grasp-relays: how the connection to a relay stands, so that a
// successor goes on there.
type RelayState struct {
	URL            string    `json:"url"`
	Further        bool      `json:"further,omitempty"` // as in [Target], or of visits
	Worker         string    `json:"worker"`
	Connection     int       `json:"connection"` // 0 disconnected … 4 connected_historic_sync_failures
	Health         int       `json:"health"`     // 1 healthy … 5 rate_limited
	Failures       int       `json:"failures,omitempty"`
	LastError      string    `json:"last_error,omitempty"`
	LastConnected  time.Time `json:"last_connected,omitzero"`
	DisconnectedAt time.Time `json:"disconnected_at,omitzero"`
	NextAttempt    time.Time `json:"next_attempt,omitzero"`
	FailingSince   time.Time `json:"failing_since,omitzero"`
	NaughtyUntil   time.Time `json:"naughty_until,omitzero"`
	NaughtyCause   string    `json:"naughty_cause,omitempty"` // dns, tls or protocol
	NextDaily      time.Time `json:"next_daily,omitzero"`     // the next daily fresh start
	// CompleteUntil is up to when nothing is missing of what is confirmed.
	CompleteUntil time.Time `json:"complete_until,omitzero"`
	// Confirmed is the sequence in GRASP_TARGETS up to which all repositories are confirmed that
	// were wanted, ConfirmedLog the sequence of the log up to which their root events are, and
	// ConfirmedReplies so for the events below these.
	Confirmed        uint64 `json:"confirmed,omitempty"`
	ConfirmedLog     uint64 `json:"confirmed_log,omitempty"`
	ConfirmedReplies uint64 `json:"confirmed_replies,omitempty"`
	// ConfirmedAt is when all that was wanted was confirmed last.
	ConfirmedAt time.Time `json:"confirmed_at,omitzero"`
	// Rules is a hash of the settings and of the form of the filters for which it is confirmed.
	Rules         string `json:"rules,omitempty"`
	Repos         int    `json:"repos,omitempty"`         // confirmed repositories
	Roots         int    `json:"roots,omitempty"`         // confirmed root events
	Subscriptions int    `json:"subscriptions,omitempty"` // open on the connection
}

// Worker is a value of the bucket grasp-workers. Its key expires unless the worker keeps beating.
type Worker struct {
	Name    string `json:"name"`
	Group   string `json:"group"`
	Address string `json:"address,omitempty"` // host:port of its internal HTTP, if others must reach it
	// Working is false before the worker takes keys, and while it stops: then it keeps the claims
	// that it has until its work on them has ended.
	Working bool `json:"working"`
	// Heard is a sequence of the bucket grasp-claims: the worker knows what was removed up to there,
	// and works by no claim that was.
	Heard uint64 `json:"heard,omitempty"`
}

// Claim is a value of the bucket grasp-claims; its revision fences the holder.
type Claim struct {
	Worker string    `json:"worker"`
	Since  time.Time `json:"since"`
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

// ReconcileQuery asks grasp.query.ids what to say to a relay next in a session of NIP-77. The
// set is what is known for the filter: accepted, held, or rejected lately. Nothing is kept between
// two queries, so that each may be answered by another replica.
type ReconcileQuery struct {
	Filter nostr.Filter `json:"filter"` // its limit is not looked at
	// Message is what the relay has answered; none: the session begins.
	Message []byte `json:"message,omitempty"`
	// Opening: that is the whole answer to the first message of the session.
	Opening bool `json:"opening,omitempty"`
	// Seq is the sequence of the log that the replica must have applied before it answers: the one
	// of what the asker knows to be accepted. 0: any.
	Seq uint64 `json:"seq,omitempty"`
}

// ReconcileAnswer is one message, or an error with the headers of the micro service protocol, whose
// codes are [QueryBad], [QueryTooMany] and [QueryFailed].
type ReconcileAnswer struct {
	// Message is for the relay; none: all is settled.
	Message []byte `json:"message,omitempty"`
	// Missing is the ids that the relay has named and that are not known here, 32 bytes each. An id
	// may come again with a later message.
	Missing []byte `json:"missing,omitempty"`
	// Known is how many events of the filter are known, of an answer that begins a session.
	Known uint64 `json:"known,omitempty"`
	// OnlyHere is how many of these the relay has turned out not to have, by its last message.
	OnlyHere uint64 `json:"only_here,omitempty"`
	// Oldest is when the oldest event was made that is known, of an answer that begins a session, or
	// that the relay has turned out to have; 0: there is none.
	Oldest nostr.Timestamp `json:"oldest,omitempty"`
}

// Codes of errors of the grasp.query services.
const (
	QueryBad     = "400" // the filter, or the relay's message, is none
	QueryBehind  = "409" // this replica has not applied the sequence that the query names: ask another
	QueryTooMany = "413" // too many events match: ask for a shorter time
	QueryFailed  = "503" // ask again
)
