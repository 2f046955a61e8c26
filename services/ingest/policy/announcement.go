package policy

import (
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// announcement decides kind 30617.
func (p *Policy) announcement(k Knowledge, c *Candidate) (Decision, error) {
	a, err := nostr.ParseAnnouncement(c.Event)
	if err != nil {
		return invalid(err), nil
	}
	if p.refused.Has(a.Ref) {
		return rejected(ReasonBlacklisted, messageRefused), nil
	}
	mine, err := ownAnnouncements(k, a.Ref)
	if err != nil {
		return Decision{}, err
	}
	superseded, err := isSuperseded(k, c.Event)
	if err != nil {
		return Decision{}, err
	}
	if superseded || mine.supersede(c.Event) {
		return duplicate(messageNewer), nil
	}
	if !p.hosting.Lists(a) {
		return p.elsewhere(k, c, a, mine)
	}
	if allowed, err := p.mayBeHosted(k, a.Ref); !allowed || err != nil {
		return notWhitelisted(a.Ref), err
	}
	if mine.accepted == nil || !p.listsUs(mine.accepted) {
		return p.hold(k, c, a.Ref.Identifier, proto.PhaseWaiting, mine.held...)
	}
	d := accepted()
	d.drop("", mine.held...)
	return d, nil
}

// mayBeHosted reports whether the whitelist allows a repository. That of a maintainer of one that
// is hosted here is always allowed; to be archived makes nobody's maintainers welcome.
func (p *Policy) mayBeHosted(k Knowledge, ref nostr.RepoRef) (bool, error) {
	if p.hosted.Empty() || p.hosted.Has(ref) {
		return true, nil
	}
	return p.speaksFor(k, ref.PubKey, ref.Identifier, mayVouch{kept: p.hosting.Lists, waiting: true})
}

// notWhitelisted rejects an announcement until another of its identifier arrives, which may name
// its author as a maintainer.
func notWhitelisted(ref nostr.RepoRef) Decision {
	d := rejected(ReasonNotWhitelisted, messageNotHosted)
	d.Missing = []string{MissingAnnouncement(ref.Identifier)}
	return d
}

const (
	messageRefused   = "blocked: this repository is not welcome here"
	messageNotHosted = "blocked: this repository is not on the list of those that are hosted here"
	messageNotListed = "invalid: the announcement must list this service in its clone and relays tags"
)

// elsewhere decides an announcement that does not list us. What its author held until now vouches
// for nothing: it never had git data here. If it replaces one by which we host the repository, the
// log learns where that went, and our hosting ends, unless it is archived from then on. Otherwise
// it counts as a maintainer's where accepted announcements of others say so. One that is archived
// is held for its git data, unless it replaces one that is; any other waits with the held ones
// whose authors name its own.
func (p *Policy) elsewhere(k Knowledge, c *Candidate, a *nostr.Announcement, mine own) (d Decision, err error) {
	moved := mine.accepted != nil && p.listsUs(mine.accepted)
	named, err := isNamedByAccepted(k, a.Ref.PubKey, a.Ref.Identifier)
	if err != nil {
		return Decision{}, err
	}
	archived := p.hosting.Archives(a)
	vouched, _ := from(a.Ref.PubKey, a.Ref.Identifier).isVouchedFor(k, nil)
	switch {
	case moved && !archived:
		d = accepted()
		d.leaves = map[string]string{mine.accepted.ID: a.Ref.Identifier}
	case moved, named, archived && mine.accepted != nil && p.keeps(mine.accepted):
		d = accepted()
	case archived:
		return p.hold(k, c, a.Ref.Identifier, proto.PhaseWaiting, mine.held...)
	case vouched:
		d, err = p.hold(k, c, a.Ref.Identifier, proto.PhaseVouched, mine.held...)
	default:
		d = healable(ReasonNotListed, messageNotListed, []string{MissingAnnouncement(a.Ref.Identifier)})
	}
	d.drop("", mine.held...)
	return d, err
}

// releaseAnnouncement decides a held announcement whose repository has git data now.
func (p *Policy) releaseAnnouncement(k Knowledge, entry *held.Entry) (Decision, error) {
	a := entry.Announcement
	switch {
	case p.refused.Has(a.Ref):
		return rejected(ReasonBlacklisted, messageRefused), nil
	case p.hosting.Archives(a):
		return accepted(), nil
	case !p.hosting.Lists(a):
		return rejected(ReasonNotListed, messageNotListed), nil
	}
	if allowed, err := p.mayBeHosted(k, a.Ref); !allowed || err != nil {
		return notWhitelisted(a.Ref), err
	}
	return accepted(), nil
}

// releaseVouched decides a held announcement of a maintainer again, because an announcement was
// accepted that may name its author, or a new writer begins. It stays while held announcements
// vouch for it.
func (p *Policy) releaseVouched(k Knowledge, entry *held.Entry) (d Decision, stays bool, err error) {
	if p.refused.Has(entry.Announcement.Ref) {
		return rejected(ReasonBlacklisted, messageRefused), false, nil
	}
	named, err := isNamedByAccepted(k, entry.Event.PubKey, entry.Identifier)
	if named || err != nil {
		return accepted(), false, err
	}
	if vouched, _ := from(entry.Event.PubKey, entry.Identifier).isVouchedFor(k, nil); vouched {
		return Decision{Outcome: proto.Done}, true, nil
	}
	return forgotten(ReasonNotListed, messageNotListed), false, nil
}

// own is what is known of the announcements of one author and identifier.
type own struct {
	accepted *nostr.Event
	held     []*held.Entry
}

func ownAnnouncements(k Knowledge, ref nostr.RepoRef) (own, error) {
	have, err := k.AcceptedAt(ref.Address())
	return own{accepted: have, held: k.Held().At(ref.Address())}, err
}

// supersede reports whether one of them takes the place of ev.
func (o own) supersede(ev *nostr.Event) bool {
	return o.accepted != nil && !nostr.Replaces(ev, o.accepted) ||
		slices.ContainsFunc(o.held, func(e *held.Entry) bool { return !nostr.Replaces(ev, e.Event) })
}

// revived returns the entry with its clock started anew.
func (p *Policy) revived(entry *held.Entry) *held.Entry {
	again := *entry
	if again.Phase != proto.PhaseVouched {
		again.Phase = proto.PhaseWaiting
	}
	again.ExpiresAt = p.now().UTC().Add(p.lifetime(again.Phase))
	return &again
}

// drop adds entries to what is deleted. remember is the reason to remember them by, or "".
func (d *Decision) drop(remember string, entries ...*held.Entry) {
	for _, e := range entries {
		d.add(Dropped{Entry: e, Remember: remember})
	}
}

func (d *Decision) add(x Dropped) {
	if d.dropped[x.Entry.Key] {
		return
	}
	if d.dropped == nil {
		d.dropped = map[string]bool{}
	}
	d.dropped[x.Entry.Key] = true
	d.Drop = append(d.Drop, x)
}
