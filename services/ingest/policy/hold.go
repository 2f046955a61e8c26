package policy

import (
	"cmp"
	"slices"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// crowdedAgain is when an event may be offered again for which purgatory has no room.
const crowdedAgain = 10 * time.Minute

// hold takes the event of a candidate into purgatory, under an identifier, in place of what it
// replaces. It drops what has to make room. Where there is no room the event is refused, which is
// not remembered, and nothing is dropped. An event that is released has waited: it is accepted now.
// Only an announcement that was held for others' sake has no git data of its own yet.
func (p *Policy) hold(k Knowledge, c *Candidate, identifier string, phase proto.Phase,
	replaced ...*held.Entry) (d Decision) {
	if entry := k.Held().ByID(c.Event.ID); entry != nil {
		if entry.Phase == proto.PhaseVouched || phase == proto.PhaseVouched {
			return Decision{Outcome: proto.Done, Hold: []*held.Entry{p.begin(phase, *entry)}}
		}
		d = accepted()
		d.drop("", replaced...)
		return d
	}
	reserved := p.bounds.Reserved > 0 && p.isServed(k, nostr.RepoRef{PubKey: c.Event.PubKey, Identifier: identifier})
	entry, err := held.Named(proto.Held{
		Event: c.Event, Identifier: identifier, Source: c.Source, Relay: c.Relay, Client: c.Client, Trace: c.Trace,
		Reserved: reserved, HeldAt: p.now().UTC(),
	}, c.Parsed)
	if err != nil {
		return invalid(err)
	}
	entry = p.begin(phase, *entry)
	evicted, full := k.Room().Admit(p.bounds, entry, replaced)
	if full == "" && !standsWithout(k, entry, evicted) {
		full = fullInAll
	}
	if full != "" {
		d = forgotten("crowded", full)
		d.RetryAt = p.now().Add(crowdedAgain).Unix()
		return d
	}
	d = Decision{Outcome: proto.HeldBack, Message: proto.MessagePurgatory, Hold: []*held.Entry{entry}}
	d.drop("", replaced...)
	d.drop(Evicted, evicted...)
	return d
}

// standsWithout reports whether a new entry may still be held when others had to make room for it:
// the announcement that it depends on may be among them.
func standsWithout(k Knowledge, e *held.Entry, evicted []*held.Entry) bool {
	gone := map[string]bool{}
	for _, other := range evicted {
		gone[other.Event.ID] = true
		if e.Phase == proto.PhaseVouched && other.Announcement != nil && other.Identifier == e.Identifier {
			return false
		}
	}
	return e.Event.Kind != nostr.KindState || len(gone) == 0 || isAnnounced(k, e.Identifier, gone)
}

// silentDuration is how long an announcement is kept without its repository (proto.PhaseSilent).
const silentDuration = 24 * time.Hour

// begin returns an entry that begins a phase now, and when it must be looked at again.
func (p *Policy) begin(phase proto.Phase, e held.Entry) *held.Entry {
	lasts := p.settings.HoldDuration
	switch phase {
	case proto.PhaseSilent:
		lasts = silentDuration
	case proto.PhaseVouched:
		// As long as those that vouch for it can last without anything happening.
		lasts = p.settings.HoldDuration + silentDuration
	}
	e.Phase, e.ExpiresAt = phase, p.now().UTC().Add(lasts)
	return &e
}

// restarted returns the entry with its clock at zero again.
func (p *Policy) restarted(entry *held.Entry) *held.Entry {
	phase := proto.PhaseWaiting
	if entry.Phase == proto.PhaseVouched {
		phase = entry.Phase
	}
	return p.begin(phase, *entry)
}

// expire ends the time of a held event: a waiting announcement falls silent, one that is held for
// others' sake is decided again, everything else goes. Purgatory may give a reason to end it early;
// without one, an entry whose clock was restarted in the meantime stays.
func (p *Policy) expire(k Knowledge, c *Candidate, entry *held.Entry) Decision {
	d := Decision{Outcome: proto.Done}
	tolerance := min(p.settings.HoldDuration/10, 5*time.Second) // purgatory's clock may differ so much
	switch {
	case entry == nil, c.Reason == "" && p.now().Add(tolerance).Before(entry.ExpiresAt):
	case entry.Phase == proto.PhaseVouched:
		return p.judge(k, Release(entry.Event), entry)
	case entry.Announcement != nil && entry.Phase == proto.PhaseWaiting:
		d.Hold = []*held.Entry{p.begin(proto.PhaseSilent, *entry)}
	default:
		d.drop(cmp.Or(c.Reason, RememberExpired), entry)
	}
	return d
}

// Over reports whether a held event is left over: accepted by now, superseded by what is, or
// deleted. Only a crash between two commits leaves such entries behind.
func Over(k Knowledge, entry *held.Entry) bool {
	_, accepted := k.AcceptedKind(entry.Event.ID)
	return accepted || k.Superseded(entry.Event) || k.Deleted(entry.Event)
}

// isNeeded reports whether an accepted event has a place here although a repository that it was for
// has been removed: a state, if its author speaks for a repository that is here or waits; a pull
// request that is offered below /prs/ (GRASP-06), always, for its commit lies in its author's own
// repository; everything else, if it would be accepted now, or names a repository whose owner
// speaks for one that is here or waits: a pull request for a maintainer is one for the repository,
// and an owner who comes back finds what others wrote. What expires goes by itself: indexes cannot
// take it out (eventdb.Record). What names too many repositories to look at is needed.
func (p *Policy) isNeeded(k Knowledge, c *Candidate) bool {
	ev := c.Event
	if eventdb.Expiration(ev) != 0 || nostr.KindOf(ev.Kind).FromAnyone {
		return true
	}
	switch ev.Kind {
	case nostr.KindState:
		return p.speaksHere(k, nostr.RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()})
	case nostr.KindAnnouncement, nostr.KindDeletion, nostr.KindVanish:
		return true // they stand for themselves
	case nostr.KindPR, nostr.KindPRUpdate:
		pr, err := nostr.ParsePullRequest(ev)
		if err == nil && len(pr.PRServiceIdentifiers(p.hosting.Domain())) > 0 {
			return true
		}
	}
	refs := reposOf(ev)
	return p.referenced(k, c).Outcome == proto.Accepted || len(refs) > maxTagged ||
		slices.ContainsFunc(refs, func(ref nostr.RepoRef) bool { return p.speaksHere(k, ref) })
}
