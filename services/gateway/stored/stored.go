// Package stored answers filters from the index: several filters become one sequence, newest first,
// each event once (NIP-01).
package stored

import (
	"context"
	"iter"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// Events returns every event that matches one of the filters, up to each filter's own limit, newest
// first and by id among equals. The bytes are valid until the next step.
func Events(ctx context.Context, v *eventdb.View, filters []nostr.Filter) iter.Seq2[eventdb.Raw, error] {
	if len(filters) == 1 {
		return v.QueryRaw(ctx, filters[0])
	}
	return func(yield func(eventdb.Raw, error) bool) {
		heads := make([]*head, 0, len(filters))
		for _, f := range filters {
			next, stop := iter.Pull2(v.QueryRaw(ctx, f))
			defer stop()
			heads = append(heads, &head{next: next})
		}
		var last eventdb.Entry
		for first := true; ; first = false {
			best, err := newest(heads, last, first)
			if err != nil {
				yield(eventdb.Raw{}, err)
				return
			}
			if best == nil {
				return
			}
			last = best.value.Entry
			if !yield(best.value, nil) {
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
		// One more than most is all that has to be known of a filter.
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

// head is where one of the merged sequences stands.
type head struct {
	next   func() (eventdb.Raw, error, bool)
	value  eventdb.Raw
	loaded bool
	ended  bool
}

// newest moves every head past what was given last and picks the one that comes next; nil at the
// end. A head is moved only here, so that its value stays valid until the next step.
func newest(heads []*head, last eventdb.Entry, first bool) (*head, error) {
	var best *head
	for _, h := range heads {
		for !h.ended && (!h.loaded || !first && h.value.Entry == last) {
			value, err, ok := h.next()
			if err != nil {
				return nil, err
			}
			h.value, h.loaded, h.ended = value, true, !ok
		}
		if !h.ended && (best == nil || h.value.Compare(best.value.Entry) < 0) {
			best = h
		}
	}
	return best, nil
}
