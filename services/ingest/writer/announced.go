package writer

import (
	"slices"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// keptCircles bounds how many identifiers' announcements are kept in memory.
const keptCircles = 256

// circle is the accepted announcements of one identifier, read once and then kept up to date:
// anybody may announce an identifier, so that there can be thousands, and no decision may read them
// all.
type circle struct {
	by     map[string]*nostr.Announcement   // owner
	naming map[string][]*nostr.Announcement // maintainer: those that list us first
	until  nostr.Timestamp                  // when the first of them expires; 0: never
}

func (c *circle) add(ev *nostr.Event, domain string) {
	c.remove(ev.PubKey)
	a, err := nostr.ParseAnnouncement(ev)
	if err != nil {
		return // it was accepted by other rules than today's
	}
	c.by[ev.PubKey] = a
	lists := domain != "" && a.ListsService(domain)
	for _, maintainer := range a.Maintainers {
		if c.naming[maintainer] = append(c.naming[maintainer], a); lists {
			copy(c.naming[maintainer][1:], c.naming[maintainer])
			c.naming[maintainer][0] = a
		}
	}
	if at := eventdb.Expiration(ev); at != 0 && (c.until == 0 || at < c.until) {
		c.until = at
	}
}

func (c *circle) remove(owner string) {
	a := c.by[owner]
	if a == nil {
		return
	}
	delete(c.by, owner)
	for _, maintainer := range a.Maintainers {
		rest := slices.DeleteFunc(c.naming[maintainer], func(other *nostr.Announcement) bool { return other == a })
		if c.naming[maintainer] = rest; len(rest) == 0 {
			delete(c.naming, maintainer)
		}
	}
}

// circleOf returns the accepted announcements of an identifier.
func (d *draft) circleOf(identifier string) (*circle, error) {
	if c := d.announced[identifier]; c != nil && (c.until == 0 || d.now.Before(time.Unix(int64(c.until), 0))) {
		return c, nil
	}
	c := &circle{by: map[string]*nostr.Announcement{}, naming: map[string][]*nostr.Announcement{}}
	add := func(ev *nostr.Event) {
		if ev != nil && ev.Kind == nostr.KindAnnouncement && ev.Tags.GetD() == identifier && !d.asks(ev) {
			c.add(ev, d.domain)
		}
	}
	filter := nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Tags: nostr.TagMap{"d": {identifier}}}
	for ev, err := range d.view.Query(d.ctx, filter) {
		if err != nil {
			return nil, err
		}
		if _, said := d.events[ev.ID]; !said {
			add(ev)
		}
	}
	for _, ev := range d.events {
		add(ev)
	}
	d.announced[identifier] = c
	return c, nil
}

// AcceptedNaming gives those that list us first: a walk that looks for one of these ends after so
// many, and a crowd of others must not hide it.
func (d *draft) AcceptedNaming(identifier, pubkey string) ([]*nostr.Announcement, error) {
	c, err := d.circleOf(identifier)
	if err != nil {
		return nil, err
	}
	return c.naming[pubkey], nil
}

func (d *draft) Announces(identifier string, without map[string]bool) (bool, error) {
	c, err := d.circleOf(identifier)
	if err != nil {
		return false, err
	}
	for _, a := range c.by {
		if !without[a.Event.ID] {
			return true, nil
		}
	}
	return false, nil
}
