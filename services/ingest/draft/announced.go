package draft

import (
	"iter"
	"slices"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// Announced is the accepted announcements of some identifiers, read once and then kept up to date
// by the drafts that share it: anybody may announce an identifier, so that there can be thousands,
// and no decision may read them all. It is not safe for concurrent use.
//
// A draft changes it as it goes. Whoever gives a draft up, instead of committing it, has to call
// [Announced.Forget].
type Announced struct {
	circles map[string]*circle // by identifier
}

// Bounds of what is kept between drafts: circles so small are read again for nothing, and of the
// large ones there are never many.
const (
	keptFrom    = 32
	keptCircles = 64
)

// NewAnnounced makes an empty one.
func NewAnnounced() *Announced { return &Announced{circles: map[string]*circle{}} }

// Forget drops everything: the drafts that it stood on were not committed, or the log was changed
// by somebody else.
func (x *Announced) Forget() { clear(x.circles) }

// Trim drops what need not be kept for the next draft.
func (x *Announced) Trim() {
	kept := 0
	for identifier, c := range x.circles {
		if len(c.by) >= keptFrom && kept < keptCircles {
			kept++
			continue
		}
		delete(x.circles, identifier)
	}
}

func (x *Announced) add(ev *nostr.Event) {
	if c := x.circles[ev.Tags.GetD()]; c != nil {
		c.add(ev)
	}
}

func (x *Announced) remove(ev *nostr.Event) {
	if c := x.circles[ev.Tags.GetD()]; c != nil {
		c.remove(ev.PubKey, ev.ID)
	}
}

// circle is the accepted announcements of one identifier.
type circle struct {
	domain     string // ours
	identifier string
	by         map[string]*nostr.Announcement   // owner
	listing    map[string][]*nostr.Announcement // maintainer: those that list us
	naming     map[string][]*nostr.Announcement // maintainer: all others
	until      nostr.Timestamp                  // when the first of them expires; 0: never
}

func (c *circle) add(ev *nostr.Event) {
	// What was accepted once may not be by today's rules; then it stands for nothing.
	a, err := nostr.ParseAnnouncement(ev)
	if err != nil || a.Ref.Identifier != c.identifier {
		return
	}
	if before := c.by[ev.PubKey]; before != nil {
		c.remove(ev.PubKey, before.Event.ID)
	}
	c.by[ev.PubKey] = a
	naming := c.naming
	if c.domain != "" && a.ListsService(c.domain) {
		naming = c.listing
	}
	for _, maintainer := range a.Maintainers {
		naming[maintainer] = append(naming[maintainer], a)
	}
	if at := eventdb.Expiration(ev); at != 0 && (c.until == 0 || at < c.until) {
		c.until = at
	}
}

func (c *circle) remove(owner, id string) {
	a := c.by[owner]
	if a == nil || a.Event.ID != id {
		return
	}
	delete(c.by, owner)
	for _, maintainer := range a.Maintainers {
		for _, naming := range []map[string][]*nostr.Announcement{c.listing, c.naming} {
			rest := slices.DeleteFunc(naming[maintainer], func(other *nostr.Announcement) bool { return other == a })
			if naming[maintainer] = rest; len(rest) == 0 {
				delete(naming, maintainer)
			}
		}
	}
}

// announced returns the accepted announcements of an identifier.
func (d *Draft) announced(identifier string) (*circle, error) {
	known := d.base.Announced.circles
	if c := known[identifier]; c != nil && (c.until == 0 || d.base.Now.Before(time.Unix(int64(c.until), 0))) {
		return c, nil
	}
	c := &circle{
		domain: d.base.Domain, identifier: identifier, by: map[string]*nostr.Announcement{},
		listing: map[string][]*nostr.Announcement{}, naming: map[string][]*nostr.Announcement{},
	}
	filter := nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Tags: nostr.TagMap{"d": {identifier}}}
	for ev, err := range d.base.Log.Query(d.ctx, filter) {
		if err != nil {
			return nil, err
		}
		if !d.gone[ev.ID] && d.added[ev.ID] == nil {
			c.add(ev)
		}
	}
	for _, ev := range d.added {
		if ev.Kind == nostr.KindAnnouncement && ev.Tags.GetD() == identifier {
			c.add(ev)
		}
	}
	known[identifier] = c
	return c, nil
}

// AcceptedNaming returns the accepted announcements of an identifier that name this key among their
// maintainers, those that list us first: whoever looks for one of these has an end at so many, and
// a crowd of others must not hide it.
func (d *Draft) AcceptedNaming(identifier, pubkey string) ([]*nostr.Announcement, error) {
	c, err := d.announced(identifier)
	if err != nil {
		return nil, err
	}
	listing, others := c.listing[pubkey], c.naming[pubkey]
	if len(listing) == 0 {
		return others, nil
	}
	return slices.Concat(listing, others), nil
}

// AcceptedAnnouncements returns the accepted announcements of an identifier, by any owners.
func (d *Draft) AcceptedAnnouncements(identifier string) (iter.Seq[*nostr.Announcement], error) {
	c, err := d.announced(identifier)
	if err != nil {
		return nil, err
	}
	return func(yield func(*nostr.Announcement) bool) {
		for _, a := range c.by {
			if !yield(a) {
				return
			}
		}
	}, nil
}
