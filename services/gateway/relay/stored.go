package relay

import (
	"context"
	"iter"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// storedEvents returns every event that matches one of the filters, up to each filter's own limit,
// as one sequence: newest first and by id among equals, each once (NIP-01). The bytes are valid
// until the next step.
func storedEvents(ctx context.Context, v *eventdb.View, filters []nostr.Filter) iter.Seq2[eventdb.Raw, error] {
	if len(filters) == 1 {
		return v.QueryRaw(ctx, filters[0])
	}
	return func(yield func(eventdb.Raw, error) bool) {
		var heads []*head
		for _, f := range filters {
			next, stop := iter.Pull2(v.QueryRaw(ctx, f))
			defer stop()
			h := &head{next: next}
			if err := h.advance(); err != nil {
				yield(eventdb.Raw{}, err)
				return
			}
			heads = append(heads, h)
		}
		for {
			var best *head
			for _, h := range heads {
				if h.more && (best == nil || h.value.Compare(best.value.Entry) < 0) {
					best = h
				}
			}
			if best == nil {
				return
			}
			given := best.value.Entry
			if !yield(best.value, nil) {
				return
			}
			for _, h := range heads {
				if !h.more || h.value.Entry != given {
					continue
				}
				if err := h.advance(); err != nil {
					yield(eventdb.Raw{}, err)
					return
				}
			}
		}
	}
}

// head is what comes next in one of the merged sequences.
type head struct {
	next  func() (eventdb.Raw, error, bool)
	value eventdb.Raw
	more  bool
}

func (h *head) advance() (err error) {
	h.value, err, h.more = h.next()
	return err
}

// countStored is how many events match, but no more than most: then there are at least so many. The
// filters' limits are passed over, because they bound what is sent (NIP-01), and a count sends
// nothing. It keeps no more than most ids in memory, and no more matches than that of the one
// filter that it is at.
func countStored(ctx context.Context, v *eventdb.View, filters []nostr.Filter, most int) (n int, approximate bool,
	err error) {
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
