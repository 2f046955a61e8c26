// Package live brings newly accepted events to the subscriptions that ask for them. Subscriptions
// are indexed by what their filters name, so that an event is compared with few of them, and the
// index that tells of events never waits for a reader.
package live

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// Bounds of what waits between the index and the subscriptions. Beyond them subscribers are told
// that they missed something.
const (
	maxQueuedEvents = 1 << 16
	maxQueuedBytes  = 64 << 20
)

// Event is a newly accepted event. It is shared by all who get it and must not be changed.
type Event struct {
	Seq   uint64 // in the log
	Event *nostr.Event
	JSON  []byte
}

// Subscriber gets events. Its methods are called by one goroutine, must not block, and must not
// call [Subscription.Cancel].
type Subscriber interface {
	// Deliver hands over an event that matches. Events come in the order of the log, each once.
	Deliver(e *Event)
	// Lost says that events may be missing from here on, because too many came at once.
	Lost()
}

// Hub is the meeting place of events and subscriptions. It is safe for concurrent use.
type Hub struct {
	log *slog.Logger

	mu    sync.RWMutex // guards index
	index index
	count atomic.Int64 // of subscriptions

	queueMu sync.Mutex // guards what follows
	queue   []eventdb.Record
	bytes   int
	lost    bool
	wake    chan struct{}
}

// NewHub makes a hub without subscriptions.
func NewHub(log *slog.Logger) *Hub {
	return &Hub{log: log, index: index{}, wake: make(chan struct{}, 1)}
}

// Subscription is a place in the hub.
type Subscription struct {
	hub     *Hub
	to      Subscriber
	entries []*entry
	last    uint64 // sequence of the last event delivered; Run's alone
}

// Subscribe brings every event to s that is fed from now on and matches one of the filters,
// whatever their limits.
func (h *Hub) Subscribe(filters []nostr.Filter, s Subscriber) *Subscription {
	sub := &Subscription{hub: h, to: s}
	for _, f := range filters {
		sub.entries = append(sub.entries, &entry{sub, f})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range sub.entries {
		h.index.add(e)
	}
	h.count.Add(1)
	return sub
}

// Cancel ends the subscription. When it has returned, the subscriber is not called any more. It
// must be called once.
func (s *Subscription) Cancel() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, e := range s.entries {
		s.hub.index.remove(e)
	}
	s.hub.count.Add(-1)
}

// Len is the number of subscriptions.
func (h *Hub) Len() int { return int(h.count.Load()) }

// Feed takes in what the index has just stored. It does not block: made for [eventdb.DB.Subscribe].
func (h *Hub) Feed(recs []eventdb.Record) {
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

// Run delivers until ctx ends.
func (h *Hub) Run(ctx context.Context) {
	for {
		select {
		case <-h.wake:
			h.deliverQueued()
		case <-ctx.Done():
			return
		}
	}
}

func (h *Hub) deliverQueued() {
	h.queueMu.Lock()
	recs, lost := h.queue, h.lost
	h.queue, h.bytes, h.lost = nil, 0, false
	h.queueMu.Unlock()
	if lost {
		h.log.Warn("events came faster than they could be delivered, subscribers were told", "subscriptions", h.Len())
		h.tellLost()
	}
	for _, r := range recs {
		e := &Event{Seq: r.Seq, Event: r.Event, JSON: r.Raw}
		if e.JSON == nil {
			var err error
			if e.JSON, err = r.Event.MarshalJSON(); err != nil {
				h.log.Error("an accepted event cannot be encoded", "id", r.Event.ID, "error", err)
				continue
			}
		}
		h.deliver(e)
	}
}

func (h *Hub) deliver(e *Event) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	h.index.matching(e.Event, func(c *entry) {
		if c.sub.last < e.Seq {
			c.sub.last = e.Seq
			c.sub.to.Deliver(e)
		}
	})
}

func (h *Hub) tellLost() {
	h.mu.RLock()
	defer h.mu.RUnlock()
	told := map[*Subscription]bool{}
	for _, entries := range h.index {
		for e := range entries {
			if !told[e.sub] {
				told[e.sub] = true
				e.sub.to.Lost()
			}
		}
	}
}
