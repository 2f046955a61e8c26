package eventdb

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"tendril.dev/lib/nostr"
)

// Bans are what an operator does not want to be served.
type Bans interface {
	// Reach gives the name of each ban and a filter. The filters match those events, and only those,
	// that Banned reports.
	Reach() iter.Seq2[string, nostr.Filter]
	// Banned returns the name of the ban of an event, if it has one.
	Banned(ev *nostr.Event) (name string, banned bool)
}

// hidden are the events that are not served, each with the name of the ban that hides it, or of the
// announcement that is gone on which the event hangs. Once others can see it, it does not change.
type hidden map[id]string

// Hide hides what is banned, and what hangs on it: an event is hidden too if the only known events
// that it names are hidden. What hangs on announcements that their authors have taken away stays
// hidden too. It replaces what was hidden before. Events that come later are hidden in the same
// way, by what is here when they come, and what is here stays as it is. So Hide must be called when
// the index has caught up with the log.
//
// Every way to read passes over hidden events, and subscribers are not told of them. [View.All] has
// them. [View.Holder], [View.Deleted] and [DB.HasEach] are about what the log has, and do not
// change.
func (db *DB) Hide(bans Bans) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	view := db.View().All()
	defer view.Close()
	h, fresh := hidden{}, []Entry(nil) // of fresh ones it was not looked at what names them
	hide := func(e Entry, name string) {
		if _, known := h[e.ID]; !known {
			h[e.ID] = name
			fresh = append(fresh, e)
		}
	}
	for name, f := range bans.Reach() {
		for e, err := range view.IDs(context.Background(), f) {
			if err != nil {
				return fmt.Errorf("look for what is banned: %w", err)
			}
			hide(e, name)
		}
	}
	for len(fresh) > 0 {
		some := fresh[:min(len(fresh), 1000)]
		fresh = fresh[len(some):]
		names, err := view.namesOfEach(some)
		if err != nil {
			return err
		}
		for _, tag := range []string{"e", "E", "a", "A", "q"} {
			for ev, err := range view.Query(context.Background(), nostr.Filter{Tags: nostr.TagMap{tag: names}}) {
				if err != nil {
					return fmt.Errorf("look for what names the banned: %w", err)
				}
				name, hangs, err := h.hanging(view.reads, ev)
				if err != nil {
					return err
				}
				if e, badID := EntryOf(ev); hangs && badID == nil {
					hide(e, name)
				}
			}
		}
	}
	if err := h.hideAllGone(db, view.reads); err != nil {
		return err
	}
	db.bans = bans
	db.hidden.Store(&h)
	return nil
}

// namesOfEach are the ids of some events, and their addresses.
func (v *View) namesOfEach(some []Entry) (names []string, err error) {
	for _, e := range some {
		names = append(names, hex.EncodeToString(e.ID[:]))
		if coordinateOf(e.Kind, id{}, "") == nil {
			continue
		}
		ev, err := v.reads.load(e)
		if err != nil {
			return nil, err
		}
		address, _ := nostr.AddressOf(ev)
		names = append(names, address.String())
	}
	return names, nil
}

// hideNew hides those of the events of a change that are banned, or hang on what is hidden or gone,
// before they can be seen.
func (c *change) hideNew() (err error) {
	before := c.db.hidden.Load()
	if c.db.bans == nil && len(*before) == 0 && !c.db.lacks.Load() {
		return nil
	}
	h := maps.Clone(*before)
	if err := c.hideGone(h); err != nil {
		return err
	}
	for _, r := range c.stored {
		if err := c.hide(h, r.Event); err != nil {
			return err
		}
	}
	c.stored = slices.DeleteFunc(c.stored, func(r Record) bool {
		e, _ := EntryOf(r.Event)
		_, is := h[e.ID]
		return is
	})
	if !maps.Equal(h, *before) {
		c.db.hidden.Store(&h)
	}
	return nil
}

// hide hides a new event, or shows what the event needs.
func (c *change) hide(h hidden, ev *nostr.Event) (err error) {
	e, _ := EntryOf(ev)
	if c.db.bans != nil {
		name, banned := c.db.bans.Banned(ev)
		if !banned {
			name, banned, err = h.hanging(c.reader, ev)
		}
		if banned {
			h[e.ID] = name
		}
		if banned || err != nil {
			return err
		}
	}
	if !c.db.lacks.Load() || nostr.KindOf(ev.Kind).Unlinked {
		return nil
	}
	named, links, err := h.linksGone(c.reader, ev)
	if err != nil || !links {
		return err
	}
	l := c.db.linksOf(c.reader, h)
	err = h.hideLinked(l, e)
	if _, hides := h[e.ID]; hides || err != nil {
		return err
	}
	for _, other := range named {
		if err := h.show(l, other); err != nil {
			return err
		}
	}
	return nil
}

// hanging reports whether an event names something that a ban hides, and nothing else that is here.
func (h hidden) hanging(r reader, ev *nostr.Event) (name string, hangs bool, err error) {
	if len(h) == 0 || nostr.KindOf(ev.Kind).Unlinked {
		return "", false, nil
	}
	refs, here := nostr.ReferencesOf(ev), []Entry(nil)
	see := func(e Entry, known bool, lookErr error) {
		if err = errors.Join(err, lookErr); known {
			here = append(here, e)
		}
	}
	for _, ref := range refs.IDs {
		eid, _ := parseID(ref)
		see(r.lookUp(eid))
	}
	for _, address := range refs.Addresses {
		author, _ := parseID(address.PubKey)
		see(r.holder(coordinateOf(address.Kind, author, address.Identifier)))
	}
	for _, e := range here {
		if name, hangs = h[e.ID]; !hangs || IsGone(name) {
			return "", false, err
		}
	}
	return name, hangs, err
}

// HidesAs reports whether two views hide the same.
func (v *View) HidesAs(o *View) bool { return v.hidden == o.hidden }

// HiddenBy returns the events that a ban hides, newest first: what hangs on others mostly comes
// before these.
func (v *View) HiddenBy(name string) (events []Entry, err error) {
	for eid, by := range *v.hidden {
		if by != name {
			continue
		}
		e, found, failed := v.reads.lookUp(eid)
		if err = errors.Join(err, failed); found {
			events = append(events, e)
		}
	}
	slices.SortFunc(events, Entry.Compare)
	return events, err
}

// Hidden returns the name of the ban that hides an event, if one does.
func (v *View) Hidden(eventID string) (name string, is bool) {
	eid, err := parseID(eventID)
	name, is = (*v.hidden)[eid]
	return name, is && err == nil
}
