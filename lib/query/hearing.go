package query

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/progress"
	"tendril.dev/proto"
)

// Hear implements [Source]: a process without an index reads the messages of those kinds from the
// log, from where it ended when the process began.
func (r *Remote) Hear(kinds []int, fn func([]eventdb.Record)) Hearing {
	h := &remoteHearing{remote: r, fn: fn}
	for _, kind := range kinds {
		h.filters = append(h.filters, proto.AnyEventOf(kind))
	}
	h.read.Advance(r.base)
	return h
}

// remoteHearing reads some kinds of the log.
type remoteHearing struct {
	remote  *Remote
	filters []string
	fn      func([]eventdb.Record)
	read    progress.Progress // the last message that was heard

	mu   sync.Mutex
	past uint64 // nothing is between read and this
}

// Run implements [Hearing].
func (h *remoteHearing) Run(ctx context.Context) error {
	log := slog.New(slog.DiscardHandler)
	reading := bus.Reading{Stream: proto.StreamEvents, Filters: h.filters, After: h.remote.base}
	return bus.Follow(ctx, h.remote.js, reading, log, h.take)
}

func (h *remoteHearing) take(m bus.Message) {
	h.remote.reached(m.Seq)
	ev := new(nostr.Event)
	// Nothing is heard of what has left the log: an empty message stands in its place.
	if err := ev.UnmarshalJSON(m.Data); err == nil && m.Header.Get(proto.HeaderRemoved) == "" {
		h.fn([]eventdb.Record{{Seq: m.Seq, Event: ev, Raw: m.Data}})
	}
	h.read.Advance(m.Seq)
}

// CatchUp implements [Hearing]. Whether a message of one of the kinds is still to come is asked of
// the stream itself: its consumers may be told of it a moment later.
func (h *remoteHearing) CatchUp(ctx context.Context) error {
	if err := h.remote.CatchUp(ctx); err != nil {
		return err
	}
	head := h.remote.Seq()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, filter := range h.filters {
		for {
			from := max(h.read.Seq(), h.past) + 1
			if from > head {
				return nil
			}
			next, found, err := bus.Next(ctx, h.remote.conn, proto.StreamEvents, filter, from)
			if err != nil {
				return fmt.Errorf("look for what was accepted: %w", err)
			}
			if !found || next.Seq > head {
				break
			}
			if err := h.hears(ctx, next.Seq); err != nil {
				return err
			}
		}
	}
	h.past = head
	return nil
}

// goneAfter is how long a message may take to be heard before it is looked whether it is still
// there: a newer one of its subject may have replaced it.
const goneAfter = 300 * time.Millisecond

// hears waits until a message is heard, or a later one.
func (h *remoteHearing) hears(ctx context.Context, seq uint64) error {
	limited, cancel := context.WithTimeout(ctx, goneAfter)
	defer cancel()
	if h.read.WaitFor(limited, seq) != nil && ctx.Err() != nil {
		return fmt.Errorf("hear what was accepted up to %d, heard up to %d: %w", seq, h.read.Seq(), ctx.Err())
	}
	return nil
}
