package writer

import (
	"context"
	"slices"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// draft is what is accepted, held and rejected when the batch at hand is stored: an event that it
// has accepted counts for the next decision at once. It begins with a term. If a commit fails it is
// of no more use.
//
// Held events are a copy of the set as of the last decision. Accepted events and rejections are
// what there was before the batch, with the changes of the batch over it.
type draft struct {
	w *Writer
	overlay
	held *held.Directory
	room *policy.Room

	// Changes of the batch.
	entries    map[string]*held.Entry          // by key; nil: gone
	parsed     map[string]*held.Entry          // accepted announcements that were looked at, by id; nil: it is none
	rejections map[string]*proto.RejectedEvent // nil: the rejection is taken back
	missing    map[string][]string             // ids of rejected by what they miss
}

func newDraft(w *Writer) *draft {
	d := &draft{w: w, held: held.NewDirectory(), room: policy.NewRoom()}
	d.view = w.Index.View()
	for _, e := range w.Held.All() {
		d.held.Add(e)
		d.room.Add(e)
	}
	return d
}

// begin begins a batch. The index has what the one before has changed.
func (d *draft) begin(ctx context.Context) {
	_ = d.view.Close()
	d.overlay = newOverlay(ctx, time.Now(), d.w.Index.View())
	d.entries, d.parsed = map[string]*held.Entry{}, map[string]*held.Entry{}
	d.rejections, d.missing = map[string]*proto.RejectedEvent{}, map[string][]string{}
}

var _ policy.Knowledge = (*draft)(nil)

// Accept takes an event into the log, with what was decided of it if it is a request.
func (d *draft) Accept(ev *nostr.Event, request proto.Request) {
	d.accept(ev)
	if request.Vanishes || ev.Kind == nostr.KindDeletion && !d.w.Settings.IgnoreDeletions {
		d.count(ev, request.Until != 0)
	}
}

// TakesPart looks at who is invited, too.
func (d *draft) TakesPart(pubkey string) bool {
	return d.overlay.TakesPart(pubkey) || d.Announced("").Lists(pubkey)
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

func (d *draft) RejectedBefore(id string) (string, bool) {
	r, changed := d.rejections[id]
	if r != nil {
		return r.Reason, len(r.FetchFrom) == 0
	}
	before, is := d.w.Rejected.Find(id, d.now)
	return before.Reason, is && !changed
}

// rejectedKind is the kind of an event that this draft has rejected, or whose rejection it has
// taken back.
func (d *draft) rejectedKind(id string) int {
	if r := d.rejections[id]; r != nil {
		return r.Kind
	}
	return 0
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
	r, changed := d.rejections[id]
	if changed && (r == nil || len(r.FetchFrom) == 0) {
		return
	}
	if _, healed := d.w.Rejected.Healed(id); healed || changed {
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

// mostRejections bounds the rejections that a batch changes, but for its own: a crowd that waits for
// one arrival is taken back in several batches, between which users have their turn.
const mostRejections = bus.MaxBatch

// Arrived takes back the rejections of what missed one of these keys, and returns their ids. They
// stay remembered as events to be asked for by id, from the relay that each came from and from
// those given, until they are decided again. Relays are worked out only where something has missed
// a key. more: the batch has no room for all of them.
func (d *draft) Arrived(keys []string, relays func() []string) (ids []string, more bool) {
	changed := func(id string) bool { // what was rejected again may miss something else
		_, is := d.rejections[id]
		return is
	}
	for _, key := range keys {
		waiting, left := d.w.Rejected.Waiting(key, mostRejections-len(d.rejections), changed)
		more = more || left
		for _, r := range waiting {
			ids = append(ids, r.ID)
			d.rejections[r.ID] = toBeFetched(r, relays())
		}
		for _, id := range d.missing[key] {
			if r := d.rejections[id]; r != nil && slices.Contains(r.Missing, key) {
				ids = append(ids, id)
				d.rejections[id] = toBeFetched(*r, relays())
			}
		}
	}
	return ids, more
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
