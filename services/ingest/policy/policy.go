// Package policy decides which events are accepted, which are held for their git data, and which
// are rejected.
//
// A decision is a value: it says what should happen to the log and to the held events, and what the
// sender is told. Nothing here writes anything. What is known at the moment of the decision is
// asked of [Knowledge], which answers for the log, for the held events, and for the earlier
// decisions of the same batch alike.
package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/nbd-wtf/go-nostr/nip70"

	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Knowledge is what decisions are made on. Errors are of reading, never "not there".
type Knowledge interface {
	// Accepted returns the accepted event of that id, or nil.
	Accepted(id string) (*nostr.Event, error)
	// AcceptedKind returns the kind of the accepted event of that id; false if there is none.
	AcceptedKind(id string) (kind int, accepted bool, err error)
	// AcceptedAt returns the accepted event at an address, or nil.
	AcceptedAt(nostr.Address) (*nostr.Event, error)
	// Holder returns where the event at an address stands to which older ones give way; it may have
	// expired since, and then is accepted no more.
	Holder(nostr.Address) (holder eventdb.Entry, held bool, err error)
	// Announces reports whether an announcement of the identifier is accepted whose id is not in
	// without.
	Announces(identifier string, without map[string]bool) (bool, error)
	// AcceptedNaming returns those of them that name this key among their maintainers, those that
	// list us first.
	AcceptedNaming(identifier, pubkey string) ([]*nostr.Announcement, error)
	// Deleted reports whether an accepted deletion request of its author names the event.
	Deleted(*nostr.Event) (bool, error)
	// Vouched reports whether an accepted event names this one, by id, or by address where it has
	// one.
	Vouched(*nostr.Event) (bool, error)
	// Held is the held events. They must not be changed.
	Held() *held.Directory
	// Room counts the held events. It must not be changed.
	Room() *Room
	// RejectedBefore returns the answer that the event got within the last days; false if it was
	// not rejected.
	RejectedBefore(id string) (message string, before bool)
}

// Policy is the configured part of the rules.
type Policy struct {
	hosting     hosting.Rules
	blacklist   map[string]bool // public keys
	hosted      hosting.List    // empty: all
	refused     hosting.List
	keepDeleted bool // deletion requests do not touch what is accepted
	offers      bool // contributors offer pull requests below /prs/ (GRASP-06)
	maxFuture   time.Duration
	waits       time.Duration // how long a held event waits for its git data
	silent      time.Duration // how long an announcement is kept after that
	bounds      Bounds
	now         func() time.Time
}

// New reads the rules from settings. An error is one sentence that names the setting and what would
// be right. bounds are those of purgatory, now is the clock.
func New(s config.Settings, bounds Bounds, now func() time.Time) (*Policy, error) {
	rules, err := hosting.New(s)
	if err != nil {
		return nil, err
	}
	p := &Policy{
		hosting: rules, now: now,
		maxFuture: time.Duration(s.MaxFutureSeconds) * time.Second,
		waits:     s.HoldDuration, silent: s.SilentDuration,
		bounds:      bounds,
		keepDeleted: s.IgnoreDeletions, offers: s.ContributorPRs,
		blacklist: map[string]bool{},
	}
	for _, npub := range s.EventBlacklist {
		pubkey, err := hosting.ParseNpub(npub)
		if err != nil {
			return nil, fmt.Errorf("NGIT_EVENT_BLACKLIST names %q: want npubs, comma-separated", npub)
		}
		p.blacklist[pubkey] = true
	}
	if p.hosted, err = hosting.ParseList(s.RepositoryWhitelist); err != nil {
		return nil, fmt.Errorf("NGIT_REPOSITORY_WHITELIST: %w", err)
	}
	if p.refused, err = hosting.ParseList(s.RepositoryBlacklist); err != nil {
		return nil, fmt.Errorf("NGIT_REPOSITORY_BLACKLIST: %w", err)
	}
	if p.waits <= 0 || p.silent <= 0 {
		return nil, errors.New("NGIT_PURGATORY_HOLD and NGIT_PURGATORY_SILENT must be longer than nothing, like 30m and 24h")
	}
	return p, nil
}

// Decision is what one candidate comes to.
type Decision struct {
	Outcome proto.Outcome
	Message string // of the OK, with its NIP-01 prefix

	// Set where Outcome is Rejected.
	Reason   Reason
	Missing  []string  // keys that would heal the rejection, see [Arrivals]
	Remember bool      // keep its id, so that it is not fetched again
	Park     bool      // keep it whole for a while: what it misses may be about to come
	RetryAt  time.Time // when it may be offered again; zero: that is not known

	// Changes of the held events; an entry is never in both.
	Hold []*held.Entry // to be written
	Drop []Dropped     // to be deleted

	// Removes: the event was accepted, and leaves the log.
	Removes bool

	// Next are candidates to be decided right after this one, because of it.
	Next []*Candidate

	dropped map[string]bool   // keys of Drop
	leaves  map[string]string // ids of accepted announcements that stand for nothing any more, and their identifiers
}

// MayChange reports whether a rejection is for something that may change: what the event misses may
// come, and what is crowded may have room again.
func (d Decision) MayChange() bool {
	return d.Outcome == proto.Rejected && (len(d.Missing) > 0 || d.Reason == ReasonCrowded)
}

// Dropped is a held event that goes.
type Dropped struct {
	Entry    *held.Entry
	Remember string // reason to remember it by, so that it is not fetched again; "": forgotten
	Evicted  bool   // it had to make room
}

// Decide decides one candidate. It is pure but for the clock, which it reads for expirations and
// for the times in held entries. An error is one of reading; nothing was decided then.
func (p *Policy) Decide(k Knowledge, c *Candidate) (Decision, error) {
	d, err := p.decide(k, c)
	if err == nil && concerns(c, &d) {
		d, err = p.conclude(k, c, d)
	}
	if err != nil {
		return Decision{}, fmt.Errorf("decide event %s of kind %d: %w", c.Event.ID, c.Event.Kind, err)
	}
	return d, nil
}

func (p *Policy) decide(k Knowledge, c *Candidate) (Decision, error) {
	switch c.Action {
	case proto.ActionRelease:
		return p.release(k, c)
	case proto.ActionExpire:
		return p.expire(k, c)
	case proto.ActionExtend:
		return p.extend(k, c), nil
	case proto.ActionRemove:
		return p.remove(k, c)
	}
	if p.blacklist[c.Event.PubKey] {
		return rejected(ReasonBlacklisted, messageUnwelcome), nil
	}
	if d, known, err := p.known(k, c); known || err != nil {
		return d, err
	}
	if d, refused := p.refuse(c); refused {
		return d, nil
	}
	return p.byKind(k, c)
}

// known answers for events that were here before (policy.md, third check).
func (p *Policy) known(k Knowledge, c *Candidate) (Decision, bool, error) {
	_, accepted, err := k.AcceptedKind(c.Event.ID)
	if err != nil {
		return Decision{}, false, err
	}
	entry := k.Held().ByID(c.Event.ID)
	if accepted {
		d := duplicate(messageKnown)
		if entry != nil {
			// A crash between the two commits of a release left the entry behind.
			d.drop("", entry)
		}
		return d, true, nil
	}
	if entry != nil {
		d := duplicate(proto.MessagePurgatory)
		if entry.Phase == proto.PhaseSilent && (c.Lane == proto.LaneUser || c.Source == proto.SourceImport) {
			// Its time was over; submitted again it gets a new chance.
			d.Hold = []*held.Entry{p.revived(entry)}
		}
		return d, true, nil
	}
	deleted, err := k.Deleted(c.Event)
	if err != nil {
		return Decision{}, false, err
	}
	if deleted {
		return rejected(ReasonDeleted, messageDeleted), true, nil
	}
	if c.Source.Synced() && !c.Again {
		if message, before := k.RejectedBefore(c.Event.ID); before {
			return Decision{Outcome: proto.Rejected, Message: message, Reason: ReasonRejectedBefore}, true, nil
		}
	}
	return Decision{}, false, nil
}

// refuse answers for events that can be refused by looking at nothing else.
func (p *Policy) refuse(c *Candidate) (Decision, bool) {
	if d, large := tooLarge(c); large {
		return d, true
	}
	if p.hasExpired(c) {
		return rejected(ReasonExpired, messageExpired), true
	}
	if isProtected(c) {
		return rejected(ReasonProtected, messageProtected), true
	}
	if nostr.IsEphemeralKind(c.Event.Kind) {
		return forgotten(ReasonEphemeral, "invalid: ephemeral events are not stored"), true
	}
	if c.Event.CreatedAt.Time().After(p.now().Add(p.maxFuture)) {
		return forgotten(ReasonFuture, "invalid: created_at is too far in the future"), true
	}
	return Decision{}, false
}

func (p *Policy) byKind(k Knowledge, c *Candidate) (Decision, error) {
	switch c.Event.Kind {
	case nostr.KindAnnouncement:
		return p.announcement(k, c)
	case nostr.KindState:
		return p.state(k, c)
	case nostr.KindPR, nostr.KindPRUpdate:
		return p.pullRequest(k, c)
	case nostr.KindDeletion:
		return p.deletion(k, c)
	case nostr.KindUserGraspList:
		return p.replaceable(k, c, func() (Decision, error) { return accepted(), nil })
	}
	return p.replaceable(k, c, func() (Decision, error) { return p.referenced(k, c) })
}

// replaceable lets only the newest event of an address pass on to otherwise (policy.md,
// Replaceables).
func (p *Policy) replaceable(k Knowledge, c *Candidate, otherwise func() (Decision, error)) (Decision, error) {
	superseded, err := isSuperseded(k, c.Event)
	if err != nil {
		return Decision{}, err
	}
	if superseded {
		return duplicate(messageNewer), nil
	}
	return otherwise()
}

// isProtected reports whether a candidate is a protected event (NIP-70) that may not be taken, or a
// repost of one. A protected event is taken from its author only, on an authenticated connection:
// the gateway has seen to that where it comes from a user. What another relay brings is not that.
// An operator who imports brings what the author has given to a server of theirs, else a back-up
// would lose it.
func isProtected(c *Candidate) bool {
	fromAuthor := c.Lane == proto.LaneUser || c.Lane == proto.LaneRelease || c.Source == proto.SourceImport
	return nip70.IsProtected(*c.Event) && !fromAuthor || nip70.HasEmbeddedProtected(*c.Event)
}

// isSuperseded reports whether the log has given the place of this event to another. That has to be
// what every index of the log says, whenever it reads it: an older event would take the newer one's
// message in the log, and only who reads the log later would have it.
func isSuperseded(k Knowledge, ev *nostr.Event) (bool, error) {
	address, ok := nostr.AddressOf(ev)
	if !ok {
		return false, nil
	}
	holder, held, err := k.Holder(address)
	if err != nil || !held {
		return false, err
	}
	here, err := eventdb.EntryOf(ev)
	return here.Compare(holder) >= 0, err
}

// Messages that more than one rule gives.
const (
	messageKnown     = "duplicate: this event is here already"
	messageNewer     = "duplicate: a newer event is in its place, or one as old of lower id"
	messageUnwelcome = "blocked: this author is not welcome here"
	messageDeleted   = "blocked: its author has asked for its deletion"
	messageExpired   = "invalid: the event has expired"
	messageProtected = "blocked: protected events (NIP-70) are taken only from their authors"
)

func accepted() Decision { return Decision{Outcome: proto.Accepted} }

func duplicate(message string) Decision { return Decision{Outcome: proto.Duplicate, Message: message} }

// rejected is for good: the event is remembered.
func rejected(reason Reason, message string) Decision {
	return Decision{Outcome: proto.Rejected, Reason: reason, Message: message, Remember: true}
}

// forgotten rejects what may be right another time, or what no relay keeps.
func forgotten(reason Reason, message string) Decision {
	return Decision{Outcome: proto.Rejected, Reason: reason, Message: message}
}

// Later rejects what is welcome at another time. It is not remembered.
func Later(reason Reason, message string, at time.Time) Decision {
	d := forgotten(reason, message)
	d.RetryAt = at
	return d
}

// healable rejects an event whose reason may go away when one of the missing keys arrives.
func healable(reason Reason, message string, missing []string) Decision {
	d := rejected(reason, message)
	d.Missing, d.Park = missing, true
	return d
}

func invalid(err error) Decision { return rejected(ReasonInvalid, "invalid: "+err.Error()) }
