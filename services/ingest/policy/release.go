package policy

import (
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Reasons that held events are remembered by.
const (
	rememberExpired    = "previously expired"
	rememberSuperseded = "superseded"
	rememberDeleted    = "deleted by its author"
)

// release decides a held event again, now that its git data is there. Whatever comes out, the entry
// goes.
func (p *Policy) release(k Knowledge, c *Candidate) (Decision, error) {
	entry := k.Held().ByID(c.Event.ID)
	have, err := k.Accepted(c.Event.ID)
	if err != nil {
		return Decision{}, err
	}
	if have != nil || entry == nil {
		return releasedBefore(have != nil, entry), nil
	}
	deleted, err := k.Deleted(c.Event)
	if err != nil {
		return Decision{}, err
	}
	superseded, err := isSuperseded(k, c.Event)
	if err != nil {
		return Decision{}, err
	}
	var d Decision
	switch {
	case p.blacklist[c.Event.PubKey]:
		d = rejected(ReasonBlacklisted, messageUnwelcome)
	case deleted:
		d = rejected(ReasonDeleted, messageDeleted)
	case p.hasExpired(c):
		d = rejected(ReasonExpired, messageExpired)
	case isProtected(c):
		d = rejected(ReasonProtected, messageProtected)
	case superseded:
		d = duplicate(messageNewer)
		d.drop(rememberSuperseded, entry)
	case entry.Phase == proto.PhaseVouched:
		var stays bool
		if d, stays, err = p.releaseVouched(k, entry); stays || err != nil {
			return d, err
		}
	default:
		if d, err = p.releaseByKind(k, c, entry); err != nil {
			return Decision{}, err
		}
	}
	d.drop("", entry) // a rejection is remembered by itself
	return d, nil
}

// releasedBefore answers where there is nothing to release: the event is accepted, or gone. Asked
// twice is answered twice.
func releasedBefore(isAccepted bool, entry *held.Entry) Decision {
	if !isAccepted {
		return forgotten(ReasonNotHeld, "invalid: the event is not held any more")
	}
	d := duplicate(messageKnown)
	if entry != nil {
		// A crash between the commits of the log and of the held events left the entry behind.
		d.drop("", entry)
	}
	return d
}

func (p *Policy) releaseByKind(k Knowledge, c *Candidate, entry *held.Entry) (Decision, error) {
	switch entry.Event.Kind {
	case nostr.KindAnnouncement:
		return p.releaseAnnouncement(k, entry)
	case nostr.KindState:
		return p.releaseState(k, entry)
	}
	return p.releasePullRequest(k, c, entry)
}

func (p *Policy) hasExpired(c *Candidate) bool {
	at := eventdb.Expiration(c.Event)
	return at != 0 && int64(at) < p.now().Unix() // its second is still alive, as at the front door and in the index
}

// expire ends the time of a held event: a waiting announcement falls silent, everything else goes.
// Purgatory may give a reason to end it early; without one, an entry whose clock was started anew
// in the meantime stays.
func (p *Policy) expire(k Knowledge, c *Candidate) (Decision, error) {
	d := Decision{Outcome: proto.Done}
	entry := k.Held().ByID(c.Event.ID)
	if entry == nil {
		return d, nil
	}
	now := p.now().UTC()
	if c.Reason == "" && now.Add(p.tolerance()).Before(entry.ExpiresAt) {
		return d, nil
	}
	switch {
	case entry.Phase == proto.PhaseVouched:
		return p.expireVouched(k, entry)
	case entry.Announcement != nil && entry.Phase == proto.PhaseWaiting:
		silent := *entry
		silent.Phase, silent.ExpiresAt = proto.PhaseSilent, now.Add(p.silent)
		d.Hold = []*held.Entry{&silent}
		return d, nil
	}
	reason := rememberExpired
	if c.Reason != "" {
		reason = c.Reason
	}
	d.drop(reason, entry)
	return d, nil
}

// expireVouched looks again at an announcement that is held with others': it has no time of its
// own. What goes may come again with the next sync.
func (p *Policy) expireVouched(k Knowledge, entry *held.Entry) (Decision, error) {
	d := Decision{Outcome: proto.Done}
	named, err := isNamedByAccepted(k, entry.Event.PubKey, entry.Identifier)
	if err != nil {
		return Decision{}, err
	}
	if named {
		d.Next = []*Candidate{OfHeld(entry.Event, proto.ActionRelease)}
		return d, nil
	}
	if vouched, _ := from(entry.Event.PubKey, entry.Identifier).isVouchedFor(k, nil); vouched {
		d.Hold = []*held.Entry{p.revived(entry)}
		return d, nil
	}
	d.drop("", entry)
	return d, nil
}

// tolerance is how far the clocks of purgatory and ingest may differ without an expiry being asked
// for in vain.
func (p *Policy) tolerance() time.Duration { return min(p.waits/10, 5*time.Second) }

// extend starts the clock of a held event anew.
func (p *Policy) extend(k Knowledge, c *Candidate) Decision {
	d := Decision{Outcome: proto.Done}
	if entry := k.Held().ByID(c.Event.ID); entry != nil {
		d.Hold = []*held.Entry{p.revived(entry)}
	}
	return d
}

// Over reports whether a held event is left over: accepted by now, superseded by what is, or
// deleted. Only a crash between two commits leaves such entries behind.
func Over(k Knowledge, entry *held.Entry) (bool, error) {
	have, err := k.Accepted(entry.Event.ID)
	if have != nil || err != nil {
		return have != nil, err
	}
	superseded, err := isSuperseded(k, entry.Event)
	if superseded || err != nil {
		return superseded, err
	}
	return k.Deleted(entry.Event)
}
