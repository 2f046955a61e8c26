// Package pages walks back through the past of one filter, page by page: what to ask next, and when everything has come (spec/sync.md, Historic
// sync). It is a value that hears of events and ends of pages; asking is its caller's.
package pages

import (
	"errors"
	"fmt"

	"github.com/nbd-wtf/go-nostr"
)

// ErrEndless: the relay sends more than it was asked for, or never comes to an end.
var ErrEndless = errors.New("the relay does not come to an end")

const (
	// slack is how far a relay may go beyond the limit of a page, as a factor: relays may ignore a limit, but not send for ever.
	slack = 20
	// maxPages ends a walk through a past that is being invented.
	maxPages = 20_000
)

// Walk is the way through one filter's past.
type Walk struct {
	filter nostr.Filter
	limit  int
	pages  int
	most   int // the most events that any page brought

	until    nostr.Timestamp     // the second at which the page begins; 0: now
	boundary map[string]struct{} // ids that came already at that second
	total    int                 // events of this page
	fresh    int                 // of them, new ones
	oldest   nostr.Timestamp     // of this page
	atOldest map[string]struct{} // ids of this page at its oldest second
	Gaps     []nostr.Timestamp   // seconds of which a relay would not show everything
}

// New begins a walk with pages of at most limit events.
func New(filter nostr.Filter, limit int) *Walk { return &Walk{filter: filter, limit: limit} }

// Filter is what to ask for next.
func (w *Walk) Filter() nostr.Filter {
	f := w.filter
	f.Limit = w.limit
	if w.until != 0 {
		until := w.until
		f.Until = &until
	}
	return f
}

// Matches reports whether an event is an answer to what was asked.
func (w *Walk) Matches(ev *nostr.Event) bool {
	f := w.Filter()
	return f.Matches(ev)
}

// Saw notes an event of the current page that matches, and reports whether it is fresh: not the end of the page before once more.
func (w *Walk) Saw(ev *nostr.Event) (fresh bool, err error) {
	if w.total++; w.total > slack*w.limit {
		return false, fmt.Errorf("%w: %d events on a page of %d", ErrEndless, w.total, w.limit)
	}
	_, again := w.boundary[ev.ID]
	if !again {
		w.fresh++
	}
	if len(w.atOldest) == 0 || ev.CreatedAt < w.oldest {
		w.oldest, w.atOldest = ev.CreatedAt, map[string]struct{}{}
	}
	if ev.CreatedAt == w.oldest {
		w.atOldest[ev.ID] = struct{}{}
	}
	return !again, nil
}

// Ended notes the end of the current page, and reports whether there is another to ask for.
func (w *Walk) Ended() (more bool, err error) {
	if w.pages++; w.pages > maxPages {
		return false, fmt.Errorf("%w: %d pages", ErrEndless, w.pages)
	}
	w.most = max(w.most, w.total)
	switch {
	case w.total == 0:
		return false, nil
	case w.fresh > 0:
		if w.oldest != w.until {
			w.boundary = nil
		}
		w.until = w.oldest
		if w.boundary == nil {
			w.boundary = w.atOldest
		} else {
			for id := range w.atOldest {
				w.boundary[id] = struct{}{}
			}
		}
	case w.total < min(w.most, w.limit):
		return false, nil
	default:
		// As full as a page gets, and all of it known: a single second holds more than the relay shows at once. Below it there may be more.
		if w.total >= w.limit {
			w.Gaps = append(w.Gaps, w.until)
		}
		w.until, w.boundary = w.oldest-1, nil
	}
	w.total, w.fresh, w.atOldest = 0, 0, nil
	return w.until > 0 && (w.filter.Since == nil || w.until >= *w.filter.Since), nil
}

// Again forgets the current page, which is to be asked for once more.
func (w *Walk) Again() { w.total, w.fresh, w.atOldest = 0, 0, nil }
