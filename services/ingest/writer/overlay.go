package writer

import (
	"context"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// overlay is the accepted events as they are when the batch at hand is stored: the index as it was
// before the batch, and over it what the batch changes. All that policy asks about accepted events
// is answered here. It does not know the held events, nor what was rejected.
//
// What a deletion request of the batch takes away stays in the maps, and is passed over when it is
// read.
type overlay struct {
	ctx  context.Context // of reads
	err  error           // of the last decision's reads, see [overlay.failure]
	now  time.Time       // when the batch began
	view *eventdb.View   // of the log before the batch

	events    map[string]*nostr.Event        // accepted; nil: it was there, and is replaced or removed
	atAddress map[nostr.Address]*nostr.Event // nil: nothing is there; what was read is kept too
	named     map[string][]string            // ids of accepted events by the ids and addresses that they name
	floors    map[nostr.Address]*nostr.Event // newest versions that are deleted by their ids
	deletes   map[string]nostr.Timestamp     // of an author and id, an address, or an author who vanishes: up to this time
	renewed   map[string]bool                // ids of requests that stay now
	// requests are those of authors that were accepted and count.
	requests []countedRequest
	// hides: what is hidden changes with this batch. Which events that concerns only the index knows, so
	// that the batch ends here.
	hides bool
}

// newOverlay changes nothing yet.
func newOverlay(ctx context.Context, now time.Time, view *eventdb.View) overlay {
	return overlay{
		ctx: ctx, now: now, view: view,
		events: map[string]*nostr.Event{}, atAddress: map[nostr.Address]*nostr.Event{}, named: map[string][]string{},
		floors: map[nostr.Address]*nostr.Event{}, deletes: map[string]nostr.Timestamp{}, renewed: map[string]bool{},
	}
}

// countedRequest is an accepted deletion request, or a request to vanish that counts here.
type countedRequest struct {
	event *nostr.Event
	idle  bool // it has changed nothing
}

// takes reports whether a request takes an event of its author away, where it counts.
func takes(request, ev *nostr.Event) bool {
	switch {
	case request.PubKey != ev.PubKey || ev.Kind == nostr.KindVanish:
		return false
	case request.Kind == nostr.KindVanish:
		return ev.CreatedAt <= request.CreatedAt
	case ev.Kind == nostr.KindDeletion:
		return false
	}
	address, has := nostr.AddressOf(ev)
	return request.Tags.ContainsAny("e", []string{ev.ID}) ||
		has && ev.CreatedAt <= request.CreatedAt && request.Tags.ContainsAny("a", []string{address.String()})
}

// failure returns, and forgets, what could not be read since it was called last.
func (o *overlay) failure() error {
	defer func() { o.err = nil }()
	return o.err
}

// found reports whether there was something to read, and notes what could not be read.
func (o *overlay) found(err error) bool {
	if err != nil && !errors.Is(err, eventdb.ErrNotFound) {
		o.err = err
	}
	return err == nil
}

// standing returns an event that was found, unless there was none or its author has deleted it.
func (o *overlay) standing(ev *nostr.Event, err error) *nostr.Event {
	if !o.found(err) || ev == nil || o.asks(ev) {
		return nil
	}
	return ev
}

// Accepted implements [policy.Knowledge], as do the next ones.
func (o *overlay) Accepted(id string) *nostr.Event {
	if ev, changed := o.events[id]; changed {
		return o.standing(ev, nil)
	}
	return o.standing(o.view.Event(id))
}

// AcceptedKind mostly reads no event.
func (o *overlay) AcceptedKind(id string) (kind int, accepted bool) {
	if _, changed := o.events[id]; changed || len(o.deletes) > 0 {
		ev := o.Accepted(id)
		if ev == nil {
			return 0, false
		}
		return ev.Kind, true
	}
	kind, err := o.view.Kind(id)
	return kind, o.found(err)
}

// AcceptedAt reads what is at an address once for a batch: most events of a sync name the same few.
func (o *overlay) AcceptedAt(address nostr.Address) *nostr.Event {
	ev, known := o.atAddress[address]
	// Only these kinds have addresses; what else a stranger writes as one is at none.
	if !known && (nostr.IsReplaceableKind(address.Kind) || nostr.IsAddressableKind(address.Kind)) {
		if ev = o.standing(o.view.Replaceable(address.Kind, address.PubKey, address.Identifier)); o.err == nil {
			o.atAddress[address] = ev
		}
	}
	return o.standing(ev, nil)
}

// Superseded looks at an event that has expired too. One that was deleted or removed has no place.
func (o *overlay) Superseded(ev *nostr.Event) bool {
	address, ok := nostr.AddressOf(ev)
	if !ok {
		return false
	}
	if have := o.atAddress[address]; have != nil && !o.asks(have) {
		return !nostr.Replaces(ev, have)
	}
	holder, is, err := o.view.Holder(address.Kind, address.PubKey, address.Identifier)
	if !o.found(err) || !is {
		return false
	}
	have := nostr.Event{ID: hex.EncodeToString(holder.ID[:]), PubKey: address.PubKey, Kind: address.Kind,
		CreatedAt: holder.CreatedAt, Tags: nostr.Tags{{"d", address.Identifier}}}
	_, left := o.events[have.ID]
	return !left && !o.asks(&have) && !nostr.Replaces(ev, &have)
}

func (o *overlay) Deleted(ev *nostr.Event) bool {
	deleted, err := o.view.Deleted(ev)
	return o.found(err) && deleted || o.asks(ev) || o.belowFloor(ev)
}

// Vanished looks at requests of the batch only where one of them takes the event away.
func (o *overlay) Vanished(ev *nostr.Event) bool {
	vanished, err := o.view.Vanished(ev)
	until, asked := o.deletes[ev.PubKey]
	return o.found(err) && vanished || asked && ev.Kind != nostr.KindVanish && ev.CreatedAt <= until
}

func (o *overlay) IdleRequest(ev *nostr.Event) (idle *nostr.Event) {
	requests, err := o.view.Requests(o.ctx, ev)
	if !o.found(err) {
		return nil
	}
	for _, r := range requests {
		id := hex.EncodeToString(r.ID[:])
		if _, gone := o.events[id]; gone {
			continue
		}
		if idle = o.Accepted(id); r.Expires == 0 || o.renewed[id] {
			return nil
		}
	}
	for _, r := range o.requests { // of the batch
		if !takes(r.event, ev) {
			continue
		}
		if idle = r.event; !r.idle || o.renewed[idle.ID] {
			return nil
		}
	}
	return idle
}

func (o *overlay) Reaches(request *nostr.Event) bool {
	for _, ev := range o.events { // of the batch
		if ev != nil && takes(request, ev) && !o.asks(ev) {
			return true
		}
	}
	for ev, err := range o.view.Reached(request) {
		if !o.found(err) {
			return false
		}
		if _, changed := o.events[ev.ID]; !changed && !o.asks(ev) && !o.replaced(ev) {
			return true
		}
	}
	return false
}

// replaced reports whether the batch has brought something else in the place of an event.
func (o *overlay) replaced(ev *nostr.Event) bool {
	address, has := nostr.AddressOf(ev)
	have := o.atAddress[address]
	return has && have != nil && have.ID != ev.ID
}

func (o *overlay) AnnouncedBy(author string, until nostr.Timestamp) (events []*nostr.Event) {
	seen := map[string]bool{}
	add := func(ev *nostr.Event) {
		if ev != nil && !seen[ev.ID] && ev.Kind == nostr.KindAnnouncement && ev.PubKey == author && ev.CreatedAt <= until &&
			o.Accepted(ev.ID) != nil {
			seen[ev.ID], events = true, append(events, ev)
		}
	}
	filter := nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Authors: []string{author}, Until: &until}
	for ev, err := range o.view.Query(o.ctx, filter) {
		if !o.found(err) {
			return nil
		}
		add(ev)
	}
	for _, ev := range o.events {
		add(ev)
	}
	return events
}

// linksGone reports whether an accepted event may change what hangs on announcements that are gone:
// it names some of that, or is one that comes back.
func (o *overlay) linksGone(ev *nostr.Event) bool {
	links, err := o.view.LinksGone(ev)
	return o.found(err) && links
}

func (o *overlay) Outlived(ev *nostr.Event) bool {
	if o.replaced(ev) {
		return false // it has another in its place in the log now
	}
	if _, changed := o.events[ev.ID]; changed || o.renewed[ev.ID] {
		return false
	}
	e, err := o.view.Entry(ev.ID)
	if errors.Is(err, eventdb.ErrNotFound) {
		return o.Deleted(ev) && !o.Superseded(ev)
	}
	return o.found(err) && e.Expires != 0 && e.Expires < nostr.Timestamp(o.now.Unix())
}

// vouchSteps bounds what is looked at of the accepted events that name one in one way, in steps
// over the index. Anybody may bring in deletion requests, which speak for nothing, as many as they
// like; the newest thousands are all that is looked through for one that does.
const vouchSteps = 10_000

func (o *overlay) Vouched(ev *nostr.Event) bool {
	address, has := nostr.AddressOf(ev)
	return o.vouchedBy(ev.ID, "e", "E", "q") || has && o.vouchedBy(address.String(), "a", "A", "q")
}

// vouchedBy reports whether an accepted event names an id or address in one of these tags.
func (o *overlay) vouchedBy(name string, tags ...string) bool {
	for _, id := range o.named[name] {
		if _, accepted := o.AcceptedKind(id); accepted {
			return true
		}
	}
	view := o.view.Within(vouchSteps)
	for _, tag := range tags {
		for other, err := range view.IDs(o.ctx, nostr.Filter{Tags: nostr.TagMap{tag: {name}}}) {
			if errors.Is(err, eventdb.ErrTooBroad) || !o.found(err) {
				break
			}
			if !nostr.KindOf(other.Kind).Vouches {
				continue
			}
			if _, accepted := o.AcceptedKind(hex.EncodeToString(other.ID[:])); accepted {
				return true
			}
		}
	}
	return false
}

// accept takes an event into the log.
func (o *overlay) accept(ev *nostr.Event) {
	if address, ok := nostr.AddressOf(ev); ok {
		if before := o.AcceptedAt(address); before != nil {
			o.events[before.ID] = nil
		}
		o.atAddress[address] = ev
	}
	if nostr.KindOf(ev.Kind).Vouches {
		for _, name := range nostr.NamesOf(ev) {
			o.named[name] = append(o.named[name], ev.ID)
		}
	}
	o.events[ev.ID] = ev
}

// count has an accepted request take away what it names.
func (o *overlay) count(request *nostr.Event, idle bool) {
	if request.Kind == nostr.KindVanish {
		o.deletes[request.PubKey] = max(o.deletes[request.PubKey], request.CreatedAt)
	} else {
		o.delete(request)
	}
	o.requests = append(o.requests, countedRequest{request, idle})
}

// Remove takes an accepted event out of the log, as if it had never been there. Announcements never
// leave so.
func (o *overlay) Remove(ev *nostr.Event) {
	o.events[ev.ID] = nil
	if address, ok := nostr.AddressOf(ev); ok {
		o.atAddress[address] = nil
	}
}

func (o *overlay) HiddenBy(id string) string {
	name, _ := o.view.Hidden(id)
	return name
}

func (o *overlay) Wrote(pubkey string) bool {
	for _, err := range o.view.IDs(o.ctx, nostr.Filter{Authors: []string{pubkey}, Limit: 1}) {
		return o.found(err)
	}
	return false
}

// TakesPart looks at what the batch has accepted and taken away too.
func (o *overlay) TakesPart(pubkey string) bool {
	for _, ev := range o.events {
		if ev != nil && ev.PubKey == pubkey && slices.Contains(policy.PartKinds, ev.Kind) && o.standing(ev, nil) != nil {
			return true
		}
	}
	f := nostr.Filter{Authors: []string{pubkey}, Kinds: policy.PartKinds}
	for e, err := range o.view.Within(vouchSteps).IDs(o.ctx, f) {
		if !o.found(err) {
			break
		}
		if _, accepted := o.AcceptedKind(hex.EncodeToString(e.ID[:])); accepted {
			return true
		}
	}
	return false
}

// delete notes what a deletion request names: until when events of its author are deleted, by id or
// address.
func (o *overlay) delete(request *nostr.Event) {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		switch tag[0] {
		case "e":
			o.deletes[request.PubKey+tag[1]] = math.MaxInt64
		case "a":
			if address, err := nostr.ParseAddress(tag[1]); err == nil && address.PubKey == request.PubKey {
				o.deletes[address.String()] = max(o.deletes[address.String()], request.CreatedAt)
			}
		}
	}
}

// raise notes where versions stood that a deletion request of the batch names by their ids.
func (o *overlay) raise(author string, floors []proto.Floor) {
	for _, f := range floors {
		address := nostr.Address{Kind: f.Kind, PubKey: author, Identifier: f.Identifier}
		ev := &nostr.Event{ID: f.ID, PubKey: author, Kind: f.Kind, CreatedAt: nostr.Timestamp(f.CreatedAt)}
		if before := o.floors[address]; before == nil || nostr.Replaces(ev, before) {
			o.floors[address] = ev
		}
	}
}

// belowFloor reports whether a newer version of ev was deleted in the batch.
func (o *overlay) belowFloor(ev *nostr.Event) bool {
	address, has := nostr.AddressOf(ev)
	floor := o.floors[address]
	return has && floor != nil && !nostr.Replaces(ev, floor)
}

// asks reports whether a request of the batch takes ev away. Deletion requests do nothing to
// requests (NIP-09), and requests to vanish nothing to each other.
func (o *overlay) asks(ev *nostr.Event) bool {
	if len(o.deletes) == 0 || ev.Kind == nostr.KindVanish {
		return false
	}
	if until, vanished := o.deletes[ev.PubKey]; vanished && ev.CreatedAt <= until {
		return true
	}
	if ev.Kind == nostr.KindDeletion {
		return false
	}
	until, named := o.deletes[ev.PubKey+ev.ID]
	if address, ok := nostr.AddressOf(ev); ok && !named {
		until, named = o.deletes[address.String()]
	}
	return named && ev.CreatedAt <= until
}
