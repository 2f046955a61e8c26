// Package policy decides which events are accepted, which are held for their git data, and which
// are rejected.
//
// A decision is a value: it says what should happen to the log and to the held events, and what the
// sender is told. Nothing here writes anything. What is known at the moment of the decision is
// asked of [Knowledge], which answers for the log, for the held events, and for the earlier
// decisions of the same batch alike.
package policy

import (
	"cmp"
	"fmt"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip70"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Knowledge is what decisions are made on. Who answers notes what could not be read: a decision on
// that does not count.
type Knowledge interface {
	// Accepted returns the accepted event of that id, or nil.
	Accepted(id string) *nostr.Event
	// AcceptedKind returns the kind of the accepted event of that id; false if there is none.
	AcceptedKind(id string) (kind int, accepted bool)
	// AcceptedAt returns the accepted event at an address, or nil.
	AcceptedAt(nostr.Address) *nostr.Event
	// Superseded reports whether the log has given the place of this event to another, which may
	// have expired since. That must be what every index of the log says, whenever it reads it: an
	// older event would take the newer one's message in the log, and only who reads the log later
	// would have it.
	Superseded(*nostr.Event) bool
	// Announced finds the accepted announcements of an identifier, as entries without a phase. They
	// must not be changed.
	Announced(identifier string) held.Source
	// Deleted reports whether an accepted request of its author has taken the event away: a deletion
	// request, or a request to vanish that counts here.
	Deleted(*nostr.Event) bool
	// Vanished reports whether it was a request to vanish.
	Vanished(*nostr.Event) bool
	// IdleRequest returns the accepted request by which an event is taken away, if nothing but this
	// request takes it away, and the request has an end because it has changed nothing; otherwise nil.
	IdleRequest(*nostr.Event) *nostr.Event
	// Reaches reports whether the log has an event, served or not, that a request of its author takes
	// away where it counts.
	Reaches(request *nostr.Event) bool
	// AnnouncedBy are the accepted announcements of an author up to a time.
	AnnouncedBy(author string, until nostr.Timestamp) []*nostr.Event
	// Outlived reports whether the log has an event whose time there is over: it has expired, or is a
	// request whose end has come, or its author has taken it away.
	Outlived(*nostr.Event) bool
	// Vouched reports whether an accepted event names this one, by id, or by address where it has
	// one.
	Vouched(*nostr.Event) bool
	// Held is the held events. They must not be changed.
	Held() *held.Directory
	// Room counts the held events. It must not be changed.
	Room() *Room
	// HiddenBy returns the name of the ban by which an event is not served that the log has; "": it
	// is, or the log does not have it.
	HiddenBy(id string) string
	// Wrote reports whether there is an accepted event of an author.
	Wrote(pubkey string) bool
	// TakesPart reports whether there is one of [PartKinds], or an accepted announcement that lists
	// the author.
	TakesPart(pubkey string) bool
	// RejectedBefore returns the answer that the event got within the last days; false if it was
	// not rejected.
	RejectedBefore(id string) (message string, before bool)
}

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
	Purge  bool         // it is removed because it is hidden, even if others need it
	Leaves bool         // it is removed because its time in the log is over
	Renews bool         // it is a request that has an end in the log, and stays
	Again  bool         // it was parked: that it was rejected before is no answer now

	// Parsed is what Announcement has read.
	Parsed *nostr.Announcement
}

// Announcement reads the event as an announcement, once.
func (c *Candidate) Announcement() (a *nostr.Announcement, err error) {
	if c.Parsed == nil {
		c.Parsed, err = nostr.ParseAnnouncement(c.Event)
	}
	return c.Parsed, err
}

// Release is a candidate of ingest's own, with which no message came: it asks for a decision on a
// held event, as purgatory would.
func Release(ev *nostr.Event) *Candidate {
	return &Candidate{
		Event: ev, Raw: nostr.Encode(ev), Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionRelease,
	}
}

// Policy is the configured part of the rules.
type Policy struct {
	// Own returns the service's own public key; "": it is not known yet. Optional.
	Own func() string

	settings config.Settings
	hosting  config.Rules
	bans     *bans.Set
	circle   bans.Circle
	bounds   Bounds
	now      func() time.Time
}

// New reads the rules from settings. An error is one sentence that names the setting and what would
// be right. bounds are those of purgatory, now is the clock.
func New(s config.Settings, banned *bans.Set, bounds Bounds, now func() time.Time) (*Policy, error) {
	rules, err := s.Hosting()
	if err != nil {
		return nil, err
	}
	return &Policy{settings: s, hosting: rules, bans: banned, circle: banned.Circle(s.Private), bounds: bounds, now: now}, nil
}

// Decide decides one candidate. It is pure but for the clock, which it reads for expirations and
// for the times in held entries.
func (p *Policy) Decide(k Knowledge, c *Candidate) (d Decision) {
	entry := k.Held().ByID(c.Event.ID)
	switch {
	case c.Leaves:
		return Decision{Outcome: proto.Done, Removes: k.Outlived(c.Event)}
	case c.Renews:
		_, is := k.AcceptedKind(c.Event.ID)
		return Decision{Outcome: proto.Done, Renews: is, Request: p.request(c.Event, false)}
	}
	switch c.Action {
	case proto.ActionExpire:
		d = p.expire(k, c, entry)
	case proto.ActionExtend:
		d.Outcome = proto.Done
		if entry != nil {
			d.Hold = []*held.Entry{p.restarted(entry)}
		}
	case proto.ActionRemove:
		_, accepted := k.AcceptedKind(c.Event.ID)
		hiddenBy := k.HiddenBy(c.Event.ID)
		purged := hiddenBy != "" && (c.Purge || eventdb.IsGone(hiddenBy)) // it is there, and still hidden
		d.Outcome, d.Removes = proto.Done, purged || accepted && !p.isNeeded(k, c)
	default:
		d = p.judge(k, c, entry)
	}
	p.conclude(k, c, &d)
	return d
}

// judge decides an event that is offered, or a held one once more, because its git data is there.
// Both go by the same rules. Where an offered event would be held, a released one is accepted, see
// hold; in every other case its entry goes.
func (p *Policy) judge(k Knowledge, c *Candidate, entry *held.Entry) Decision {
	d := p.known(k, c, entry)
	if d.Outcome == "" {
		d = p.byKind(k, c)
	}
	if c.Action == proto.ActionRelease && len(d.Hold) == 0 {
		d.Park = d.Park && entry == nil
		d.drop("", entry) // a rejection is remembered by itself
	}
	return d
}

// known answers for what needs no rule of its kind; without an outcome it has no answer.
func (p *Policy) known(k Knowledge, c *Candidate, entry *held.Entry) (d Decision) {
	if ban := p.bans.Event(c.Event); ban != nil {
		return blocked(ban)
	}
	released := c.Action == proto.ActionRelease
	if _, accepted := k.AcceptedKind(c.Event.ID); accepted {
		d = duplicate("duplicate: this event is here already")
		d.drop("", entry) // a crash between the two commits of a release left it behind
		return d
	}
	switch {
	case entry == nil && released:
		return forgotten("not_held", "invalid: the event is not held any more")
	case entry != nil && !released:
		d = duplicate(proto.MessagePurgatory)
		if entry.Phase == proto.PhaseSilent && (c.Lane == proto.LaneUser || c.Source == proto.SourceImport) {
			d.Hold = []*held.Entry{p.restarted(entry)} // submitted again it gets a new chance
		}
		return d
	case k.Deleted(c.Event):
		return takenAway(k, c)
	}
	if c.Source.Synced() && !c.Again {
		if message, before := k.RejectedBefore(c.Event.ID); before {
			return forgotten("rejected_before", message)
		}
	}
	d = p.refuse(c)
	switch {
	case d.Outcome != "" || !k.Superseded(c.Event):
		return d
	case c.Event.Kind == nostr.KindState && entry == nil:
		return duplicate("duplicate: superseded by a newer event")
	}
	d = duplicate(messageNewer)
	d.drop(rememberSuperseded, entry)
	return d
}

// refuse answers for events that can be refused by looking at nothing else.
func (p *Policy) refuse(c *Candidate) (d Decision) {
	expires, most := eventdb.Expiration(c.Event), cmp.Or(nostr.KindOf(c.Event.Kind).MaxBytes, int(p.settings.LargestEvent))
	switch {
	case len(c.Raw) > most:
		return invalid(fmt.Errorf("an event of this kind may have %d bytes at most, and this one has %d", most, len(c.Raw)))
	case expires != 0 && int64(expires) < p.now().Unix(): // its second is still alive, as in the index
		return rejected("expired", "invalid: the event has expired")
	case isProtected(c):
		return rejected("protected", "blocked: protected events (NIP-70) are taken only from their authors")
	case c.Event.Kind == gonostr.KindClientAuthentication, c.Event.Kind == gonostr.KindHTTPAuth:
		return forgotten("ephemeral", "invalid: a login or proof (kind 22242, 27235) is for one server, and is not passed on")
	case nostr.IsEphemeralKind(c.Event.Kind) && c.Lane != proto.LaneUser:
		return forgotten("ephemeral", "restricted: ephemeral events are taken from clients only")
	case int64(c.Event.CreatedAt) > p.now().Unix()+proto.MaxFuture:
		d = forgotten("future", "invalid: created_at is too far in the future")
		d.RetryAt = int64(c.Event.CreatedAt) - proto.MaxFuture
		return d
	}
	return d
}

func (p *Policy) byKind(k Knowledge, c *Candidate) Decision {
	switch c.Event.Kind {
	case nostr.KindAnnouncement:
		return p.announcement(k, c)
	case nostr.KindState:
		return p.state(k, c)
	case nostr.KindPR, nostr.KindPRUpdate:
		return p.pullRequest(k, c)
	case nostr.KindDeletion:
		return p.deletion(k, c)
	case nostr.KindVanish:
		return p.vanish(k, c)
	case nostr.KindReport:
		return p.report(k, c)
	case nostr.KindProfile, nostr.KindRelayList:
		return p.aboutAuthor(k, c)
	}
	switch kind := nostr.KindOf(c.Event.Kind); {
	case kind.FromAnyone:
		return accepted()
	case kind.OwnOnly && !p.isOwn(c.Event):
		return forgotten("not_own", "restricted: events of this kind are taken from this service's own key only")
	}
	if nostr.IsEphemeralKind(c.Event.Kind) {
		return p.ephemeral(k, c)
	}
	return p.referenced(k, c)
}

// isOwn reports whether an event is signed by the service's own key.
func (p *Policy) isOwn(ev *nostr.Event) bool { return p.Own != nil && ev.PubKey == p.Own() }

// isProtected reports whether a candidate is a protected event (NIP-70) that may not be taken, or a
// repost of one. A protected event is taken from its author only, on an authenticated connection:
// the gateway has seen to that where it comes from a user. What another relay brings is not that.
// An operator who imports brings what the author has given to a server of theirs, else a back-up
// would lose it.
func isProtected(c *Candidate) bool {
	fromAuthor := c.Lane == proto.LaneUser || c.Lane == proto.LaneRelease || c.Source == proto.SourceImport
	return nip70.IsProtected(*c.Event) && !fromAuthor || nip70.HasEmbeddedProtected(*c.Event)
}
