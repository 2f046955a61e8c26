package draft

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/services/ingest/rejections"
)

// deletions is what the deletion requests of the batch name.
type deletions struct {
	ids       map[authored]bool
	addresses map[nostr.Address]nostr.Timestamp // up to this time
}

type authored struct{ pubkey, id string }

func newDeletions() deletions {
	return deletions{ids: map[authored]bool{}, addresses: map[nostr.Address]nostr.Timestamp{}}
}

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

// heldChanges lies over a held.Set.
type heldChanges struct {
	base    *held.Set
	now     *held.Directory // what the draft has written, as far as it is still there
	changed map[string]bool // keys that the base knows nothing of any more
	room    *policy.Room    // counts the base with the changes
	fresh   map[string]bool // keys that were changed since the last cut
	told    map[string]bool // what the cuts have said of a key: whether an entry is there
}

func newHeldChanges(base *held.Set, room *policy.Room) heldChanges {
	return heldChanges{
		base: base, now: held.NewDirectory(), changed: map[string]bool{}, room: room,
		fresh: map[string]bool{}, told: map[string]bool{},
	}
}

func (x *heldChanges) put(e *held.Entry) {
	x.drop(e)
	x.now.Add(e)
	x.room.Add(e)
}

func (x *heldChanges) drop(e *held.Entry) {
	before := x.now.Remove(e.Key)
	if !x.changed[e.Key] {
		before = x.base.ByKey(e.Key)
	}
	x.changed[e.Key], x.fresh[e.Key] = true, true
	if before != nil {
		x.room.Remove(before)
	}
}

func (x *heldChanges) byID(id string) *held.Entry {
	if e := x.now.ByID(id); e != nil {
		return e
	}
	if e := x.base.ByID(id); e != nil && !x.changed[e.Key] {
		return e
	}
	return nil
}

func (x *heldChanges) of(identifier string) []*held.Entry {
	entries := slices.Collect(x.over(x.base.OfIdentifier(identifier), x.now.OfIdentifier(identifier)))
	held.SortByKey(entries)
	return entries
}

// over returns what is left of the base's entries, then the batch's own.
func (x *heldChanges) over(base, now []*held.Entry) iter.Seq[*held.Entry] {
	return func(yield func(*held.Entry) bool) {
		for _, e := range base {
			if !x.changed[e.Key] && !yield(e) {
				return
			}
		}
		for _, e := range now {
			if !yield(e) {
				return
			}
		}
	}
}

// cut returns what has changed since the last cut.
func (x *heldChanges) cut() []held.Change {
	changes := make([]held.Change, 0, len(x.fresh))
	for key := range x.fresh {
		e := x.now.ByKey(key)
		if e == nil && !x.known(key) {
			continue // held and gone within one batch: nobody needs to know
		}
		changes = append(changes, held.Change{Key: key, Entry: e})
		x.told[key] = e != nil
	}
	clear(x.fresh)
	slices.SortFunc(changes, func(a, b held.Change) int { return cmp.Compare(a.Key, b.Key) })
	return changes
}

// known reports whether others know of an entry of this key. The base may not have what was cut
// yet.
func (x *heldChanges) known(key string) bool {
	if there, told := x.told[key]; told {
		return there
	}
	return x.base.ByKey(key) != nil
}

// rejectedChanges lies over a rejections.Index.
type rejectedChanges struct {
	added   map[string]proto.RejectedEvent
	taken   map[string]rejections.Rejected // that the base may still have, or get
	waiting map[string][]string            // ids of added by what they miss
	told    map[string]bool                // ids that a cut has added and none has taken back

	// Since the last cut.
	order  []string        // ids in the order of their rejection
	undone map[string]bool // ids of taken
}

func newRejectedChanges() rejectedChanges {
	return rejectedChanges{
		added: map[string]proto.RejectedEvent{}, taken: map[string]rejections.Rejected{}, waiting: map[string][]string{},
		told: map[string]bool{}, undone: map[string]bool{},
	}
}

func (x *rejectedChanges) add(r proto.RejectedEvent) {
	x.order = append(x.order, r.ID)
	x.added[r.ID] = r
	delete(x.taken, r.ID)
	delete(x.undone, r.ID)
	for _, key := range r.Missing {
		x.waiting[key] = append(x.waiting[key], r.ID)
	}
}

func (x *rejectedChanges) answer(base *rejections.Index, id string, now time.Time) (string, bool) {
	if r, ok := x.added[id]; ok {
		return r.Reason, true
	}
	if _, ok := x.taken[id]; ok {
		return "", false
	}
	return base.Answer(id, now)
}

func (x *rejectedChanges) forget(base *rejections.Index, id string) {
	r, again := x.added[id]
	delete(x.added, id)
	if x.told[id] && again {
		x.take(rejections.Rejected{ID: id, Kind: r.Kind, CreatedAt: r.CreatedAt})
		return
	}
	if before, known := base.Find(id); known {
		x.take(before)
	}
}

// take takes back what others know of.
func (x *rejectedChanges) take(r rejections.Rejected) {
	if _, already := x.taken[r.ID]; already {
		return
	}
	x.taken[r.ID] = r
	x.undone[r.ID] = true
}

func (x *rejectedChanges) arrived(base *rejections.Index, keys []string) {
	for _, key := range keys {
		for _, id := range x.waiting[key] {
			x.forget(base, id)
		}
		delete(x.waiting, key)
		for _, r := range base.Waiting(key) {
			if _, again := x.added[r.ID]; !again { // what was rejected again misses something else
				x.take(r)
			}
		}
	}
}

// cut returns what has changed since the last cut.
func (x *rejectedChanges) cut() (added []proto.RejectedEvent, taken []rejections.Rejected) {
	listed := make(map[string]bool, len(x.order))
	for _, id := range x.order {
		if r, still := x.added[id]; still && !listed[id] {
			listed[id] = true
			added = append(added, r)
		}
	}
	for id := range x.undone {
		taken = append(taken, x.taken[id])
		delete(x.told, id)
	}
	for id := range listed {
		x.told[id] = true
	}
	x.order = nil
	clear(x.undone)
	slices.SortFunc(taken, func(a, b rejections.Rejected) int { return cmp.Compare(a.ID, b.ID) })
	return added, taken
}
