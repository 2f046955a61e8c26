package relay

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// Bounds of what waits between the index and the subscriptions.
const (
	maxQueuedEvents = 1 << 16
	maxQueuedBytes  = 64 << 20
)

// hub brings newly accepted and ephemeral events to the subscriptions that ask for them.
// Subscriptions are found by what their filters name, so that an event is compared with few of
// them, and the index that tells of events never waits for a reader. It is safe for concurrent use.
type hub struct {
	overrun func() // called when events came faster than they could be delivered, and some are lost

	mu    sync.RWMutex // guards named
	named map[key]map[*entry]struct{}
	count atomic.Int64 // of subscriptions

	delivered uint64 // events so far; run's alone. Ephemeral ones have no sequence

	queueMu sync.Mutex // guards what follows
	queue   []eventdb.Record
	bytes   int
	lost    bool
	wake    chan struct{}
}

// key is one value of one condition. The zero key is for filters without ids, authors, tags and
// kinds.
type key struct {
	condition string // ids, authors, kinds, or "#" and the name of a tag
	kind      int
	value     string
}

// entry is one filter of a subscription. It is found under every value of one of its conditions,
// the one that is expected to be met least often.
type entry struct {
	filter nostr.Filter
	to     *place
}

// place is that of a subscription.
type place struct {
	deliver func(eventdb.Record)
	last    uint64 // number of the last event delivered; run's alone
}

func newHub(overrun func()) *hub {
	return &hub{overrun: overrun, named: map[key]map[*entry]struct{}{}, wake: make(chan struct{}, 1)}
}

// subscribe calls deliver with every event that is fed from now on and matches one of the filters:
// in the order of the log, each once. Limits do not count. deliver must not block and not cancel.
// When cancel has returned, deliver is not called any more. It must be called once.
func (h *hub) subscribe(filters []nostr.Filter, deliver func(eventdb.Record)) (cancel func()) {
	to := &place{deliver: deliver}
	var entries []*entry
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range filters {
		e := &entry{f, to}
		entries = append(entries, e)
		for _, k := range keysOf(f) {
			if h.named[k] == nil {
				h.named[k] = map[*entry]struct{}{}
			}
			h.named[k][e] = struct{}{}
		}
	}
	h.count.Add(1)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, e := range entries {
			for _, k := range keysOf(e.filter) {
				if delete(h.named[k], e); len(h.named[k]) == 0 {
					delete(h.named, k)
				}
			}
		}
		h.count.Add(-1)
	}
}

// feed takes in what the index has just stored. It does not block: made for [eventdb.DB.Subscribe].
func (h *hub) feed(recs []eventdb.Record) {
	if h.count.Load() == 0 {
		return
	}
	size := 0
	for _, r := range recs {
		size += len(r.Raw)
	}
	h.queueMu.Lock()
	if len(h.queue)+len(recs) > maxQueuedEvents || h.bytes+size > maxQueuedBytes {
		h.queue, h.bytes, h.lost = nil, 0, true
	} else {
		h.queue = append(h.queue, recs...)
		h.bytes += size
	}
	h.queueMu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run delivers until ctx ends.
func (h *hub) run(ctx context.Context) {
	for {
		select {
		case <-h.wake:
		case <-ctx.Done():
			return
		}
		h.queueMu.Lock()
		recs, lost := h.queue, h.lost
		h.queue, h.bytes, h.lost = nil, 0, false
		h.queueMu.Unlock()
		if lost {
			h.overrun()
		}
		for _, r := range recs {
			h.deliver(r)
		}
	}
}

func (h *hub) deliver(r eventdb.Record) {
	h.delivered++
	ev := r.Event
	met := map[key]struct{}{{}: {}, {condition: "ids", value: ev.ID}: {}, {condition: "authors", value: ev.PubKey}: {},
		{condition: "kinds", kind: ev.Kind}: {}}
	for _, tag := range ev.Tags {
		if len(tag) >= 2 && len(tag[0]) == 1 {
			met[key{condition: "#" + tag[0], value: tag[1]}] = struct{}{}
		}
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	for k := range met {
		for e := range h.named[k] {
			if e.to.last < h.delivered && matches(&e.filter, ev, met) {
				e.to.last = h.delivered
				e.to.deliver(r)
			}
		}
	}
}

// matches is nostr.Filter.Matches for an event with very many tags, met by very many filters: met has
// the keys of its tags, and what costs least is compared first.
func matches(f *nostr.Filter, ev *nostr.Event, met map[key]struct{}) bool {
	if f.Since != nil && ev.CreatedAt < *f.Since || f.Until != nil && ev.CreatedAt > *f.Until ||
		f.Kinds != nil && !slices.Contains(f.Kinds, ev.Kind) || f.IDs != nil && !slices.Contains(f.IDs, ev.ID) ||
		f.Authors != nil && !slices.Contains(f.Authors, ev.PubKey) {
		return false
	}
	for name, values := range f.Tags {
		if values != nil && !slices.ContainsFunc(values, func(v string) bool {
			_, has := met[key{condition: "#" + name, value: v}]
			return has
		}) {
			return false
		}
	}
	return true
}

// keysOf picks the condition that a filter is found by. A condition that lists nothing is never
// met, so it may be picked as well: the filter is then found nowhere.
func keysOf(f nostr.Filter) (keys []key) {
	named := func(condition string, values []string) []key {
		for _, v := range values {
			keys = append(keys, key{condition: condition, value: v})
		}
		return keys
	}
	switch name, tagged := fewest(f.Tags); {
	case f.IDs != nil:
		return named("ids", f.IDs)
	case tagged:
		return named("#"+name, f.Tags[name])
	case f.Authors != nil:
		return named("authors", f.Authors)
	case f.Kinds != nil:
		for _, k := range f.Kinds {
			keys = append(keys, key{condition: "kinds", kind: k})
		}
		return keys
	}
	return []key{{}}
}

// fewest is the tag condition with the fewest values.
func fewest(tags nostr.TagMap) (best string, ok bool) {
	for name, values := range tags {
		if values != nil && (!ok || len(values) < len(tags[best]) || len(values) == len(tags[best]) && name < best) {
			best, ok = name, true
		}
	}
	return best, ok
}
