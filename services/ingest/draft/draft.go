// Package draft is what will be accepted, held and rejected if the batch at hand is committed: the
// projections as they are, and over them the decisions of the batch so far. An event that the batch
// has accepted counts for the next one at once, so that a batch of five hundred decides as five
// hundred batches of one would. A draft may go on after the end of a batch, so that the next one is
// decided while that one is committed (see [Draft.Cut]).
package draft

import (
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/services/ingest/rejections"
)

// Base is what a draft stands on. It does not change while the draft is in use, but by what the
// draft itself was cut into.
type Base struct {
	Log      *eventdb.View // the log as of one sequence
	Held     *held.Set
	Room     *policy.Room // counts Held; the draft changes it; nil: it is counted now
	Rejected *rejections.Index
	// Announced keeps what was read of accepted announcements from one draft to the next; nil:
	// nothing is kept.
	Announced *Announced
	Domain    string // ours
	// KeepDeleted: deletion requests do not touch what is accepted.
	KeepDeleted bool
	Now         time.Time
}

// Draft is a batch in the making, or several that follow each other. It is not safe for concurrent
// use.
type Draft struct {
	ctx  context.Context
	base Base

	added  map[string]*nostr.Event          // accepted by the batch
	gone   map[string]bool                  // accepted before, or by the batch, and replaced or deleted since
	at     map[nostr.Address]*nostr.Event   // nil: nothing is there (any more)
	taken  map[nostr.Address]*eventdb.Entry // holders that the batch has changed; nil: nobody any more
	named  map[string]int                   // how many events of the batch name an id or an address
	unsent deletions

	held     heldChanges
	rejected rejectedChanges
}

// New begins a draft. ctx bounds the reads from the base.
func New(ctx context.Context, base Base) *Draft {
	if base.Room == nil {
		base.Room = policy.NewRoom(base.Held.All()...)
	}
	if base.Announced == nil {
		base.Announced = NewAnnounced()
	}
	return &Draft{
		ctx: ctx, base: base,
		added: map[string]*nostr.Event{}, gone: map[string]bool{}, at: map[nostr.Address]*nostr.Event{},
		taken: map[nostr.Address]*eventdb.Entry{}, named: map[string]int{}, unsent: newDeletions(),
		held: newHeldChanges(base.Held, base.Room), rejected: newRejectedChanges(),
	}
}

var _ policy.Knowledge = (*Draft)(nil)

// Accepted returns the accepted event of that id, or nil.
func (d *Draft) Accepted(id string) (*nostr.Event, error) {
	if ev := d.added[id]; ev != nil {
		return ev, nil
	}
	if d.gone[id] {
		return nil, nil
	}
	return found(d.base.Log.Event(id))
}

// AcceptedKind returns the kind of the accepted event of that id; false if there is none. It reads
// no event.
func (d *Draft) AcceptedKind(id string) (kind int, accepted bool, err error) {
	if ev := d.added[id]; ev != nil {
		return ev.Kind, true, nil
	}
	if d.gone[id] {
		return 0, false, nil
	}
	kind, err = d.base.Log.Kind(id)
	if errors.Is(err, eventdb.ErrNotFound) {
		return 0, false, nil
	}
	return kind, err == nil, err
}

// AcceptedAt returns the accepted event at an address, or nil.
func (d *Draft) AcceptedAt(address nostr.Address) (*nostr.Event, error) {
	if ev, known := d.at[address]; known {
		return ev, nil
	}
	// Only these kinds have addresses; what else a stranger writes as one is at none.
	if !nostr.IsReplaceableKind(address.Kind) && !nostr.IsAddressableKind(address.Kind) {
		return nil, nil
	}
	ev, err := found(d.base.Log.Replaceable(address.Kind, address.PubKey, address.Identifier))
	if err != nil {
		return nil, err
	}
	if ev != nil && d.gone[ev.ID] {
		ev = nil
	}
	d.at[address] = ev
	return ev, nil
}

// Holder returns where the event at an address stands to which older ones give way, though it may
// have expired.
func (d *Draft) Holder(address nostr.Address) (holder eventdb.Entry, held bool, err error) {
	if holder, changed := d.taken[address]; changed {
		if holder == nil {
			return eventdb.Entry{}, false, nil
		}
		return *holder, true, nil
	}
	return d.base.Log.Holder(address.Kind, address.PubKey, address.Identifier)
}

// Deleted reports whether an accepted deletion request of its author names the event.
func (d *Draft) Deleted(ev *nostr.Event) (bool, error) {
	if !d.base.KeepDeleted && d.unsent.name(ev) {
		return true, nil
	}
	return d.base.Log.Deleted(ev)
}

// vouchSteps bounds what is looked at of the accepted events that name one in one way, in steps
// over the index. Anybody may bring in deletion requests, which speak for nothing, as many as they
// like; the newest thousands are all that is looked through for one that does.
const vouchSteps = 10_000

// Vouched reports whether an accepted event names this one.
func (d *Draft) Vouched(ev *nostr.Event) (bool, error) {
	address, hasAddress := nostr.AddressOf(ev)
	names := []string{ev.ID}
	filters := tagFilters([]string{"e", "E", "q"}, ev.ID)
	if hasAddress {
		names = append(names, address.String())
		filters = append(filters, tagFilters([]string{"a", "A", "q"}, address.String())...)
	}
	for _, name := range names {
		if d.named[name] > 0 {
			return true, nil
		}
	}
	log := d.base.Log.Within(vouchSteps)
	for _, f := range filters {
		for other, err := range log.IDs(d.ctx, f) {
			if errors.Is(err, eventdb.ErrTooBroad) {
				break
			}
			if err != nil {
				return false, err
			}
			if policy.Vouches(other.Kind) && !d.gone[hex.EncodeToString(other.ID[:])] {
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

// Accept takes an event into the draft's log.
func (d *Draft) Accept(ev *nostr.Event) error {
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
		d.at[address], d.taken[address] = ev, &place
	}
	if d.added[ev.ID] == nil {
		for _, name := range namesOf(ev) {
			d.named[name]++
		}
	}
	d.added[ev.ID] = ev
	delete(d.gone, ev.ID)
	if ev.Kind == nostr.KindAnnouncement {
		d.base.Announced.add(ev)
	}
	if ev.Kind == nostr.KindDeletion {
		d.unsent.add(ev)
		if !d.base.KeepDeleted {
			return d.delete(ev)
		}
	}
	return nil
}

// delete removes what a deletion request names from the draft's log.
func (d *Draft) delete(request *nostr.Event) error {
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
			d.taken[address] = nil
		}
		if err != nil {
			return err
		}
		if ev == nil || ev.PubKey != request.PubKey || ev.Kind == nostr.KindDeletion {
			continue
		}
		d.leave(ev)
		if address, ok := nostr.AddressOf(ev); ok {
			d.at[address] = nil
			// As in the index: what would have gone by itself goes on holding its address when it
			// is deleted by its id.
			if eventdb.Expiration(ev) == 0 {
				d.taken[address] = nil
			}
		}
	}
	return nil
}

// Remove takes an accepted event out of the draft's log, as if it had never been there.
func (d *Draft) Remove(ev *nostr.Event) {
	d.leave(ev)
	if address, ok := nostr.AddressOf(ev); ok {
		d.at[address], d.taken[address] = nil, nil
	}
}

// leave removes an event from the draft's log.
func (d *Draft) leave(ev *nostr.Event) {
	if d.added[ev.ID] != nil {
		for _, name := range namesOf(ev) {
			d.named[name]--
		}
	}
	d.gone[ev.ID] = true
	delete(d.added, ev.ID)
	if ev.Kind == nostr.KindAnnouncement {
		d.base.Announced.remove(ev)
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

// Held returns the held event of that id, or nil.
func (d *Draft) Held(id string) *held.Entry { return d.held.byID(id) }

// HeldOf returns the held events of an identifier, in order of their keys.
func (d *Draft) HeldOf(identifier string) []*held.Entry { return d.held.of(identifier) }

// HeldAt returns the held events at an address.
func (d *Draft) HeldAt(address nostr.Address) iter.Seq[*held.Entry] {
	return d.held.over(d.base.Held.At(address), d.held.now.At(address))
}

// HeldAnnouncements returns the held announcements of an identifier.
func (d *Draft) HeldAnnouncements(identifier string) iter.Seq[*held.Entry] {
	return d.held.over(d.base.Held.Announcements(identifier), d.held.now.Announcements(identifier))
}

// HeldNaming returns the held announcements of an identifier that name this key among their
// maintainers.
func (d *Draft) HeldNaming(identifier, pubkey string) iter.Seq[*held.Entry] {
	return d.held.over(d.base.Held.Naming(identifier, pubkey), d.held.now.Naming(identifier, pubkey))
}

// Room counts the held events, with those of the batch so far. It must not be changed.
func (d *Draft) Room() *policy.Room { return d.held.room }

// Hold writes an entry to the draft's held events.
func (d *Draft) Hold(e *held.Entry) { d.held.put(e) }

// Drop deletes an entry from the draft's held events.
func (d *Draft) Drop(e *held.Entry) { d.held.drop(e) }

// RejectedBefore returns the answer that an event got when it was rejected.
func (d *Draft) RejectedBefore(id string) (string, bool) {
	return d.rejected.answer(d.base.Rejected, id, d.base.Now)
}

// Reject remembers a rejection.
func (d *Draft) Reject(r proto.RejectedEvent) { d.rejected.add(r) }

// Forget forgets that an event was rejected, if it was.
func (d *Draft) Forget(id string) { d.rejected.forget(d.base.Rejected, id) }

// Arrived forgets the rejections of everything that missed one of these keys.
func (d *Draft) Arrived(keys []string) { d.rejected.arrived(d.base.Rejected, keys) }

// Waiting reports whether anything that was rejected may deserve another decision when something
// arrives. If not, it need not be told what does.
func (d *Draft) Waiting() bool { return len(d.rejected.waiting) > 0 || d.base.Rejected.AnyWaiting() }

// Changes is what a batch changes besides the log.
type Changes struct {
	Held     []held.Change         // in order of their keys: each key once, an entry or nil
	Rejected []proto.RejectedEvent // remembered, in order of their rejection
	Taken    []rejections.Rejected // remembered before the batch, and not any more, in order of their ids
}

// Cut ends a batch and gives what was decided since the last cut. What is decided from now on
// stands on that as if it were committed: the projections may take it in meanwhile, in this order,
// or not yet. If it is not committed the draft is of no more use.
func (d *Draft) Cut() Changes {
	added, taken := d.rejected.cut()
	return Changes{Held: d.held.cut(), Rejected: added, Taken: taken}
}

// SetNow says what time it is for the decisions that follow. What the view of the log shows as
// expired was decided when it was taken.
func (d *Draft) SetNow(now time.Time) { d.base.Now = now }
