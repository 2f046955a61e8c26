package policy

import (
	"maps"
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
	before, err := k.AcceptedAt(a.Ref.Address())
	if err != nil {
		return Decision{}, err
	}
	var replaced []*held.Entry
	for _, e := range k.Held().At(a.Ref.Address()) {
		switch {
		case e.Event.ID == c.Event.ID: // it is released
		case !nostr.Replaces(c.Event, e.Event):
			return duplicate(messageNewer), nil
		default:
			replaced = append(replaced, e)
		}
	}
	if !p.hosting.Lists(a) {
		return p.elsewhere(k, c, a, before, replaced)
	}
	if allowed, err := p.mayBeHosted(k, a.Ref); !allowed || err != nil {
		// Another announcement of the identifier may name its author as a maintainer.
		d := rejected("not_whitelisted", "blocked: this repository is not on the list of those that are hosted here")
		d.Missing = []string{MissingAnnouncement(a.Ref.Identifier)}
		return d, err
	}
	if before == nil || !p.keeps(before, p.hosting.Lists) {
		return p.hold(k, c, a.Ref.Identifier, proto.PhaseWaiting, replaced...)
	}
	d := accepted()
	d.drop("", replaced...)
	return d, nil
}

// mayBeHosted reports whether the whitelist allows a repository. That of a maintainer of one that
// is hosted here is always allowed; to be archived makes no maintainer welcome.
func (p *Policy) mayBeHosted(k Knowledge, ref nostr.RepoRef) (bool, error) {
	if p.hosted.Empty() || p.hosted.Has(ref) {
		return true, nil
	}
	found, _, err := reaches(k, ref, inLog|inHold, func(v voice) bool {
		return (v.entry == nil || v.entry.Phase == proto.PhaseWaiting) && p.hosting.Lists(v.Announcement)
	})
	return found, err
}

// elsewhere decides an announcement that does not list us. What its author held until now vouches
// for nothing: it never had git data here. If it replaces one by which we host the repository, the
// log learns where that went, and our hosting ends, unless it is archived from then on. Otherwise
// it counts as a maintainer's where accepted announcements of others say so. One that is archived
// is held for its git data, unless it replaces one that is; any other waits with the held ones
// whose authors name its own.
func (p *Policy) elsewhere(k Knowledge, c *Candidate, a *nostr.Announcement, before *nostr.Event, replaced []*held.Entry) (d Decision, err error) {
	naming, err := k.AcceptedNaming(a.Ref.Identifier, a.Ref.PubKey)
	if err != nil {
		return Decision{}, err
	}
	moved := before != nil && p.keeps(before, p.hosting.Lists)
	archived := p.hosting.Archives(a)
	vouched, _, _ := reaches(k, a.Ref, inHold, func(v voice) bool { return v.entry.Phase != proto.PhaseVouched })
	switch {
	case moved && !archived:
		d = accepted()
		d.leaves = map[string]string{before.ID: a.Ref.Identifier}
	case moved, len(naming) > 0, archived && before != nil && p.keeps(before, p.hosting.Keeps):
		d = accepted()
	case archived:
		return p.hold(k, c, a.Ref.Identifier, proto.PhaseWaiting, replaced...)
	case vouched:
		d, err = p.hold(k, c, a.Ref.Identifier, proto.PhaseVouched, replaced...)
	default:
		d = healable("service_not_listed", "invalid: the announcement must list this service in its clone and relays tags",
			MissingAnnouncement(a.Ref.Identifier))
	}
	d.drop("", replaced...)
	return d, err
}

// conclude adds to a decision what follows from it for other held events. With an announcement that
// goes, by whichever rule, go the held announcements for which no other vouches, and
// the held states of an identifier that is announced no more. With one that is accepted, those that
// it vouches for are released.
func (p *Policy) conclude(k Knowledge, c *Candidate, d Decision) (Decision, error) {
	var brings *nostr.Announcement // that is accepted
	if d.Outcome == proto.Accepted && c.Event.Kind == nostr.KindAnnouncement {
		brings, _ = nostr.ParseAnnouncement(c.Event)
	}
	if brings == nil && len(d.Drop)+len(d.leaves) == 0 {
		return d, nil
	}
	gone, left := map[string]bool{}, map[string]string{} // ids; identifiers, and how their states are remembered
	for id, identifier := range d.leaves {
		gone[id], left[identifier] = true, ""
	}
	for _, x := range d.Drop {
		if e := x.Entry; e.Announcement != nil && (brings == nil || e.Event.ID != c.Event.ID) {
			gone[e.Event.ID], left[e.Identifier] = true, ""
			if x.Remember == rememberExpired {
				left[e.Identifier] = rememberExpired
			}
		}
	}
	for _, identifier := range slices.Sorted(maps.Keys(left)) {
		if err := d.dropWith(k, identifier, left[identifier], gone, brings); err != nil {
			return d, err
		}
	}
	d.Hold = slices.DeleteFunc(d.Hold, func(e *held.Entry) bool { return d.dropped[e.Key] })
	if brings == nil {
		return d, nil
	}
	for _, maintainer := range brings.Maintainers {
		for _, e := range k.Held().At(nostr.RepoRef{PubKey: maintainer, Identifier: brings.Ref.Identifier}.Address()) {
			if !d.dropped[e.Key] && (e.Phase == proto.PhaseVouched || p.hosting.Archives(e.Announcement)) {
				d.Next = append(d.Next, Release(e.Event))
			}
		}
	}
	return d, nil
}

// dropWith drops what is held of an identifier only because of announcements that are gone.
func (d *Decision) dropWith(k Knowledge, identifier, remember string, gone map[string]bool, brings *nostr.Announcement) error {
	announcements := k.Held().Announcements(identifier)
	if len(announcements) > maxSteps+len(gone) {
		return nil // enough remain, and which of them are vouched for is not certain
	}
	var remain []*held.Entry
	for _, e := range slices.Concat(announcements, d.Hold) {
		if e.Announcement != nil && e.Identifier == identifier && !gone[e.Event.ID] {
			remain = append(remain, e)
		}
	}
	vouched, certain, err := vouchedFor(k, remain, brings)
	if err != nil {
		return err
	}
	announced := brings != nil && brings.Ref.Identifier == identifier && len(d.leaves) == 0
	for _, e := range remain {
		if e.Phase == proto.PhaseVouched && certain && !vouched[e.Event.PubKey] {
			d.drop("", e)
			continue
		}
		announced = true
	}
	if announced {
		return nil
	}
	accepted, err := k.Announces(identifier, gone)
	if accepted || err != nil {
		return err
	}
	for _, e := range k.Held().OfIdentifier(identifier) {
		if e.Event.Kind == nostr.KindState {
			d.drop(remember, e)
		}
	}
	return nil
}

// vouchedFor returns the authors of held announcements of an identifier who are maintainers: those
// whom an accepted announcement names, or a held one that waits for git data of its own, or brings,
// and those whom these name. certain is false where there are too many.
func vouchedFor(k Knowledge, entries []*held.Entry, brings *nostr.Announcement) (keys map[string]bool, certain bool, err error) {
	keys = map[string]bool{}
	var queue []*nostr.Announcement
	waiting := map[string]*nostr.Announcement{} // by author, until they are vouched for
	for _, e := range entries {
		if e.Phase != proto.PhaseVouched {
			queue = append(queue, e.Announcement)
			continue
		}
		naming, err := k.AcceptedNaming(e.Identifier, e.Event.PubKey)
		if err != nil {
			return nil, false, err
		}
		if waiting[e.Event.PubKey] = e.Announcement; len(naming) > 0 { // its release comes
			keys[e.Event.PubKey] = true
			queue = append(queue, e.Announcement)
		}
	}
	if brings != nil {
		queue = append(queue, brings)
	}
	for steps := 0; len(queue) > 0; queue = queue[1:] {
		if steps += len(queue[0].Maintainers); steps > maxSteps {
			return nil, false, nil
		}
		for _, maintainer := range queue[0].Maintainers {
			if a := waiting[maintainer]; a != nil && !keys[maintainer] {
				keys[maintainer] = true
				queue = append(queue, a)
			}
		}
	}
	return keys, true, nil
}
