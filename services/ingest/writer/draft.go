package writer

import (
	"context"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
	"tendril.dev/services/ingest/policy"
)

// draft is what is accepted, held and rejected when the batch at hand is stored: an event that it
// has accepted counts for the next decision at once. It begins with a term. If a commit fails it is
// of no more use.
//
// Held events are a copy of the set as of the last decision. The log and the rejected ids are the
// index, with the changes of the batch over it.
type draft struct {
	index       *eventdb.DB
	rejected    *known.Rejected
	domain      string // ours
	keepDeleted bool   // deletion requests do not touch what is accepted

	ctx       context.Context // of reads
	now       time.Time       // when the batch began
	view      *eventdb.View   // of the log before the batch
	held      *held.Directory
	room      *policy.Room
	announced map[string]*circle // by identifier, as of the last decision
	changes
}

// changes are those of one batch. What a deletion request takes away stays in them, and is passed
// over when it is read.
type changes struct {
	events  map[string]*nostr.Event        // accepted; nil: it was there, and is replaced or removed
	at      map[nostr.Address]*nostr.Event // nil: nothing is there; what was read is kept too
	named   map[string][]string            // ids of accepted events by the ids and addresses that they name
	deletes map[string]nostr.Timestamp     // of a deleted author and id, or address: up to this time

	entries map[string]*held.Entry // by key; nil: gone

	rejections map[string]rejection
	missing    map[string][]string // ids of rejected by what they miss
}

// rejection is a rejected event, or one whose rejection is taken back.
type rejection struct {
	proto.RejectedEvent
	taken bool
}

func newDraft(o *Options) *draft {
	d := &draft{
		index: o.Index, rejected: o.Rejected, domain: o.Domain, keepDeleted: o.KeepDeleted,
		held: held.NewDirectory(), room: policy.NewRoom(), announced: map[string]*circle{}, view: o.Index.View(),
	}
	for _, e := range o.Held.All() {
		d.held.Add(e)
		d.room.Add(e)
	}
	return d
}

// begin begins a batch. The index has what the one before has changed.
func (d *draft) begin(ctx context.Context) {
	before := d.view
	_ = before.Close()
	d.ctx, d.now, d.view = ctx, time.Now(), d.index.View()
	d.changes = changes{
		events: map[string]*nostr.Event{}, at: map[nostr.Address]*nostr.Event{}, named: map[string][]string{},
		deletes: map[string]nostr.Timestamp{}, entries: map[string]*held.Entry{},
		rejections: map[string]rejection{}, missing: map[string][]string{},
	}
	if len(d.announced) > keptCircles || !d.view.HidesAs(before) { // what is banned has changed
		clear(d.announced)
	}
}

// standing returns an event that was found, unless there was none or its author has deleted it.
func (d *draft) standing(ev *nostr.Event, err error) (*nostr.Event, error) {
	if errors.Is(err, eventdb.ErrNotFound) || ev != nil && d.asks(ev) {
		return nil, nil
	}
	return ev, err
}

var _ policy.Knowledge = (*draft)(nil)

// Accepted implements [policy.Knowledge], as do the next ones.
func (d *draft) Accepted(id string) (*nostr.Event, error) {
	if ev, said := d.events[id]; said {
		return d.standing(ev, nil)
	}
	return d.standing(d.view.Event(id))
}

// AcceptedKind mostly reads no event.
func (d *draft) AcceptedKind(id string) (kind int, accepted bool, err error) {
	if _, said := d.events[id]; said || len(d.deletes) > 0 {
		ev, err := d.Accepted(id)
		if ev == nil {
			return 0, false, err
		}
		return ev.Kind, true, err
	}
	kind, err = d.view.Kind(id)
	if errors.Is(err, eventdb.ErrNotFound) {
		return 0, false, nil
	}
	return kind, err == nil, err
}

// AcceptedAt reads what is at an address once for a batch: most events of a sync name the same few.
func (d *draft) AcceptedAt(address nostr.Address) (*nostr.Event, error) {
	if ev, said := d.at[address]; said {
		return d.standing(ev, nil)
	}
	// Only these kinds have addresses; what else a stranger writes as one is at none.
	if !nostr.IsReplaceableKind(address.Kind) && !nostr.IsAddressableKind(address.Kind) {
		return nil, nil
	}
	ev, err := d.standing(d.view.Replaceable(address.Kind, address.PubKey, address.Identifier))
	if err == nil {
		d.at[address] = ev
	}
	return ev, err
}

// Holder tells of an event that has expired too. One that was deleted or removed holds nothing.
func (d *draft) Holder(address nostr.Address) (holder eventdb.Entry, held bool, err error) {
	if ev := d.at[address]; ev != nil && !d.asks(ev) {
		holder, err = eventdb.EntryOf(ev)
		return holder, err == nil, err
	}
	holder, held, err = d.view.Holder(address.Kind, address.PubKey, address.Identifier)
	if !held || err != nil {
		return holder, false, err
	}
	was := nostr.Event{ID: hex.EncodeToString(holder.ID[:]), PubKey: address.PubKey, Kind: address.Kind,
		CreatedAt: holder.CreatedAt, Tags: nostr.Tags{{"d", address.Identifier}}}
	_, left := d.events[was.ID]
	return holder, !left && !d.asks(&was), nil
}

func (d *draft) Deleted(ev *nostr.Event) (bool, error) {
	if d.asks(ev) {
		return true, nil
	}
	return d.view.Deleted(ev)
}

// vouchSteps bounds what is looked at of the accepted events that name one in one way, in steps
// over the index. Anybody may bring in deletion requests, which speak for nothing, as many as they
// like; the newest thousands are all that is looked through for one that does.
const vouchSteps = 10_000

func (d *draft) Vouched(ev *nostr.Event) (bool, error) {
	if vouched, err := d.vouchedBy(ev.ID, "e", "E", "q"); vouched || err != nil {
		return vouched, err
	}
	address, has := nostr.AddressOf(ev)
	if !has {
		return false, nil
	}
	return d.vouchedBy(address.String(), "a", "A", "q")
}

// vouchedBy reports whether an accepted event names an id or address in one of these tags.
func (d *draft) vouchedBy(name string, tags ...string) (bool, error) {
	for _, id := range d.named[name] {
		if _, accepted, err := d.AcceptedKind(id); accepted || err != nil {
			return accepted, err
		}
	}
	view := d.view.Within(vouchSteps)
	for _, tag := range tags {
		for other, err := range view.IDs(d.ctx, nostr.Filter{Tags: nostr.TagMap{tag: {name}}}) {
			if errors.Is(err, eventdb.ErrTooBroad) {
				break
			}
			if err != nil {
				return false, err
			}
			if !policy.Vouches(other.Kind) {
				continue
			}
			if _, accepted, err := d.AcceptedKind(hex.EncodeToString(other.ID[:])); accepted || err != nil {
				return accepted, err
			}
		}
	}
	return false, nil
}

// Accept takes an event into the log.
func (d *draft) Accept(ev *nostr.Event) error {
	if address, ok := nostr.AddressOf(ev); ok {
		before, err := d.AcceptedAt(address)
		if err != nil {
			return err
		}
		if before != nil {
			d.events[before.ID] = nil
		}
		d.at[address] = ev
	}
	if policy.Vouches(ev.Kind) {
		for _, name := range nostr.NamesOf(ev) {
			d.named[name] = append(d.named[name], ev.ID)
		}
	}
	d.events[ev.ID] = ev
	switch ev.Kind {
	case nostr.KindAnnouncement:
		if c := d.announced[ev.Tags.GetD()]; c != nil {
			c.add(ev, d.domain)
		}
	case nostr.KindDeletion:
		if d.keepDeleted {
			break
		}
		d.delete(ev)
		for _, c := range d.announced {
			if a := c.by[ev.PubKey]; a != nil && d.asks(a.Event) {
				c.remove(ev.PubKey)
			}
		}
	}
	return nil
}

// Remove takes an accepted event out of the log, as if it had never been there. Announcements never
// leave so.
func (d *draft) Remove(ev *nostr.Event) {
	d.events[ev.ID] = nil
	if address, ok := nostr.AddressOf(ev); ok {
		d.at[address] = nil
	}
}

func (d *draft) Held() *held.Directory { return d.held }

func (d *draft) Room() *policy.Room { return d.room }

// Hold writes an entry to the held events.
func (d *draft) Hold(e *held.Entry) {
	d.Drop(e)
	d.held.Add(e)
	d.room.Add(e)
	d.entries[e.Key] = e
}

// Drop deletes the entry of a key from the held events.
func (d *draft) Drop(e *held.Entry) {
	if before := d.held.Remove(e.Key); before != nil {
		d.room.Remove(before)
	}
	d.entries[e.Key] = nil
}

func (d *draft) HiddenBy(id string) string {
	name, _ := d.view.Hidden(id)
	return name
}

func (d *draft) Wrote(pubkey string) (bool, error) {
	for _, err := range d.view.IDs(d.ctx, nostr.Filter{Authors: []string{pubkey}, Limit: 1}) {
		return err == nil, err
	}
	return false, nil
}

func (d *draft) RejectedBefore(id string) (string, bool) {
	if r, said := d.rejections[id]; said {
		return r.Reason, !r.taken
	}
	r, before := d.rejected.Find(id, d.now)
	return r.Reason, before
}

// Reject remembers a rejection.
func (d *draft) Reject(r proto.RejectedEvent) {
	d.rejections[r.ID] = rejection{RejectedEvent: r}
	for _, key := range r.Missing {
		d.missing[key] = append(d.missing[key], r.ID)
	}
}

// Forget forgets that an event was rejected, if it was.
func (d *draft) Forget(id string) {
	r, said := d.rejections[id]
	if !said {
		before, is := d.rejected.Find(id, d.now)
		r.ID, r.Kind, r.taken = before.ID, before.Kind, !is
	}
	if !r.taken {
		d.rejections[id] = rejection{RejectedEvent: proto.RejectedEvent{ID: r.ID, Kind: r.Kind}, taken: true}
	}
}

// Arrived forgets the rejections of everything that missed one of these keys, and returns their
// ids.
func (d *draft) Arrived(keys []string) (ids []string) {
	for _, key := range keys {
		for _, r := range d.rejected.Waiting(key) {
			if _, said := d.rejections[r.ID]; !said { // what was rejected again misses something else
				ids = append(ids, r.ID)
				d.Forget(r.ID)
			}
		}
		for _, id := range d.missing[key] {
			if slices.Contains(d.rejections[id].Missing, key) {
				ids = append(ids, id)
				d.Forget(id)
			}
		}
	}
	return ids
}

// delete notes what a deletion request names: until when events of its author are deleted, by id or
// address.
func (c *changes) delete(request *nostr.Event) {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		switch tag[0] {
		case "e":
			c.deletes[request.PubKey+tag[1]] = math.MaxInt64
		case "a":
			if address, err := nostr.ParseAddress(tag[1]); err == nil && address.PubKey == request.PubKey {
				c.deletes[address.String()] = max(c.deletes[address.String()], request.CreatedAt)
			}
		}
	}
}

// asks reports whether a deletion request of the batch asks for the deletion of ev. Deletion
// requests cannot be deleted (NIP-09).
func (c *changes) asks(ev *nostr.Event) bool {
	if len(c.deletes) == 0 || ev.Kind == nostr.KindDeletion {
		return false
	}
	until, named := c.deletes[ev.PubKey+ev.ID]
	if address, ok := nostr.AddressOf(ev); ok && !named {
		until, named = c.deletes[address.String()]
	}
	return named && ev.CreatedAt <= until
}
