package history

import (
	"tendril.dev/lib/nostr"
)

const (
	// beginning is a moment before the first event of Nostr. What is dated before is found all the
	// same, in the last slice.
	beginning nostr.Timestamp = 1_600_000_000
	// maxSlices is into how many slices one past is cut at most, because a relay may invent what is
	// dense.
	maxSlices = 256
	// worth is how many events a page must have brought for the past behind it to be cut.
	worth = 20
)

// density is how many events a full page brought and how many seconds they span; zero: the page was
// not full, so that there may be nothing behind it.
type density struct {
	events int
	span   nostr.Timestamp
}

// density tells of the page that ends now, which is sorted.
func (w *Walk) density() (d density) {
	if w.fresh < worth {
		return d
	}
	for i := range w.sides {
		if w.shown(i).n >= w.kin.shows {
			return density{w.fresh, w.page[0].at - w.page[len(w.page)-1].at + 1}
		}
	}
	return d
}

// Slice cuts what is left of the past into slices of time that can be asked for side by side, if
// what came on the last page says that there may be much. It returns most walks at most, for the
// older slices; this one keeps the newest. Each slice begins with the second with which the next
// older one ends, because some relays take since for the moment after which events are wanted.
func (w *Walk) Slice(most int) (older []*Walk) {
	top, bottom := w.left()
	most = min(most, maxSlices-w.kin.slices)
	if w.dense.events == 0 || top <= bottom || most < 1 {
		return nil
	}
	width := Width(w.dense.span, top-bottom, most+1)
	w.dense = density{}
	for to := top - width; to >= bottom && len(older) < most; to -= width {
		from := to - width
		if from <= bottom || len(older) == most-1 {
			older = append(older, w.slice(w.sides[0].filter.Since, to))
			break
		}
		older = append(older, w.slice(&from, to))
	}
	if len(older) == 0 {
		return nil
	}
	w.kin.slices += len(older)
	cut := top - width
	for i := range w.sides {
		w.sides[i].filter.Since = &cut
	}
	w.remember() // what is older is another's now
	return older
}

// Width is how many seconds a slice spans, of a past of that many, if it must be cut into that
// many slices: they are equal, because nobody knows where the events are, but none is expected to
// have less than two pages, where a page spans so many seconds.
func Width(page, past nostr.Timestamp, slices int) nostr.Timestamp {
	return max((past+nostr.Timestamp(slices)-1)/nostr.Timestamp(slices), 2*page, 1)
}

// left is the time that is still to be asked for, if it must be cut; none of it: top is bottom.
func (w *Walk) left() (top, bottom nostr.Timestamp) {
	bottom = beginning
	if since := w.sides[0].filter.Since; since != nil {
		bottom = max(bottom, *since)
	}
	for _, s := range w.sides {
		if s.suspect != 0 {
			return 0, 0 // what is older says whether that second was crowded
		}
		top = max(top, s.until)
	}
	return max(top, bottom), bottom
}

// slice is a walk through a part of what is left.
func (w *Walk) slice(since *nostr.Timestamp, to nostr.Timestamp) *Walk {
	sides := make([]side, len(w.sides))
	for i, s := range w.sides {
		until := to
		if s.until != 0 {
			until = min(until, s.until)
		}
		sides[i] = side{filter: s.filter, until: until, turned: s.turned}
		sides[i].filter.Since = since
	}
	return &Walk{sides: sides, limit: w.limit, kin: w.kin, most: w.most}
}
