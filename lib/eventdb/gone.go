package eventdb

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// What hangs on an announcement that its author has taken away is hidden, like what is banned,
// until the announcement comes back. It is what is linked to the announcement, over any events
// and in whichever direction, and not linked to an announcement that is served.

// gone is an announcement that its author has taken away.
type gone struct {
	address string
	at      int64 // in seconds since 1970
}

// goneName begins the names by which events are hidden for an announcement that is gone. No ban is
// named so.
const goneName = "gone "

// maxLinked bounds the events that are looked at for whether something that is served needs one. What
// is linked to more of them stays.
const maxLinked = 10_000

// comeBack notes that an announcement has come back.
func (c *change) comeBack(at coordinate, kind int) error {
	if kind != nostr.KindAnnouncement {
		return nil
	}
	value, found, err := c.get(keyGone(at))
	if err != nil || !found {
		return err
	}
	c.back = append(c.back, string(value[min(len(value), timeLen):]))
	return c.put(keyGone(at), nil)
}

// goneAt returns when an announcement was taken away; false: it was not, or has come back.
func (r reader) goneAt(address nostr.Address) (at int64, is bool, err error) {
	author, err := parseID(address.PubKey)
	if err != nil || address.Kind != nostr.KindAnnouncement {
		return 0, false, err
	}
	value, found, err := r.get(keyGone(coordinateOf(address.Kind, author, address.Identifier)))
	if err != nil || !found || len(value) < timeLen {
		return 0, false, err
	}
	return int64(binary.BigEndian.Uint64(value)), true, nil
}

// links walks over events by what links them.
type links struct {
	view   *View // of everything that is there
	banned func(id) bool
	served map[id]bool // of events that were looked at: something that is served needs them
}

// linked is what one walk has found.
type linked struct {
	events []id
	served bool // an announcement that is served is among what they are linked to
	last   gone // of the announcements that are gone, the one that went last
}

// from looks at everything that is linked to an event, until it meets an announcement that is
// served.
func (l *links) from(start Entry) (found linked, err error) {
	queue, seen := []Entry{start}, map[id]bool{start.ID: true}
	for ; len(queue) > 0 && !found.served && err == nil; queue = queue[1:] {
		e := queue[0]
		found.events = append(found.events, e.ID)
		if found.served = l.served[e.ID] || len(found.events) > maxLinked; found.served {
			break
		}
		err = l.neighbours(e, &found, func(other Entry) bool {
			if !seen[other.ID] {
				seen[other.ID] = true
				queue = append(queue, other)
			}
			return !found.served
		})
	}
	for eid := range seen {
		l.served[eid] = l.served[eid] || found.served
	}
	return found, err
}

// neighbours gives the events that an event names, and those that name it, until give has enough.
// Announcements are not among them: that one is served, or gone, is noted.
func (l *links) neighbours(e Entry, found *linked, give func(Entry) (more bool)) error {
	ev, err := l.view.reads.load(e)
	if err != nil {
		return err
	}
	refs := nostr.ReferencesOf(ev)
	see := func(other Entry, known bool, failed error) (more bool) {
		switch err = errors.Join(err, failed); {
		case failed != nil || !known || !l.counts(other):
			return true
		case other.Kind == nostr.KindAnnouncement:
			found.served = true
			return true
		}
		return give(other)
	}
	for _, ref := range refs.IDs {
		eid, _ := parseID(ref)
		see(l.view.reads.lookUp(eid))
	}
	for _, address := range refs.Addresses {
		author, _ := parseID(address.PubKey)
		holder, known, failed := l.view.reads.holder(coordinateOf(address.Kind, author, address.Identifier))
		if see(holder, known, failed); known {
			continue
		}
		at, is, failed := l.view.reads.goneAt(address)
		if err = errors.Join(err, failed); is && (found.last.address == "" || at > found.last.at) {
			found.last = gone{address.String(), at}
		}
	}
	if err != nil {
		return err
	}
	filters := []nostr.Filter{}
	for _, tag := range []string{"e", "E", "q"} {
		filters = append(filters, nostr.Filter{Tags: nostr.TagMap{tag: {ev.ID}}})
	}
	if address, has := nostr.AddressOf(ev); has {
		filters = append(filters, naming(address.String())...)
	}
	for _, f := range filters {
		for other, failed := range l.view.IDs(context.Background(), f) {
			if failed != nil {
				return failed
			}
			if !see(other, true, nil) {
				return nil
			}
		}
	}
	return nil
}

// naming finds what names an address.
func naming(address string) (filters []nostr.Filter) {
	for _, tag := range []string{"a", "A", "q"} {
		filters = append(filters, nostr.Filter{Tags: nostr.TagMap{tag: {address}}})
	}
	return filters
}

// counts reports whether an event makes others acceptable. States belong to an announcement
// themselves.
func (l *links) counts(e Entry) bool {
	return nostr.KindOf(e.Kind).Vouches && e.Kind != nostr.KindState && !l.banned(e.ID) && !e.expired(l.view.now)
}

// linksOf walks over what a reader has.
func (db *DB) linksOf(r reader, h hidden) *links {
	v := &View{db: db, reads: r, now: db.opts.Now(), hidden: &hidden{}}
	v.hides = func() *hidden { return v.hidden }
	banned := func(eid id) bool { name, is := h[eid]; return is && !IsGone(name) }
	return &links{view: v, banned: banned, served: map[id]bool{}}
}

// hideBehind hides what hangs on an announcement that is gone.
func (h hidden) hideBehind(l *links, address string) error {
	for _, f := range naming(address) {
		for e, err := range l.view.IDs(context.Background(), f) {
			if err == nil {
				err = h.hideLinked(l, e)
			}
			if err != nil {
				return fmt.Errorf("look for what hangs on %s: %w", address, err)
			}
		}
	}
	return nil
}

// hideLinked hides an event with everything that it is linked to, where it hangs on announcements
// that are gone alone.
func (h hidden) hideLinked(l *links, e Entry) error {
	if _, is := h[e.ID]; is || l.served[e.ID] || !l.counts(e) {
		return nil
	}
	found, err := l.from(e)
	if err != nil || found.served || found.last.address == "" {
		return err
	}
	for _, eid := range found.events {
		h[eid] = goneName + found.last.address
	}
	return nil
}

// show shows again what is hidden for announcements that are gone, and linked to an event that is
// needed now.
func (h hidden) show(l *links, start Entry) error {
	isGone := func(eid id) bool { return IsGone(h[eid]) }
	if !isGone(start.ID) {
		return nil
	}
	delete(h, start.ID)
	for queue := []Entry{start}; len(queue) > 0; queue = queue[1:] {
		err := l.neighbours(queue[0], new(linked), func(other Entry) bool {
			if isGone(other.ID) {
				delete(h, other.ID)
				queue = append(queue, other)
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hideGone hides what hangs on announcements that the change has taken away, and shows what one
// needs that has come back.
func (c *change) hideGone(h hidden) error {
	l := c.db.linksOf(c.reader, h)
	for _, g := range c.left {
		address, _ := nostr.ParseAddress(g.address)
		_, is, err := c.goneAt(address)
		if err == nil && is { // it may have come back in the same change
			err = h.hideBehind(l, g.address)
		}
		if err != nil {
			return err
		}
	}
	for _, address := range c.back {
		for _, f := range naming(address) {
			for e, err := range l.view.IDs(context.Background(), f) {
				if err == nil {
					err = h.show(l, e)
				}
				if err != nil {
					return fmt.Errorf("look for what hangs on %s: %w", address, err)
				}
			}
		}
	}
	return nil
}

// linksGone reports whether an event names something that is hidden for an announcement that is
// gone, or such an announcement.
func (h hidden) linksGone(r reader, ev *nostr.Event) (named []Entry, is bool, err error) {
	refs := nostr.ReferencesOf(ev)
	for _, ref := range refs.IDs {
		eid, _ := parseID(ref)
		if IsGone(h[eid]) {
			e, known, failed := r.lookUp(eid)
			if err = errors.Join(err, failed); known {
				named = append(named, e)
			}
		}
	}
	for _, address := range refs.Addresses {
		_, gone, failed := r.goneAt(address)
		is, err = is || gone, errors.Join(err, failed)
	}
	return named, is || len(named) > 0, err
}

// LinksGone reports whether an event names something that is hidden for an announcement that is
// gone, or such an announcement, or takes the place of one.
func (v *View) LinksGone(ev *nostr.Event) (bool, error) {
	if !v.db.lacks.Load() {
		return false, nil
	}
	if address, has := nostr.AddressOf(ev); has && ev.Kind == nostr.KindAnnouncement {
		_, is, err := v.reads.goneAt(address)
		return is, err
	}
	_, links, err := (*v.hidden).linksGone(v.reads, ev)
	return links, err
}

// hideAllGone hides what hangs on all announcements that are gone.
func (h hidden) hideAllGone(db *DB, r reader) error {
	l := db.linksOf(r, h)
	var addresses []string
	err := r.each([]byte{tableGone}, func(_, value []byte) {
		addresses = append(addresses, string(value[min(len(value), timeLen):]))
	})
	for _, address := range addresses {
		err = errors.Join(err, h.hideBehind(l, address))
	}
	return err
}

// GoneBefore returns the ids of events that are hidden for an announcement that was taken away up
// to a time, some of them.
func (v *View) GoneBefore(until nostr.Timestamp, most int) (ids []string, err error) {
	over := map[string]bool{}
	for eid, name := range *v.hidden {
		text, is := strings.CutPrefix(name, goneName)
		if !is || len(ids) >= most {
			continue
		}
		if _, known := over[name]; !known {
			address, _ := nostr.ParseAddress(text)
			at, gone, failed := v.reads.goneAt(address)
			over[name], err = gone && at <= int64(until), errors.Join(err, failed)
		}
		if over[name] {
			ids = append(ids, hex.EncodeToString(eid[:]))
		}
	}
	slices.Sort(ids)
	return ids, err
}

// IsGone reports whether events are hidden by this name because the announcement was taken away on
// which they hang.
func IsGone(name string) bool { return strings.HasPrefix(name, goneName) }
