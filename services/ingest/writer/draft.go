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
	"tendril.dev/services/ingest/policy"
)

// draft is what is accepted, held and rejected when the batch at hand is stored: an event that it
// has accepted counts for the next decision at once. It begins with a term. If a commit fails it is
// of no more use.
//
// Held events are a copy of the set as of the last decision. The log and the rejected ids are the
// index, with the changes of the batch over it.
type draft struct {
	w    *Writer
	ctx  context.Context // of reads
	err  error           // of the last decision's reads, see [draft.failure]
	now  time.Time       // when the batch began
	view *eventdb.View   // of the log before the batch
	held *held.Directory
	room *policy.Room
	listings
	changes
}

// listings are all accepted announcements of some identifiers, as of the last decision. They answer
// one question, whether anybody lists a key. All that else is asked is read as it is asked for.
type listings struct {
	announced *held.Directory
	read      map[string]bool // identifiers
	until     nostr.Timestamp // when the first of them expires
}

// keptIdentifiers bounds how many identifiers' announcements are kept in memory.
const keptIdentifiers = 256

// changes are those of one batch. What a deletion request takes away stays in them, and is passed
// over when it is read.
type changes struct {
	events  map[string]*nostr.Event        // accepted; nil: it was there, and is replaced or removed
	at      map[nostr.Address]*nostr.Event // nil: nothing is there; what was read is kept too
	named   map[string][]string            // ids of accepted events by the ids and addresses that they name
	floors  map[nostr.Address]*nostr.Event // newest versions that are deleted by their ids
	deletes map[string]nostr.Timestamp     // of a deleted author and id, or address: up to this time

	entries map[string]*held.Entry // by key; nil: gone
	parsed  map[string]*held.Entry // accepted announcements that were looked at, by id; nil: it is none

	rejections map[string]*proto.RejectedEvent // nil: the rejection is taken back
	missing    map[string][]string             // ids of rejected by what they miss
}

func newDraft(w *Writer) *draft {
	d := &draft{w: w, held: held.NewDirectory(), room: policy.NewRoom(), view: w.Index.View()}
	for _, e := range w.Held.All() {
		d.held.Add(e)
		d.room.Add(e)
	}
	return d
}

// begin begins a batch. The index has what the one before has changed.
func (d *draft) begin(ctx context.Context) {
	before := d.view
	_ = before.Close()
	d.ctx, d.now, d.view = ctx, time.Now(), d.w.Index.View()
	d.changes = changes{
		events: map[string]*nostr.Event{}, at: map[nostr.Address]*nostr.Event{}, named: map[string][]string{},
		deletes: map[string]nostr.Timestamp{}, floors: map[nostr.Address]*nostr.Event{}, entries: map[string]*held.Entry{}, parsed: map[string]*held.Entry{},
		rejections: map[string]*proto.RejectedEvent{}, missing: map[string][]string{},
	}
	expired := !d.now.Before(d.until.Time())
	if len(d.read) > keptIdentifiers || expired || !d.view.HidesAs(before) { // what is banned has changed
		d.listings = listings{held.NewDirectory(), map[string]bool{}, math.MaxUint32}
	}
}

// failure returns, and forgets, what could not be read since it was called last.
func (d *draft) failure() error {
	defer func() { d.err = nil }()
	return d.err
}

// found reports whether there was something to read, and notes what could not be read.
func (d *draft) found(err error) bool {
	if err != nil && !errors.Is(err, eventdb.ErrNotFound) {
		d.err = err
	}
	return err == nil
}

// standing returns an event that was found, unless there was none or its author has deleted it.
func (d *draft) standing(ev *nostr.Event, err error) *nostr.Event {
	if !d.found(err) || ev == nil || d.asks(ev) {
		return nil
	}
	return ev
}

var _ policy.Knowledge = (*draft)(nil)

// Accepted implements [policy.Knowledge], as do the next ones.
func (d *draft) Accepted(id string) *nostr.Event {
	if ev, said := d.events[id]; said {
		return d.standing(ev, nil)
	}
	return d.standing(d.view.Event(id))
}

// AcceptedKind mostly reads no event.
func (d *draft) AcceptedKind(id string) (kind int, accepted bool) {
	if _, said := d.events[id]; said || len(d.deletes) > 0 {
		ev := d.Accepted(id)
		if ev == nil {
			return 0, false
		}
		return ev.Kind, true
	}
	kind, err := d.view.Kind(id)
	return kind, d.found(err)
}

// AcceptedAt reads what is at an address once for a batch: most events of a sync name the same few.
func (d *draft) AcceptedAt(address nostr.Address) *nostr.Event {
	ev, said := d.at[address]
	// Only these kinds have addresses; what else a stranger writes as one is at none.
	if !said && (nostr.IsReplaceableKind(address.Kind) || nostr.IsAddressableKind(address.Kind)) {
		if ev = d.standing(d.view.Replaceable(address.Kind, address.PubKey, address.Identifier)); d.err == nil {
			d.at[address] = ev
		}
	}
	return d.standing(ev, nil)
}

// Superseded looks at an event that has expired too. One that was deleted or removed has no place.
func (d *draft) Superseded(ev *nostr.Event) bool {
	address, ok := nostr.AddressOf(ev)
	if !ok {
		return false
	}
	if have := d.at[address]; have != nil && !d.asks(have) {
		return !nostr.Replaces(ev, have)
	}
	holder, is, err := d.view.Holder(address.Kind, address.PubKey, address.Identifier)
	if !d.found(err) || !is {
		return false
	}
	have := nostr.Event{ID: hex.EncodeToString(holder.ID[:]), PubKey: address.PubKey, Kind: address.Kind,
		CreatedAt: holder.CreatedAt, Tags: nostr.Tags{{"d", address.Identifier}}}
	_, left := d.events[have.ID]
	return !left && !d.asks(&have) && !nostr.Replaces(ev, &have)
}

func (d *draft) Deleted(ev *nostr.Event) bool {
	deleted, err := d.view.Deleted(ev)
	return d.found(err) && deleted || d.asks(ev) || d.belowFloor(ev)
}

// vouchSteps bounds what is looked at of the accepted events that name one in one way, in steps
// over the index. Anybody may bring in deletion requests, which speak for nothing, as many as they
// like; the newest thousands are all that is looked through for one that does.
const vouchSteps = 10_000

func (d *draft) Vouched(ev *nostr.Event) bool {
	address, has := nostr.AddressOf(ev)
	return d.vouchedBy(ev.ID, "e", "E", "q") || has && d.vouchedBy(address.String(), "a", "A", "q")
}

// vouchedBy reports whether an accepted event names an id or address in one of these tags.
func (d *draft) vouchedBy(name string, tags ...string) bool {
	for _, id := range d.named[name] {
		if _, accepted := d.AcceptedKind(id); accepted {
			return true
		}
	}
	view := d.view.Within(vouchSteps)
	for _, tag := range tags {
		for other, err := range view.IDs(d.ctx, nostr.Filter{Tags: nostr.TagMap{tag: {name}}}) {
			if errors.Is(err, eventdb.ErrTooBroad) || !d.found(err) {
				break
			}
			if !nostr.KindOf(other.Kind).Vouches {
				continue
			}
			if _, accepted := d.AcceptedKind(hex.EncodeToString(other.ID[:])); accepted {
				return true
			}
		}
	}
	return false
}

// Accept takes an event into the log.
func (d *draft) Accept(ev *nostr.Event) {
	if ev.Kind == nostr.KindAnnouncement && d.read[ev.Tags.GetD()] {
		d.announce(ev)
	}
	if address, ok := nostr.AddressOf(ev); ok {
		if before := d.AcceptedAt(address); before != nil {
			d.events[before.ID] = nil
		}
		d.at[address] = ev
	}
	if nostr.KindOf(ev.Kind).Vouches {
		for _, name := range nostr.NamesOf(ev) {
			d.named[name] = append(d.named[name], ev.ID)
		}
	}
	d.events[ev.ID] = ev
	if ev.Kind != nostr.KindDeletion || d.w.Settings.IgnoreDeletions {
		return
	}
	d.delete(ev)
	for identifier := range d.read {
		for _, e := range d.announced.At(nostr.RepoRef{PubKey: ev.PubKey, Identifier: identifier}.Address()) {
			if d.asks(e.Event) {
				d.announced.Remove(e.Key)
			}
		}
	}
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

func (d *draft) Wrote(pubkey string) bool {
	for _, err := range d.view.IDs(d.ctx, nostr.Filter{Authors: []string{pubkey}, Limit: 1}) {
		return d.found(err)
	}
	return false
}

func (d *draft) RejectedBefore(id string) (string, bool) {
	r, said := d.rejections[id]
	if r != nil {
		return r.Reason, len(r.FetchFrom) == 0
	}
	before, is := d.w.Rejected.Find(id, d.now)
	return before.Reason, is && !said
}

// Reject remembers a rejection.
func (d *draft) Reject(ev *nostr.Event, relay, reason string, missing []string) {
	d.rejections[ev.ID] = &proto.RejectedEvent{
		ID: ev.ID, Kind: ev.Kind, PubKey: ev.PubKey, CreatedAt: ev.CreatedAt, Reason: reason, Missing: missing, Relay: relay,
	}
	if reason == policy.RememberExpired {
		d.rejections[ev.ID].Expired = 1 + d.w.Rejected.Expired(ev.ID)
	}
	for _, key := range missing {
		d.missing[key] = append(d.missing[key], ev.ID)
	}
}

// settle forgets what is remembered of an event that was decided again, unless it was rejected
// again in a way that is remembered.
func (d *draft) settle(id string) {
	r, said := d.rejections[id]
	if said && (r == nil || len(r.FetchFrom) == 0) {
		return
	}
	if _, healed := d.w.Rejected.Healed(id); healed || said {
		d.rejections[id] = nil
	}
}

// Forget forgets that an event was rejected, if it was.
func (d *draft) Forget(id string) {
	_, before := d.RejectedBefore(id)
	if _, healed := d.w.Rejected.Healed(id); before || healed {
		d.rejections[id] = nil
	}
}

// Arrived takes back the rejections of everything that missed one of these keys, and returns their
// ids. They stay remembered as events to be asked for by id, from the relay that each came from and
// from those given, until they are decided again. Relays are worked out only where something has
// missed a key.
func (d *draft) Arrived(keys []string, relays func() []string) (ids []string) {
	for _, key := range keys {
		for _, r := range d.w.Rejected.Waiting(key) {
			if _, said := d.rejections[r.ID]; !said { // what was rejected again may miss something else
				ids = append(ids, r.ID)
				d.rejections[r.ID] = toBeFetched(r, relays())
			}
		}
		for _, id := range d.missing[key] {
			if r := d.rejections[id]; r != nil && slices.Contains(r.Missing, key) {
				ids = append(ids, id)
				d.rejections[id] = toBeFetched(*r, relays())
			}
		}
	}
	return ids
}

// toBeFetched is what stays of a rejection when something has come that the event missed; nil: no
// relay is known that may have the event.
func toBeFetched(r proto.RejectedEvent, relays []string) *proto.RejectedEvent {
	from := relays
	if r.Relay != "" {
		from = append([]string{r.Relay}, slices.DeleteFunc(slices.Clone(relays),
			func(relay string) bool { return relay == r.Relay })...)
	}
	if len(from) == 0 {
		return nil
	}
	r.Missing, r.FetchFrom = nil, from[:min(len(from), proto.MaxFetchRelays)]
	return &r
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

// raise notes where versions stood that a deletion request of the batch names by their ids.
func (c *changes) raise(author string, floors []proto.Floor) {
	for _, f := range floors {
		address := nostr.Address{Kind: f.Kind, PubKey: author, Identifier: f.Identifier}
		ev := &nostr.Event{ID: f.ID, PubKey: author, Kind: f.Kind, CreatedAt: nostr.Timestamp(f.CreatedAt)}
		if before := c.floors[address]; before == nil || nostr.Replaces(ev, before) {
			c.floors[address] = ev
		}
	}
}

// belowFloor reports whether a newer version of ev was deleted in the batch.
func (c *changes) belowFloor(ev *nostr.Event) bool {
	address, has := nostr.AddressOf(ev)
	floor := c.floors[address]
	return has && floor != nil && !nostr.Replaces(ev, floor)
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
