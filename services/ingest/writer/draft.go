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

// draft is what will be accepted, held and rejected when all batches are stored that were decided:
// an event that one has accepted counts for the next decision at once. It begins with a term. If a
// commit fails it is of no more use.
//
// Held events are a copy of the set as of the last decision. The log and the rejected ids are the
// index, with layers over it: of the batch at hand, and of the one that is being committed.
type draft struct {
	index       *eventdb.DB
	rejected    *known.Rejected
	domain      string // ours
	keepDeleted bool   // deletion requests do not touch what is accepted

	ctx       context.Context // of reads
	now       time.Time
	view      *eventdb.View // of the log below the layers
	layers    []*layer      // the last one is of the batch at hand
	held      *held.Directory
	room      *policy.Room
	announced map[string]*circle // by identifier, as of the last decision
}

// layer is what one batch changes. What a deletion request takes away stays in it, and is passed
// over when it is read.
type layer struct {
	events  map[string]*nostr.Event        // accepted; nil: it was there, and is replaced or removed
	at      map[nostr.Address]*nostr.Event // nil: nothing is there; what was read is kept too
	named   map[string][]string            // ids of accepted events by the ids and addresses that they name
	deletes map[string]nostr.Timestamp     // of a deleted author and id, or address: up to this time

	held map[string]*held.Entry // by key; nil: gone

	rejected map[string]rejection
	missing  map[string][]string // ids of rejected by what they miss
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

// begin begins a batch.
func (d *draft) begin(ctx context.Context, now time.Time) *layer {
	l := &layer{
		events: map[string]*nostr.Event{}, at: map[nostr.Address]*nostr.Event{}, named: map[string][]string{},
		deletes: map[string]nostr.Timestamp{},
		held:    map[string]*held.Entry{}, rejected: map[string]rejection{}, missing: map[string][]string{},
	}
	d.ctx, d.layers = ctx, append(d.layers, l)
	if len(d.announced) > keptCircles {
		clear(d.announced)
	}
	d.refresh(now)
	return l
}

// refresh says what time it is. While no batch is being committed what has expired goes.
func (d *draft) refresh(now time.Time) {
	d.now = now
	if len(d.layers) == 1 {
		_ = d.view.Close()
		d.view = d.index.View()
	}
}

// stored says that the index has the batch of the first layer.
func (d *draft) stored() {
	d.layers = d.layers[1:]
	d.refresh(d.now)
}

// undo says that the batch at hand has decided nothing.
func (d *draft) undo() { d.layers = d.layers[:len(d.layers)-1] }

func (d *draft) top() *layer { return d.layers[len(d.layers)-1] }

// over looks for what the layers say, the last one first.
func over[K comparable, V any](d *draft, key K, of func(*layer) map[K]V) (v V, said bool) {
	for _, l := range slices.Backward(d.layers) {
		if v, said = of(l)[key]; said {
			return v, true
		}
	}
	return v, false
}

func eventsOf(l *layer) map[string]*nostr.Event           { return l.events }
func addressesOf(l *layer) map[nostr.Address]*nostr.Event { return l.at }
func rejectedOf(l *layer) map[string]rejection            { return l.rejected }

// asked reports whether a deletion request of the batches names an event.
func (d *draft) asked(ev *nostr.Event) bool {
	return slices.ContainsFunc(d.layers, func(l *layer) bool { return l.asks(ev) })
}

// standing returns an event that was found, unless there was none or its author has deleted it.
func (d *draft) standing(ev *nostr.Event, err error) (*nostr.Event, error) {
	if errors.Is(err, eventdb.ErrNotFound) || ev != nil && d.asked(ev) {
		return nil, nil
	}
	return ev, err
}

var _ policy.Knowledge = (*draft)(nil)

// Accepted implements [policy.Knowledge], as do the next ones.
func (d *draft) Accepted(id string) (*nostr.Event, error) {
	if ev, said := over(d, id, eventsOf); said {
		return d.standing(ev, nil)
	}
	return d.standing(d.view.Event(id))
}

// AcceptedKind mostly reads no event.
func (d *draft) AcceptedKind(id string) (kind int, accepted bool, err error) {
	_, said := over(d, id, eventsOf)
	if said || slices.ContainsFunc(d.layers, func(l *layer) bool { return len(l.deletes) > 0 }) {
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
	if ev, said := over(d, address, addressesOf); said {
		return d.standing(ev, nil)
	}
	// Only these kinds have addresses; what else a stranger writes as one is at none.
	if !nostr.IsReplaceableKind(address.Kind) && !nostr.IsAddressableKind(address.Kind) {
		return nil, nil
	}
	ev, err := d.standing(d.view.Replaceable(address.Kind, address.PubKey, address.Identifier))
	if err == nil {
		d.top().at[address] = ev
	}
	return ev, err
}

// Holder tells of an event that has expired too. One that was deleted or removed holds nothing.
func (d *draft) Holder(address nostr.Address) (holder eventdb.Entry, held bool, err error) {
	if ev, _ := over(d, address, addressesOf); ev != nil && !d.asked(ev) {
		holder, err = eventdb.EntryOf(ev)
		return holder, err == nil, err
	}
	holder, held, err = d.view.Holder(address.Kind, address.PubKey, address.Identifier)
	if !held || err != nil {
		return holder, false, err
	}
	was := nostr.Event{ID: hex.EncodeToString(holder.ID[:]), PubKey: address.PubKey, Kind: address.Kind,
		CreatedAt: holder.CreatedAt, Tags: nostr.Tags{{"d", address.Identifier}}}
	_, left := over(d, was.ID, eventsOf)
	return holder, !left && !d.asked(&was), nil
}

func (d *draft) Deleted(ev *nostr.Event) (bool, error) {
	if d.asked(ev) {
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
	for _, l := range d.layers {
		for _, id := range l.named[name] {
			if _, accepted, err := d.AcceptedKind(id); accepted || err != nil {
				return accepted, err
			}
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
	l := d.top()
	if address, ok := nostr.AddressOf(ev); ok {
		before, err := d.AcceptedAt(address)
		if err != nil {
			return err
		}
		if before != nil {
			l.events[before.ID] = nil
		}
		l.at[address] = ev
	}
	if policy.Vouches(ev.Kind) {
		for _, name := range nostr.NamesOf(ev) {
			l.named[name] = append(l.named[name], ev.ID)
		}
	}
	l.events[ev.ID] = ev
	switch ev.Kind {
	case nostr.KindAnnouncement:
		if c := d.announced[ev.Tags.GetD()]; c != nil {
			c.add(ev, d.domain)
		}
	case nostr.KindDeletion:
		if d.keepDeleted {
			break
		}
		l.delete(ev)
		for _, c := range d.announced {
			if a := c.by[ev.PubKey]; a != nil && l.asks(a.Event) {
				c.remove(ev.PubKey)
			}
		}
	}
	return nil
}

// Remove takes an accepted event out of the log, as if it had never been there. Announcements never
// leave so.
func (d *draft) Remove(ev *nostr.Event) {
	d.top().events[ev.ID] = nil
	if address, ok := nostr.AddressOf(ev); ok {
		d.top().at[address] = nil
	}
}

func (d *draft) Held() *held.Directory { return d.held }

func (d *draft) Room() *policy.Room { return d.room }

// Hold writes an entry to the held events.
func (d *draft) Hold(e *held.Entry) {
	d.Drop(e)
	d.held.Add(e)
	d.room.Add(e)
	d.top().held[e.Key] = e
}

// Drop deletes the entry of a key from the held events.
func (d *draft) Drop(e *held.Entry) {
	if before := d.held.Remove(e.Key); before != nil {
		d.room.Remove(before)
	}
	d.top().held[e.Key] = nil
}

func (d *draft) RejectedBefore(id string) (string, bool) {
	if r, said := over(d, id, rejectedOf); said {
		return r.Reason, !r.taken
	}
	r, before := d.rejected.Find(id, d.now)
	return r.Reason, before
}

// Reject remembers a rejection.
func (d *draft) Reject(r proto.RejectedEvent) {
	l := d.top()
	l.rejected[r.ID] = rejection{RejectedEvent: r}
	for _, key := range r.Missing {
		l.missing[key] = append(l.missing[key], r.ID)
	}
}

// Forget forgets that an event was rejected, if it was.
func (d *draft) Forget(id string) {
	r, said := over(d, id, rejectedOf)
	if !said {
		before, is := d.rejected.Find(id, d.now)
		r.ID, r.Kind, r.taken = before.ID, before.Kind, !is
	}
	if !r.taken {
		d.top().rejected[id] = rejection{RejectedEvent: proto.RejectedEvent{ID: r.ID, Kind: r.Kind}, taken: true}
	}
}

// Arrived forgets the rejections of everything that missed one of these keys.
func (d *draft) Arrived(keys []string) {
	for _, key := range keys {
		for _, l := range d.layers {
			for _, id := range l.missing[key] {
				if r, _ := over(d, id, rejectedOf); slices.Contains(r.Missing, key) {
					d.Forget(id)
				}
			}
		}
		for _, r := range d.rejected.Waiting(key) {
			if _, said := over(d, r.ID, rejectedOf); !said { // what was rejected again misses something else
				d.Forget(r.ID)
			}
		}
	}
}

// delete notes what a deletion request names: until when events of its author are deleted, by id or
// address.
func (l *layer) delete(request *nostr.Event) {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		switch tag[0] {
		case "e":
			l.deletes[request.PubKey+tag[1]] = math.MaxInt64
		case "a":
			if address, err := nostr.ParseAddress(tag[1]); err == nil && address.PubKey == request.PubKey {
				l.deletes[address.String()] = max(l.deletes[address.String()], request.CreatedAt)
			}
		}
	}
}

// asks reports whether a deletion request asks for the deletion of ev. Deletion requests cannot be
// deleted (NIP-09).
func (l *layer) asks(ev *nostr.Event) bool {
	if len(l.deletes) == 0 || ev.Kind == nostr.KindDeletion {
		return false
	}
	until, named := l.deletes[ev.PubKey+ev.ID]
	if address, ok := nostr.AddressOf(ev); ok && !named {
		until, named = l.deletes[address.String()]
	}
	return named && ev.CreatedAt <= until
}
