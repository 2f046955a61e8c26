package policy

import (
	"maps"
	"slices"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// announcement decides kind 30617. What replaces an accepted announcement of its author is accepted
// at once, with any relays and clone URLs: one can always leave, or change roles, and only the
// repository waits for data. If the repository was hosted here, the log learns where it went, and
// our hosting ends, unless it is archived from then on. What lists us is held for its git data.
// What does not vouches for nothing that its author held until now: that never had git data here.
// It counts as a maintainer's where an accepted announcement of another author lists its author.
// One that is archived is held for its git data. Any other waits with a held one that lists its
// author.
func (p *Policy) announcement(k Knowledge, c *Candidate) (d Decision) {
	a, err := c.Announcement()
	if err != nil {
		return invalid(err)
	}
	switch {
	case p.circle.IsPrivate() && !p.circle.Has(c.Event.PubKey):
		d = rejected("no_member", "restricted: only members of this private service may announce repositories")
		d.Remember = false // who is no member may become one
		return d
	case !p.circle.IsPrivate() && isPrivate(c.Event):
		return rejected("private", messagePrivate)
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
	replacedID, hosted := "", false // the accepted one that it replaces, and whether that lists us
	for _, e := range k.Announced(identifier).By(a.Ref.PubKey) {
		replacedID, hosted = e.Event.ID, p.hosting.Lists(e.Announcement)
	}
	lists, archived := p.hosting.Lists(a), p.hosting.Archives(a)
	unlisted := lists && !p.mayBeHosted(k, a)
	switch {
	case replacedID != "":
		d = accepted()
		if hosted && (!lists || unlisted) && !archived {
			d.leaves = map[string]string{replacedID: identifier}
		}
	case lists && !unlisted:
		return p.hold(k, c, identifier, proto.PhaseWaiting, replaced...)
	case isListed(k, a):
		d = accepted()
	case archived:
		return p.hold(k, c, identifier, proto.PhaseWaiting, replaced...)
	case isVouchedFor(k, a):
		d = p.hold(k, c, identifier, proto.PhaseVouched, replaced...)
	case unlisted:
		d = healable("not_whitelisted", "blocked: this repository is not on the list of those that are hosted here",
			missingInvitation(a.Ref))
	default:
		d = healable("service_not_listed", "invalid: the announcement must list this service in its clone and relays tags",
			missingInvitation(a.Ref))
	}
	d.drop("", replaced...)
	return d
}

// messagePrivate answers an announcement of a private repository.
const messagePrivate = "restricted: this service is public; a private repository needs a GRASP-08 service"

// isPrivate reports whether an announcement is of a private repository (GRASP-08).
func isPrivate(ev *nostr.Event) bool {
	for tag := range ev.Tags.FindAll("private") {
		if tag[1] == "true" {
			return true
		}
	}
	return false
}

// mayBeHosted reports whether the whitelist allows a repository, the author counted with this
// announcement.
func (p *Policy) mayBeHosted(k Knowledge, a *nostr.Announcement) bool {
	identifier := a.Ref.Identifier
	isHere := func(e *held.Entry) bool {
		return e.Announcement != nil && (e.Phase == inLog || e.Phase == proto.PhaseWaiting) && p.hosting.Lists(e.Announcement)
	}
	return p.hosting.MayHost(a.Ref, authority.With(announced(k, identifier), a), func(owner string) bool {
		return slices.ContainsFunc(k.Announced(identifier).By(owner), isHere) ||
			slices.ContainsFunc(k.Held().Announced(identifier).By(owner), isHere)
	})
}

// conclude adds to a decision what follows from it for other held events. With an announcement that
// goes, by whichever rule, go the held announcements for which no other vouches, and
// the held states of an identifier that is announced no more. With one that is accepted, those that
// it vouches for are released.
func (p *Policy) conclude(k Knowledge, c *Candidate, d *Decision) {
	var brings *nostr.Announcement // that is accepted
	if d.Outcome == proto.Accepted && c.Event.Kind == nostr.KindAnnouncement {
		brings, _ = c.Announcement()
	}
	gone, left := map[string]bool{}, map[string]string{} // ids; identifiers, and how their states are remembered
	for id, identifier := range d.leaves {
		gone[id], left[identifier] = true, ""
	}
	for _, x := range d.Drop {
		if e := x.Entry; e.Announcement != nil && (brings == nil || e.Event.ID != c.Event.ID) {
			gone[e.Event.ID], left[e.Identifier] = true, ""
			if x.Remember == RememberExpired {
				left[e.Identifier] = RememberExpired
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

// dropWith drops what is held of an identifier only because of announcements that are gone: those
// that are held for others' sake and that nothing else lists, and the states where nothing
// announces the identifier any more.
func (d *Decision) dropWith(k Knowledge, identifier, remember string, gone map[string]bool,
	brings *nostr.Announcement) {
	if brings != nil && brings.Ref.Identifier != identifier {
		brings = nil
	}
	for _, e := range d.leftAlone(k, identifier, gone, brings) {
		d.drop("", e)
		gone[e.Event.ID] = true
	}
	announced := brings != nil && len(d.leaves) == 0 || slices.ContainsFunc(d.Hold, func(e *held.Entry) bool {
		return e.Announcement != nil && e.Identifier == identifier && !gone[e.Event.ID]
	})
	if announced || isAnnounced(k, identifier, gone) {
		return
	}
	for _, e := range k.Held().OfIdentifier(identifier) {
		if e.Event.Kind == nostr.KindState {
			d.drop(remember, e)
		}
	}
}

// leftAlone are the announcements that are held for others' sake and stood only with those that are
// gone. It looks at what these list, and at what that lists in turn; two of them do not keep each
// other.
func (d *Decision) leftAlone(k Knowledge, identifier string, gone map[string]bool,
	brings *nostr.Announcement) (alone []*held.Entry) {
	refOf := func(key string) nostr.RepoRef { return nostr.RepoRef{PubKey: key, Identifier: identifier} }
	doubtful := map[string]*held.Entry{} // by author
	var authors []string
	doubt := func(keys []string) {
		for _, key := range keys {
			for _, e := range k.Held().At(refOf(key).Address()) {
				if e.Phase == proto.PhaseVouched && !gone[e.Event.ID] && doubtful[key] == nil {
					doubtful[key], authors = e, append(authors, key)
				}
			}
		}
	}
	for id := range gone {
		if a := announcementOf(k, id); a != nil && a.Ref.Identifier == identifier {
			doubt(a.Listed)
		}
	}
	for next := 0; next < len(authors); next++ {
		doubt(doubtful[authors[next]].Announcement.Listed)
	}
	stands := func(key string) bool {
		return brings != nil && brings.Lists(key) || isListed(k, doubtful[key].Announcement) ||
			slices.ContainsFunc(slices.Concat(k.Held().Naming(identifier, key), d.Hold), func(e *held.Entry) bool {
				return e.Announcement != nil && e.Identifier == identifier && e.Announcement.Lists(key) &&
					!gone[e.Event.ID] && doubtful[e.Event.PubKey] != e
			})
	}
	var standing []string
	for _, key := range authors {
		if stands(key) {
			standing = append(standing, key)
		}
	}
	for ; len(standing) > 0; standing = standing[1:] {
		if e := doubtful[standing[0]]; e != nil {
			standing = append(standing, e.Announcement.Listed...)
			delete(doubtful, standing[0])
		}
	}
	for _, key := range authors {
		if e := doubtful[key]; e != nil {
			alone = append(alone, e)
		}
	}
	return alone
}

// announcementOf reads the announcement of that id, held or accepted, or nil.
func announcementOf(k Knowledge, id string) *nostr.Announcement {
	if e := k.Held().ByID(id); e != nil {
		return e.Announcement
	}
	ev := k.Accepted(id)
	if ev == nil || ev.Kind != nostr.KindAnnouncement {
		return nil
	}
	a, err := nostr.ParseAnnouncement(ev)
	if err != nil {
		return nil
	}
	return a
}
