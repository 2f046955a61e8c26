package policy

import (
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// hold takes the event of a candidate into purgatory, under an identifier, in place of what it
// replaces. It drops what has to make room. Where there is no room the event is refused, which is
// not remembered, and nothing is dropped. An event that is released has waited: it is accepted now.
// Only an announcement that was held for others' sake has no git data of its own yet.
func (p *Policy) hold(k Knowledge, c *Candidate, identifier string, phase proto.Phase, replaced ...*held.Entry) (d Decision, err error) {
	if entry := k.Held().ByID(c.Event.ID); entry != nil {
		if entry.Phase != proto.PhaseVouched && phase == proto.PhaseWaiting {
			d = accepted()
			d.drop("", replaced...)
			return d, nil
		}
		return Decision{Outcome: proto.Done, Hold: []*held.Entry{p.begin(phase, *entry)}}, nil
	}
	reserved, err := p.isServed(k, nostr.RepoRef{PubKey: c.Event.PubKey, Identifier: identifier})
	if err != nil {
		return Decision{}, err
	}
	entry, err := held.NewEntry(proto.Held{
		Event: c.Event, Identifier: identifier, Source: c.Source, Relay: c.Relay, Client: c.Client,
		Reserved: reserved && p.bounds.Reserved > 0, HeldAt: p.now().UTC(),
	})
	if err != nil {
		return Decision{}, err
	}
	entry = p.begin(phase, *entry)
	evicted, full := k.Room().Admit(p.bounds, entry, replaced)
	stands, err := standsWithout(k, entry, evicted)
	switch {
	case err != nil:
		return Decision{}, err
	case full != "":
		return forgotten("crowded", full), nil
	case !stands:
		return forgotten("crowded", fullInAll), nil
	}
	d = Decision{Outcome: proto.HeldBack, Message: proto.MessagePurgatory, Hold: []*held.Entry{entry}}
	d.drop("", replaced...)
	for _, e := range evicted {
		d.drop("", e)
		d.Drop[len(d.Drop)-1].Evicted = true
	}
	return d, nil
}

// standsWithout reports whether a new entry may still be held when others had to make room for it:
// the announcement that it depends on may be among them.
func standsWithout(k Knowledge, e *held.Entry, evicted []*held.Entry) (bool, error) {
	gone := map[string]bool{}
	for _, other := range evicted {
		gone[other.Event.ID] = true
		if e.Phase == proto.PhaseVouched && other.Announcement != nil && other.Identifier == e.Identifier {
			return false, nil
		}
	}
	if e.Event.Kind != nostr.KindState || len(gone) == 0 {
		return true, nil
	}
	return isAnnounced(k, e.Identifier, gone)
}

// begin returns an entry that begins a phase now, and when it must be looked at again.
func (p *Policy) begin(phase proto.Phase, e held.Entry) *held.Entry {
	lasts := p.settings.HoldDuration
	switch phase {
	case proto.PhaseSilent:
		lasts = p.settings.SilentDuration
	case proto.PhaseVouched:
		// As long as those that vouch for it can last without anything happening.
		lasts = p.settings.HoldDuration + p.settings.SilentDuration
	}
	e.Phase, e.ExpiresAt = phase, p.now().UTC().Add(lasts)
	return &e
}

// restarted returns the entry with its clock at zero again.
func (p *Policy) restarted(entry *held.Entry) *held.Entry {
	if entry.Phase == proto.PhaseVouched {
		return p.begin(proto.PhaseVouched, *entry)
	}
	return p.begin(proto.PhaseWaiting, *entry)
}

// expire ends the time of a held event: a waiting announcement falls silent, one that is held for
// others' sake is decided again, everything else goes. Purgatory may give a reason to end it early;
// without one, an entry whose clock was restarted in the meantime stays.
func (p *Policy) expire(k Knowledge, c *Candidate, entry *held.Entry) (Decision, error) {
	d := Decision{Outcome: proto.Done}
	reason := c.Reason
	tolerance := min(p.settings.HoldDuration/10, 5*time.Second) // purgatory's clock may differ so much
	if entry == nil || reason == "" && p.now().Add(tolerance).Before(entry.ExpiresAt) {
		return d, nil
	}
	switch {
	case entry.Phase == proto.PhaseVouched:
		return p.judge(k, Release(entry.Event), entry)
	case entry.Announcement != nil && entry.Phase == proto.PhaseWaiting:
		d.Hold = []*held.Entry{p.begin(proto.PhaseSilent, *entry)}
		return d, nil
	case reason == "":
		reason = rememberExpired
	}
	d.drop(reason, entry)
	return d, nil
}

// Over reports whether a held event is left over: accepted by now, superseded by what is, or
// deleted. Only a crash between two commits leaves such entries behind.
func Over(k Knowledge, entry *held.Entry) (bool, error) {
	_, accepted, err := k.AcceptedKind(entry.Event.ID)
	if accepted || err != nil {
		return accepted, err
	}
	superseded, err := isSuperseded(k, entry.Event)
	if superseded || err != nil {
		return superseded, err
	}
	return k.Deleted(entry.Event)
}

// remove decides whether an accepted event leaves the log, because a repository that it was for has
// been removed: it does if nothing that is here needs it any more.
func (p *Policy) remove(k Knowledge, c *Candidate) (Decision, error) {
	d := Decision{Outcome: proto.Done, Removes: c.Purge}
	if c.Purge {
		return d, nil
	}
	have, err := k.Accepted(c.Event.ID)
	if have == nil || err != nil {
		return d, err
	}
	needed, err := p.isNeeded(k, c, have)
	d.Removes = !needed && err == nil
	return d, err
}

// isNeeded reports whether an accepted event has a place here: a state, if its author speaks for a
// repository that is here or waits; a pull request that is offered below /prs/ (GRASP-06), always,
// for its commit lies in its author's own repository; everything else, if it would be accepted now,
// or names a repository whose owner speaks for one that is here or waits: a pull request for a
// maintainer is one for the repository, and an owner who comes back finds what others wrote. What
// expires goes by itself: indexes cannot take it out (eventdb.Record). What names too many
// repositories to look at is needed.
func (p *Policy) isNeeded(k Knowledge, c *Candidate, ev *nostr.Event) (bool, error) {
	if eventdb.Expiration(ev) != 0 {
		return true, nil
	}
	switch ev.Kind {
	case nostr.KindState:
		return p.speaksHere(k, nostr.RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()})
	case nostr.KindAnnouncement, nostr.KindDeletion, nostr.KindUserGraspList:
		return true, nil // they stand for themselves
	case nostr.KindPR, nostr.KindPRUpdate:
		pr, err := nostr.ParsePullRequest(ev)
		if err == nil && len(pr.PRServiceIdentifiers(p.hosting.Domain())) > 0 {
			return true, nil
		}
	}
	d, err := p.referenced(k, c)
	if d.Outcome == proto.Accepted || err != nil {
		return true, err
	}
	looked := 0
	for _, address := range nostr.ReferencesOf(ev).Addresses {
		ref, is := address.Repo()
		if !is {
			continue
		}
		if looked++; looked > maxTagged {
			return true, nil
		}
		if here, err := p.speaksHere(k, ref); here || err != nil {
			return here, err
		}
	}
	return false, nil
}
