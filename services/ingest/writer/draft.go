package writer

import (
	"context"
	"encoding/hex"
	"errors"
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

// layer is what one batch changes.
type layer struct {
	events  map[string]*nostr.Event          // accepted; nil: it was there, and is replaced or deleted
	at      map[nostr.Address]*nostr.Event   // nil: nothing is there; what was read is kept too
	holders map[nostr.Address]*eventdb.Entry // that the batch has changed; nil: none any more
	named   map[string][]string              // ids of accepted events by the ids and addresses that they name
	asked   deletions

	held map[string]*held.Entry // by key; nil: gone

	rejected map[string]rejection
	order    []string            // ids of rejected in the order of their first rejection
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
		events: map[string]*nostr.Event{}, at: map[nostr.Address]*nostr.Event{}, holders: map[nostr.Address]*eventdb.Entry{},
		named: map[string][]string{}, asked: deletions{map[authored]bool{}, map[nostr.Address]nostr.Timestamp{}},
		held: map[string]*held.Entry{}, rejected: map[string]rejection{}, missing: map[string][]string{},
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
		d.look()
	}
}

func (d *draft) look() {
	_ = d.view.Close()
	d.view = d.index.View()
}

// stored says that the index has the batch of the first layer.
func (d *draft) stored() {
	d.layers = d.layers[1:]
	d.look()
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
func holdersOf(l *layer) map[nostr.Address]*eventdb.Entry { return l.holders }
func rejectedOf(l *layer) map[string]rejection            { return l.rejected }

var _ policy.Knowledge = (*draft)(nil)

// Accepted returns the accepted event of that id, or nil.
func (d *draft) Accepted(id string) (*nostr.Event, error) {
	if ev, said := over(d, id, eventsOf); said {
		return ev, nil
	}
	return found(d.view.Event(id))
}

// AcceptedKind returns the kind of the accepted event of that id; false if there is none. It reads
// no event.
func (d *draft) AcceptedKind(id string) (kind int, accepted bool, err error) {
	if ev, said := over(d, id, eventsOf); said && ev != nil {
		return ev.Kind, true, nil
	} else if said {
		return 0, false, nil
	}
	kind, err = d.view.Kind(id)
	if errors.Is(err, eventdb.ErrNotFound) {
		return 0, false, nil
	}
	return kind, err == nil, err
}

// AcceptedAt returns the accepted event at an address, or nil.
func (d *draft) AcceptedAt(address nostr.Address) (*nostr.Event, error) {
	if ev, said := over(d, address, addressesOf); said {
		return ev, nil
	}
	// Only these kinds have addresses; what else a stranger writes as one is at none.
	if !nostr.IsReplaceableKind(address.Kind) && !nostr.IsAddressableKind(address.Kind) {
		return nil, nil
	}
	ev, err := found(d.view.Replaceable(address.Kind, address.PubKey, address.Identifier))
	if err != nil {
		return nil, err
	}
	if ev != nil && d.isGone(ev.ID) {
		ev = nil
	}
	d.top().at[address] = ev
	return ev, nil
}

// isGone reports whether a batch has replaced or deleted what the view has.
func (d *draft) isGone(id string) bool {
	ev, said := over(d, id, eventsOf)
	return said && ev == nil
}

// Holder returns where the event at an address stands to which older ones give way, though it may
// have expired.
func (d *draft) Holder(address nostr.Address) (holder eventdb.Entry, held bool, err error) {
	if holder, said := over(d, address, holdersOf); said && holder != nil {
		return *holder, true, nil
	} else if said {
		return eventdb.Entry{}, false, nil
	}
	return d.view.Holder(address.Kind, address.PubKey, address.Identifier)
}

// Deleted reports whether an accepted deletion request of its author names the event.
func (d *draft) Deleted(ev *nostr.Event) (bool, error) {
	for _, l := range d.layers {
		if !d.keepDeleted && l.asked.name(ev) {
			return true, nil
		}
	}
	return d.view.Deleted(ev)
}

// vouchSteps bounds what is looked at of the accepted events that name one in one way, in steps
// over the index. Anybody may bring in deletion requests, which speak for nothing, as many as they
// like; the newest thousands are all that is looked through for one that does.
const vouchSteps = 10_000

// Vouched reports whether an accepted event names this one.
func (d *draft) Vouched(ev *nostr.Event) (bool, error) {
	names := []string{ev.ID}
	filters := tagFilters([]string{"e", "E", "q"}, ev.ID)
	if address, has := nostr.AddressOf(ev); has {
		names = append(names, address.String())
		filters = append(filters, tagFilters([]string{"a", "A", "q"}, address.String())...)
	}
	for _, name := range names {
		for _, l := range d.layers {
			if slices.ContainsFunc(l.named[name], func(id string) bool { return !d.isGone(id) }) {
				return true, nil
			}
		}
	}
	view := d.view.Within(vouchSteps)
	for _, f := range filters {
		for other, err := range view.IDs(d.ctx, f) {
			if errors.Is(err, eventdb.ErrTooBroad) {
				break
			}
			if err != nil {
				return false, err
			}
			if policy.Vouches(other.Kind) && !d.isGone(hex.EncodeToString(other.ID[:])) {
				return true, nil
			}
		}
	}
	return false, nil
}

func tagFilters(tags []string, value string) []nostr.Filter {
	filters := make([]nostr.Filter, len(tags))
	for i, tag := range tags {
		filters[i] = nostr.Filter{Tags: nostr.TagMap{tag: {value}}}
	}
	return filters
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
			d.leave(before)
		}
		place, err := eventdb.EntryOf(ev)
		if err != nil {
			return err
		}
		l.at[address], l.holders[address] = ev, &place
	}
	for _, name := range namesOf(ev) {
		l.named[name] = append(l.named[name], ev.ID)
	}
	l.events[ev.ID] = ev
	switch ev.Kind {
	case nostr.KindAnnouncement:
		if c := d.announced[ev.Tags.GetD()]; c != nil {
			c.add(ev)
		}
	case nostr.KindDeletion:
		l.asked.add(ev)
		if !d.keepDeleted {
			return d.delete(ev)
		}
	}
	return nil
}

// delete removes from the log what a deletion request names.
func (d *draft) delete(request *nostr.Event) error {
	l := d.top()
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		var ev *nostr.Event
		var err error
		switch tag[0] {
		case "e":
			ev, err = d.Accepted(tag[1])
		case "a":
			address, parseErr := nostr.ParseAddress(tag[1])
			if parseErr != nil || address.PubKey != request.PubKey {
				continue
			}
			holder, held, holderErr := d.Holder(address)
			if holderErr != nil {
				return holderErr
			}
			if !held || holder.CreatedAt > request.CreatedAt {
				continue
			}
			ev, err = d.AcceptedAt(address)
			l.holders[address] = nil
		}
		if err != nil {
			return err
		}
		if ev == nil || ev.PubKey != request.PubKey || ev.Kind == nostr.KindDeletion {
			continue
		}
		d.leave(ev)
		if address, ok := nostr.AddressOf(ev); ok {
			l.at[address], l.holders[address] = nil, nil
		}
	}
	return nil
}

// Remove takes an accepted event out of the log, as if it had never been there.
func (d *draft) Remove(ev *nostr.Event) {
	d.leave(ev)
	if address, ok := nostr.AddressOf(ev); ok {
		l := d.top()
		l.at[address], l.holders[address] = nil, nil
	}
}

// leave removes an event from the log.
func (d *draft) leave(ev *nostr.Event) {
	d.top().events[ev.ID] = nil
	if c := d.announced[ev.Tags.GetD()]; c != nil && ev.Kind == nostr.KindAnnouncement {
		c.remove(ev.PubKey, ev.ID)
	}
}

// namesOf returns the ids and addresses that an event speaks for by naming them.
func namesOf(ev *nostr.Event) []string {
	if !policy.Vouches(ev.Kind) {
		return nil
	}
	return nostr.NamesOf(ev)
}

// found makes "not there" nil.
func found(ev *nostr.Event, err error) (*nostr.Event, error) {
	if errors.Is(err, eventdb.ErrNotFound) {
		return nil, nil
	}
	return ev, err
}

// Held is the held events. They must not be changed.
func (d *draft) Held() *held.Directory { return d.held }

// Room counts the held events. It must not be changed.
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

// RejectedBefore returns the answer that an event got when it was rejected.
func (d *draft) RejectedBefore(id string) (string, bool) {
	if r, said := over(d, id, rejectedOf); said {
		return r.Reason, !r.taken
	}
	r, before := d.rejected.Find(id, d.now)
	return r.Reason, before
}

// Reject remembers a rejection.
func (d *draft) Reject(r proto.RejectedEvent) {
	d.note(rejection{RejectedEvent: r})
	l := d.top()
	for _, key := range r.Missing {
		l.missing[key] = append(l.missing[key], r.ID)
	}
}

func (d *draft) note(r rejection) {
	l := d.top()
	if _, said := l.rejected[r.ID]; !said {
		l.order = append(l.order, r.ID)
	}
	l.rejected[r.ID] = r
}

// Forget forgets that an event was rejected, if it was.
func (d *draft) Forget(id string) {
	r, said := over(d, id, rejectedOf)
	if !said {
		before, is := d.rejected.Find(id, d.now)
		if !is {
			return
		}
		r.ID, r.Kind = before.ID, before.Kind
	}
	if !r.taken {
		d.note(rejection{RejectedEvent: proto.RejectedEvent{ID: r.ID, Kind: r.Kind}, taken: true})
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

// Waiting reports whether anything that was rejected may deserve another decision when something
// arrives. If not, it need not be told what does.
func (d *draft) Waiting() bool {
	return d.rejected.AnyWaiting() || slices.ContainsFunc(d.layers, func(l *layer) bool { return len(l.missing) > 0 })
}

// deletions is what the deletion requests of a batch name.
type deletions struct {
	ids       map[authored]bool
	addresses map[nostr.Address]nostr.Timestamp // up to this time
}

type authored struct{ pubkey, id string }

func (x deletions) add(request *nostr.Event) {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		switch tag[0] {
		case "e":
			x.ids[authored{request.PubKey, tag[1]}] = true
		case "a":
			if address, err := nostr.ParseAddress(tag[1]); err == nil && address.PubKey == request.PubKey {
				x.addresses[address] = max(x.addresses[address], request.CreatedAt)
			}
		}
	}
}

// name reports whether one of the requests asks for the deletion of ev. Deletion requests cannot be
// deleted (NIP-09).
func (x deletions) name(ev *nostr.Event) bool {
	if ev.Kind == nostr.KindDeletion {
		return false
	}
	if x.ids[authored{ev.PubKey, ev.ID}] {
		return true
	}
	address, ok := nostr.AddressOf(ev)
	if !ok {
		return false
	}
	until, named := x.addresses[address]
	return named && ev.CreatedAt <= until
}
