// Package stored answers filters from the index: several filters become one sequence, newest first,
// each event once (NIP-01).
package stored

import (
	"context"
	"fmt"
	"iter"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// Events returns the JSON of every event that matches one of the filters, up to each filter's own
// limit, newest first and by id among equals. The bytes are valid until the next step.
func Events(ctx context.Context, v *eventdb.View, filters []nostr.Filter) iter.Seq2[[]byte, error] {
	if len(filters) == 1 {
		return v.QueryRaw(ctx, filters[0])
	}
	return func(yield func([]byte, error) bool) {
		streams := make([]iter.Seq2[placed, error], 0, len(filters))
		for _, f := range filters {
			streams = append(streams, withPlaces(v.QueryRaw(ctx, f)))
		}
		for p, err := range merge(streams) {
			if !yield(p.json, err) || err != nil {
				return
			}
		}
	}
}

// Count is how many events match, but no more than most: then there are at least so many. The
// filters' limits are passed over, because they bound what is sent (NIP-01), and a count sends
// nothing. It keeps no more than most ids in memory, and no more matches than that of the one
// filter that it is at.
func Count(ctx context.Context, v *eventdb.View, filters []nostr.Filter, most int) (n int, approximate bool, err error) {
	counted := map[[32]byte]struct{}{} // an event that matches several filters is one event
	for i, f := range filters {
		// One more than most is all that has to be known of a filter, whatever the others have
		// given.
		f.Limit, f.LimitZero = most+1, false
		last := i == len(filters)-1
		for e, err := range v.IDs(ctx, f) {
			if err != nil {
				return 0, false, err
			}
			if _, again := counted[e.ID]; again {
				continue
			}
			if n == most {
				return n, true, nil
			}
			if n++; !last {
				counted[e.ID] = struct{}{}
			}
		}
	}
	return n, false, nil
}

// placed is an event and where it stands in time.
type placed struct {
	at   eventdb.Entry
	json []byte
}

func withPlaces(events iter.Seq2[[]byte, error]) iter.Seq2[placed, error] {
	return func(yield func(placed, error) bool) {
		for raw, err := range events {
			p := placed{json: raw}
			if err == nil {
				p.at, err = placeOf(raw)
			}
			if !yield(p, err) || err != nil {
				return
			}
		}
	}
}

func placeOf(raw []byte) (eventdb.Entry, error) {
	var ev nostr.Event
	if err := ev.UnmarshalJSON(raw); err != nil {
		return eventdb.Entry{}, fmt.Errorf("read a stored event: %w", err)
	}
	at, err := eventdb.EntryOf(&ev)
	if err != nil {
		return eventdb.Entry{}, fmt.Errorf("read a stored event: %w", err)
	}
	return at, nil
}

// merge makes one sequence of several that are sorted. What stands in more than one comes once. An
// error ends it.
func merge(streams []iter.Seq2[placed, error]) iter.Seq2[placed, error] {
	return func(yield func(placed, error) bool) {
		heads := make([]*head, 0, len(streams))
		for _, s := range streams {
			h := &head{}
			var stop func()
			h.next, stop = iter.Pull2(s)
			defer stop()
			heads = append(heads, h)
		}
		var last eventdb.Entry
		for first := true; ; first = false {
			best, err := newest(heads, last, first)
			if err != nil {
				yield(placed{}, err)
				return
			}
			if best == nil {
				return
			}
			last = best.value.at
			if !yield(best.value, nil) {
				return
			}
		}
	}
}

// head is where one of the merged sequences stands.
type head struct {
	next   func() (placed, error, bool)
	value  placed
	loaded bool
	ended  bool
}

// newest moves every head past what was given last and picks the one that comes next; nil at the
// end. A head is moved only here, so that its value stays valid until the next step.
func newest(heads []*head, last eventdb.Entry, first bool) (*head, error) {
	var best *head
	for _, h := range heads {
		for !h.ended && (!h.loaded || !first && h.value.at == last) {
			value, err, ok := h.next()
			if err != nil {
				return nil, err
			}
			h.value, h.loaded, h.ended = value, true, !ok
		}
		if !h.ended && (best == nil || h.value.at.Compare(best.value.at) < 0) {
			best = h
		}
	}
	return best, nil
}
