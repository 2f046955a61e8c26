package policy

import (
	"maps"
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// announcement decides kind 30617. What does not list us replaces what its author held until now,
// which vouches for nothing: it never had git data here. If it replaces one by which we host the
// repository, the log learns where that went, and our hosting ends, unless it is archived from then
// on. Otherwise it counts as a maintainer's where accepted announcements of others say so. One that
// is archived is held for its git data, unless it replaces one that is; any other waits with the
// held ones whose authors name its own.
func (p *Policy) announcement(k Knowledge, c *Candidate) (d Decision) {
	a, err := nostr.ParseAnnouncement(c.Event)
	if err != nil {
		return invalid(err)
	}
	identifier, address := a.Ref.Identifier, a.Ref.Address()
	var replaced []*held.Entry
	for _, e := range k.Held().At(address) {
		switch {
		case e.Event.ID == c.Event.ID: // it is released
		case !nostr.Replaces(c.Event, e.Event):
			return duplicate(messageNewer)
		default:
			replaced = append(replaced, e)
		}
	}
	hosted, kept := "", false // the id of the accepted one that it replaces, if that lists us
	for _, e := range k.Announced(identifier).At(address) {
		if kept = p.hosting.Keeps(e.Announcement); p.hosting.Lists(e.Announcement) {
			hosted = e.Event.ID
		}
	}
	lists, archived := p.hosting.Lists(a), p.hosting.Archives(a)
	switch {
	case lists && !p.mayBeHosted(k, a.Ref):
		// Another announcement of the identifier may name its author as a maintainer.
		return healable("not_whitelisted", "blocked: this repository is not on the list of those that are hosted here",
			MissingAnnouncement(identifier))
	case lists && hosted == "":
		return p.hold(k, c, identifier, proto.PhaseWaiting, replaced...)
	case hosted != "", archived && kept, len(k.Announced(identifier).Naming(identifier, a.Ref.PubKey)) > 0:
		d = accepted()
		if hosted != "" && !lists && !archived {
			d.leaves = map[string]string{hosted: identifier}
		}
	case archived:
		return p.hold(k, c, identifier, proto.PhaseWaiting, replaced...)
	case reaches(k, a.Ref, holds, func(e *held.Entry) bool { return e.Phase != proto.PhaseVouched }) == yes:
		d = p.hold(k, c, identifier, proto.PhaseVouched, replaced...)
	default:
		d = healable("service_not_listed", "invalid: the announcement must list this service in its clone and relays tags",
			MissingAnnouncement(identifier))
	}
	d.drop("", replaced...)
	return d
}

// mayBeHosted reports whether the whitelist allows a repository. That of a maintainer of one that
// is hosted here is always allowed; to be archived makes no maintainer welcome.
func (p *Policy) mayBeHosted(k Knowledge, ref nostr.RepoRef) bool {
	return p.hosted.Empty() || p.hosted.Has(ref) || reaches(k, ref, accepts|holds, func(e *held.Entry) bool {
		return (e.Phase == inLog || e.Phase == proto.PhaseWaiting) && p.hosting.Lists(e.Announcement)
	}) == yes
}

// conclude adds to a decision what follows from it for other held events. With an announcement that
// goes, by whichever rule, go the held announcements for which no other vouches, and
// the held states of an identifier that is announced no more. With one that is accepted, those that
// it vouches for are released.
func (p *Policy) conclude(k Knowledge, c *Candidate, d *Decision) {
	var brings *nostr.Announcement // that is accepted
	if d.Outcome == proto.Accepted && c.Event.Kind == nostr.KindAnnouncement {
		brings, _ = nostr.ParseAnnouncement(c.Event)
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
		d.dropWith(k, identifier, left[identifier], gone, brings)
	}
	d.Hold = slices.DeleteFunc(d.Hold, func(e *held.Entry) bool { return d.dropped[e.Key] })
	if brings == nil {
		return
	}
	for _, maintainer := range brings.Listed {
		for _, e := range k.Held().At(nostr.RepoRef{PubKey: maintainer, Identifier: brings.Ref.Identifier}.Address()) {
			if !d.dropped[e.Key] && (e.Phase == proto.PhaseVouched || p.hosting.Archives(e.Announcement)) {
				d.Next = append(d.Next, Release(e.Event))
			}
		}
	}
}

// dropWith drops what is held of an identifier only because of announcements that are gone.
func (d *Decision) dropWith(k Knowledge, identifier, remember string, gone map[string]bool, brings *nostr.Announcement) {
	announcements := k.Held().Announcements(identifier)
	if len(announcements) > maxSteps+len(gone) {
		return // enough remain, and which of them are vouched for is not certain
	}
	var remain []*held.Entry
	for _, e := range slices.Concat(announcements, d.Hold) {
		if e.Announcement != nil && e.Identifier == identifier && !gone[e.Event.ID] {
			remain = append(remain, e)
		}
	}
	vouched, certain := vouchedFor(k, remain, brings)
	announced := brings != nil && brings.Ref.Identifier == identifier && len(d.leaves) == 0
	for _, e := range remain {
		if e.Phase == proto.PhaseVouched && certain && !vouched[e.Event.PubKey] {
			d.drop("", e)
			gone[e.Event.ID] = true
			continue
		}
		announced = true
	}
	if announced || isAnnounced(k, identifier, gone) {
		return
	}
	for _, e := range k.Held().OfIdentifier(identifier) {
		if e.Event.Kind == nostr.KindState {
			d.drop(remember, e)
		}
	}
}

// vouchedFor returns the authors of held announcements of an identifier who are maintainers: those
// whom an accepted announcement names, or a held one that waits for git data of its own, or brings,
// and those whom these name. certain is false where there are too many.
func vouchedFor(k Knowledge, entries []*held.Entry, brings *nostr.Announcement) (keys map[string]bool, certain bool) {
	keys = map[string]bool{}
	var queue []*nostr.Announcement
	waiting := map[string]*nostr.Announcement{} // by author, until they are vouched for
	for _, e := range entries {
		author := e.Event.PubKey
		if e.Phase == proto.PhaseVouched {
			waiting[author] = e.Announcement
			keys[author] = len(k.Announced(e.Identifier).Naming(e.Identifier, author)) > 0 // its release comes
		}
		if e.Phase != proto.PhaseVouched || keys[author] {
			queue = append(queue, e.Announcement)
		}
	}
	if brings != nil {
		queue = append(queue, brings)
	}
	for steps := 0; len(queue) > 0; queue = queue[1:] {
		if steps += len(queue[0].Listed); steps > maxSteps {
			return nil, false
		}
		for _, maintainer := range queue[0].Listed {
			if a := waiting[maintainer]; a != nil && !keys[maintainer] {
				keys[maintainer] = true
				queue = append(queue, a)
			}
		}
	}
	return keys, true
}
