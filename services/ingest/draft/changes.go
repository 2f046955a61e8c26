package draft

import (
	"cmp"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/held"
	"tendril.dev/services/ingest/rejections"
)

// deletions is what the deletion requests of the batch name.
type deletions struct {
	ids       map[authored]bool
	addresses map[nip34.Address]nostr.Timestamp // up to this time
}

type authored struct{ pubkey, id string }

func newDeletions() deletions {
	return deletions{ids: map[authored]bool{}, addresses: map[nip34.Address]nostr.Timestamp{}}
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
			if address, err := nip34.ParseAddress(tag[1]); err == nil && address.PubKey == request.PubKey {
				x.addresses[address] = max(x.addresses[address], request.CreatedAt)
			}
		}
	}
}

// name says whether one of the requests asks for the deletion of ev. Deletion requests cannot be deleted (NIP-09).
func (x deletions) name(ev *nostr.Event) bool {
	if ev.Kind == nip34.KindDeletion {
		return false
	}
	if x.ids[authored{ev.PubKey, ev.ID}] {
		return true
	}
	address, ok := nip34.AddressOf(ev)
	if !ok {
		return false
	}
	until, named := x.addresses[address]
	return named && ev.CreatedAt <= until
}

// heldChanges lies over a held.Set.
type heldChanges struct {
	byKey        map[string]*held.Entry // nil: dropped
	ids          map[string]*held.Entry // nil: dropped
	byIdentifier map[string]map[string]*held.Entry
}

func newHeldChanges() heldChanges {
	return heldChanges{
		byKey: map[string]*held.Entry{}, ids: map[string]*held.Entry{}, byIdentifier: map[string]map[string]*held.Entry{},
	}
}

func (x heldChanges) put(e *held.Entry)  { x.set(e, e) }
func (x heldChanges) drop(e *held.Entry) { x.set(e, nil) }

func (x heldChanges) set(e, now *held.Entry) {
	x.byKey[e.Key], x.ids[e.Event.ID] = now, now
	of := x.byIdentifier[e.Identifier]
	if of == nil {
		of = map[string]*held.Entry{}
		x.byIdentifier[e.Identifier] = of
	}
	of[e.Key] = now
}

func (x heldChanges) byID(base *held.Set, id string) *held.Entry {
	if e, changed := x.ids[id]; changed {
		return e
	}
	return base.ByID(id)
}

func (x heldChanges) of(base *held.Set, identifier string) []*held.Entry {
	entries := base.OfIdentifier(identifier)
	changed := x.byIdentifier[identifier]
	if len(changed) == 0 {
		return entries
	}
	entries = slices.DeleteFunc(entries, func(e *held.Entry) bool { _, is := changed[e.Key]; return is })
	for _, e := range changed {
		if e != nil {
			entries = append(entries, e)
		}
	}
	held.SortByKey(entries)
	return entries
}

func (x heldChanges) changes(base *held.Set) []held.Change {
	changes := make([]held.Change, 0, len(x.byKey))
	for key, e := range x.byKey {
		if e == nil && base.ByKey(key) == nil {
			continue // held and gone within one batch: nobody needs to know
		}
		changes = append(changes, held.Change{Key: key, Entry: e})
	}
	slices.SortFunc(changes, func(a, b held.Change) int { return cmp.Compare(a.Key, b.Key) })
	return changes
}

// rejectedChanges lies over a rejections.Index.
type rejectedChanges struct {
	order   []string // ids in the order of their rejection
	added   map[string]proto.RejectedEvent
	taken   map[string]rejections.Rejected
	waiting map[string][]string // ids of added by what they miss
}

func newRejectedChanges() rejectedChanges {
	return rejectedChanges{
		added: map[string]proto.RejectedEvent{}, taken: map[string]rejections.Rejected{}, waiting: map[string][]string{},
	}
}

func (x *rejectedChanges) add(r proto.RejectedEvent) {
	if _, again := x.added[r.ID]; !again {
		x.order = append(x.order, r.ID)
	}
	x.added[r.ID] = r
	delete(x.taken, r.ID)
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
	delete(x.added, id)
	if r, before := base.Find(id); before {
		x.taken[id] = r
	}
}

func (x *rejectedChanges) arrived(base *rejections.Index, keys []string) {
	for _, key := range keys {
		for _, id := range x.waiting[key] {
			x.forget(base, id)
		}
		delete(x.waiting, key)
		for _, r := range base.Waiting(key) {
			delete(x.added, r.ID)
			x.taken[r.ID] = r
		}
	}
}

func (x *rejectedChanges) changes() (added []proto.RejectedEvent, taken []rejections.Rejected) {
	listed := make(map[string]bool, len(x.added))
	for _, id := range x.order {
		if r, still := x.added[id]; still && !listed[id] {
			listed[id] = true
			added = append(added, r)
		}
	}
	for _, r := range x.taken {
		taken = append(taken, r)
	}
	slices.SortFunc(taken, func(a, b rejections.Rejected) int { return cmp.Compare(a.ID, b.ID) })
	return added, taken
}
