package writer

import (
	"iter"
	"strings"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

func (d *draft) Announced(identifier string) held.Source { return announced{d, identifier} }

// announced are the accepted announcements of an identifier, as of the last decision. Each is read
// when it is asked for.
type announced struct {
	*draft
	identifier string
}

var _ held.Source = announced{}

// By implements [held.Source], as do the next ones.
func (a announced) By(author string) []*held.Entry {
	ev := a.AcceptedAt(nostr.RepoRef{PubKey: author, Identifier: a.identifier}.Address())
	if ev == nil {
		return nil
	}
	if e := a.entryOf(ev); e != nil {
		return []*held.Entry{e}
	}
	return nil
}

// entryOf reads an announcement, once for a batch. nil: it was accepted by other rules than
// today's.
func (d *draft) entryOf(ev *nostr.Event) *held.Entry {
	e, read := d.parsed[ev.ID]
	if !read {
		e, _ = held.NewEntry(proto.Held{Event: ev, Identifier: ev.Tags.GetD()})
		d.parsed[ev.ID] = e
	}
	return e
}

// LedBy asks the index for `M` tags. These may be void, or of a lead among several.
func (a announced) LedBy(lead string) iter.Seq[*held.Entry] {
	return func(yield func(*held.Entry) bool) {
		for _, ev := range a.events {
			if ev == nil || ev.Kind != nostr.KindAnnouncement || ev.Tags.GetD() != a.identifier {
				continue
			}
			e := a.entryOf(ev)
			if e == nil {
				continue
			}
			if by, is := authority.LeadOf(e.Announcement); is && by == lead && a.Accepted(ev.ID) != nil && !yield(e) {
				return
			}
		}
		filter := a.filter(authority.MaxLooks)
		filter.Tags["M"] = []string{lead, strings.ToUpper(lead)} // keys in role tags are compared in lower case
		for ev, err := range a.view.Query(a.ctx, filter) {
			if !a.found(err) {
				return
			}
			var e *held.Entry
			if have := a.AcceptedAt(nostr.RepoRef{PubKey: ev.PubKey, Identifier: a.identifier}.Address()); have != nil &&
				have.ID == ev.ID {
				e = a.entryOf(have)
			}
			if !yield(e) {
				return
			}
		}
	}
}

// filter matches the announcements of the identifier in the index, and some of others: an event may
// have more than one `d` tag.
func (a announced) filter(most int) nostr.Filter {
	return nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Tags: nostr.TagMap{"d": {a.identifier}}, Limit: most}
}

// maxOthers bounds how many events are looked at that have the identifier as another `d` tag.
// Beyond them it counts as announced.
const maxOthers = 256

func (a announced) Any(without map[string]bool) bool {
	for id, ev := range a.events {
		if ev != nil && ev.Kind == nostr.KindAnnouncement && ev.Tags.GetD() == a.identifier && !without[id] &&
			a.Accepted(id) != nil {
			return true
		}
	}
	looked := 0
	for ev, err := range a.view.Query(a.ctx, a.filter(0)) {
		if !a.found(err) {
			return false
		}
		if ev.Tags.GetD() == a.identifier && !without[ev.ID] && a.Accepted(ev.ID) != nil {
			return true
		}
		if looked++; looked > maxOthers+len(without)+len(a.events) {
			return true
		}
	}
	return false
}

// Lists asks the likely ones first: who accepts an invitation lists whom it came from. No index has
// who lists a key, so that the rest of the answer takes all announcements of the identifier, once.
func (a announced) Lists(key string, likely []string) bool {
	for _, other := range likely {
		for _, e := range a.By(other) {
			if other != key && e.Announcement.Lists(key) {
				return true
			}
		}
	}
	if !a.readListings(a.identifier) {
		return false
	}
	return a.announced.Announced(a.identifier).Lists(key, nil)
}

// readListings reads all accepted announcements of an identifier, and reports whether they are
// there.
func (d *draft) readListings(identifier string) bool {
	if d.read[identifier] {
		return true
	}
	filter := nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Tags: nostr.TagMap{"d": {identifier}}}
	for ev, err := range d.view.Query(d.ctx, filter) {
		if !d.found(err) {
			d.until = 0 // what is kept is not all
			return false
		}
		if ev.Tags.GetD() == identifier && d.Accepted(ev.ID) != nil {
			d.announce(ev)
		}
	}
	for _, ev := range d.events { // that the batch has brought
		if ev != nil && ev.Kind == nostr.KindAnnouncement && ev.Tags.GetD() == identifier && d.Accepted(ev.ID) != nil {
			d.announce(ev)
		}
	}
	d.read[identifier] = true
	return true
}

// announce keeps an accepted announcement in place of that before it.
func (d *draft) announce(ev *nostr.Event) {
	e := d.entryOf(ev)
	if e == nil {
		return
	}
	for _, before := range d.announced.At(e.Announcement.Ref.Address()) {
		d.announced.Remove(before.Key)
	}
	d.announced.Add(e)
	if at := eventdb.Expiration(ev); at != 0 {
		d.until = min(d.until, at)
	}
}
