package eventdb

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"

	"tendril.dev/lib/nostr"
)

// Bans are what an operator does not want to be served (policy.md, Moderation).
type Bans interface {
	// Reach gives the name of each ban and a filter. The filters match those events, and only those,
	// that Banned reports.
	Reach() iter.Seq2[string, nostr.Filter]
	// Banned returns the name of the ban of an event, if it has one.
	Banned(ev *nostr.Event) (name string, banned bool)
}

// hidden are the events that are not served. Once others can see it, it does not change.
type hidden struct {
	by map[id]string // the name of the ban that hides each
	// some has a bit for what the first two bytes of each id say: most other events need no look at
	// the map.
	some [1 << 10]uint64
}

func (h *hidden) find(eid id) (name string, is bool) {
	if at := binary.LittleEndian.Uint16(eid[:]); h == nil || h.some[at/64]>>(at%64)&1 == 0 {
		return "", false
	}
	name, is = h.by[eid]
	return name, is
}

func (h *hidden) add(eid id, name string) {
	at := binary.LittleEndian.Uint16(eid[:])
	h.some[at/64] |= 1 << (at % 64)
	h.by[eid] = name
}

// Hide hides what is banned, and what hangs on it: an event that names something hidden, and names
// nothing else that is here, has no place without it. It replaces what was hidden before. Events that
// come later are hidden in the same way, by what is here when they come, and what is here stays as it
// is. So Hide must be called when the index has caught up with the log.
//
// Every way to read passes over hidden events, and subscribers are not told of them. [View.All] has
// them. [View.Holder], [View.Deleted] and [DB.HasEach] are about what the log has, and do not
// change.
func (db *DB) Hide(bans Bans) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	h := hiding{hidden: &hidden{by: map[id]string{}}}
	view := db.View()
	defer view.Close()
	for name, f := range bans.Reach() {
		for e, err := range view.All().IDs(context.Background(), f) {
			if err != nil {
				return fmt.Errorf("look for what is banned: %w", err)
			}
			h.add(e, name)
		}
	}
	if err := h.spread(view.All()); err != nil {
		return err
	}
	db.bans = bans
	db.hidden.Store(h.hidden)
	return nil
}

// hideBanned hides those of the events of a change that are banned, before they can be seen.
func (c *change) hideBanned() (err error) {
	before := c.db.hidden.Load()
	now, shown := before, c.stored[:0]
	for _, r := range c.stored {
		name, banned := c.db.bans.Banned(r.Event)
		if !banned {
			if name, banned, err = now.hanging(c.reader, r.Event); err != nil {
				return err
			}
		}
		if !banned {
			shown = append(shown, r)
			continue
		}
		if now == before {
			now = &hidden{by: maps.Clone(before.by), some: before.some}
		}
		e, _ := EntryOf(r.Event)
		now.add(e.ID, name)
	}
	c.stored = shown
	c.db.hidden.Store(now)
	return nil
}

// hiding gathers what is hidden.
type hiding struct {
	*hidden
	fresh []Entry // what names these was not looked at
}

func (h *hiding) add(e Entry, name string) {
	if _, known := h.find(e.ID); !known {
		h.hidden.add(e.ID, name)
		h.fresh = append(h.fresh, e)
	}
}

// spread hides what hangs on the fresh ones.
func (h *hiding) spread(view *View) error {
	for len(h.fresh) > 0 {
		some := h.fresh[:min(len(h.fresh), 1000)]
		h.fresh = h.fresh[len(some):]
		var ids, addresses []string
		for _, e := range some {
			ids = append(ids, hex.EncodeToString(e.ID[:]))
			if nostr.IsAddressableKind(e.Kind) || nostr.IsReplaceableKind(e.Kind) {
				ev, err := loadAt(view.reads, e.CreatedAt, e.ID)
				if err != nil {
					return err
				}
				address, _ := nostr.AddressOf(ev)
				addresses = append(addresses, address.String())
			}
		}
		for tag, names := range map[string][]string{"e": ids, "E": ids, "a": addresses, "A": addresses, "q": slices.Concat(ids, addresses)} {
			for ev, err := range view.Query(context.Background(), nostr.Filter{Tags: nostr.TagMap{tag: append([]string{}, names...)}}) {
				if err != nil {
					return fmt.Errorf("look for what names the banned: %w", err)
				}
				name, hangs, err := h.hanging(view.reads, ev)
				if err != nil {
					return err
				}
				if e, badID := EntryOf(ev); hangs && badID == nil {
					h.add(e, name)
				}
			}
		}
	}
	return nil
}

// standsAlone are kinds of events that are accepted for what they are, and not for what they name.
var standsAlone = []int{nostr.KindDeletion, nostr.KindReport, nostr.KindUserGraspList, nostr.KindAnnouncement, nostr.KindState}

// hanging reports whether an event names something hidden, and nothing else that is here.
func (h *hidden) hanging(r reader, ev *nostr.Event) (name string, hangs bool, err error) {
	if h == nil || len(h.by) == 0 || slices.Contains(standsAlone, ev.Kind) {
		return "", false, nil
	}
	refs, here := nostr.ReferencesOf(ev), []id(nil)
	for _, ref := range refs.IDs {
		eid, _ := parseID(ref)
		_, known, err := lookUp(r, eid)
		if err != nil {
			return "", false, err
		}
		if known {
			here = append(here, eid)
		}
	}
	for _, address := range refs.Addresses {
		author, _ := parseID(address.PubKey)
		at, _ := coordinateOf(address.Kind, author, address.Identifier)
		holder, known, err := holderOf(r, at)
		if err != nil {
			return "", false, err
		}
		if known {
			here = append(here, holder.ID)
		}
	}
	for _, eid := range here {
		if name, hangs = h.find(eid); !hangs {
			return "", false, nil
		}
	}
	return name, hangs, nil
}

// HidesAs reports whether two views hide the same.
func (v *View) HidesAs(o *View) bool { return v.hidden == o.hidden }

// HiddenBy returns the events that a ban hides, newest first: what hangs on others mostly comes
// before these.
func (v *View) HiddenBy(name string) (ids []string, err error) {
	f := nostr.Filter{IDs: []string{}}
	if v.hidden == nil {
		return nil, nil
	}
	for eid, by := range v.hidden.by {
		if by == name {
			f.IDs = append(f.IDs, hex.EncodeToString(eid[:]))
		}
	}
	for e, err := range v.All().IDs(context.Background(), f) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, hex.EncodeToString(e.ID[:]))
	}
	return ids, nil
}

// Hidden returns the name of the ban that hides an event, if one does.
func (v *View) Hidden(eventID string) (name string, is bool) {
	eid, err := parseID(eventID)
	name, is = v.hidden.find(eid)
	return name, is && err == nil
}
