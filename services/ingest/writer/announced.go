package writer

import (
	"iter"
	"strings"

	"tendril.dev/lib/authority"
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

// Lists looks at all identifiers if that of the announcements is "", which no repository has.
func (a announced) Lists(key string) bool {
	lists := func(ev *nostr.Event) bool {
		e := a.entryOf(ev)
		return e != nil && ev.PubKey != key && e.Announcement.Lists(key) && a.Accepted(ev.ID) != nil
	}
	for _, ev := range a.events { // that the batch has brought
		if ev != nil && ev.Kind == nostr.KindAnnouncement && (a.identifier == "" || ev.Tags.GetD() == a.identifier) && lists(ev) {
			return true
		}
	}
	for ev, err := range a.view.Listing(a.ctx, key, a.identifier) {
		if !a.found(err) {
			return false
		}
		if lists(ev) {
			return true
		}
	}
	return false
}
