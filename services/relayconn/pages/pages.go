// Package pages walks back through the past of one filter, page by page: what to ask next, when
// everything has come, and what a relay did not show (spec/sync.md, Historic sync). It is a value
// that hears of events and ends of pages; asking is its caller's.
package pages

import (
	"github.com/nbd-wtf/go-nostr"
)

const (
	// slack is how far a relay may go beyond the limit of a page, as a factor: relays may ignore a
	// limit, but not send for ever.
	slack = 20
	// maxPages ends a walk through a past that is being invented.
	maxPages = 20_000
)

// Gap is a time of which a relay may have more events than it has shown, both ends included. One
// that begins where it ends is a second that holds more than the relay shows at once; the relay of
// any other does not heed since, until or limit.
type Gap struct{ From, To nostr.Timestamp }

// Walk is the way through one filter's past.
type Walk struct {
	filter nostr.Filter
	limit  int
	pages  int
	most   int // the most events that any page brought
	turned int // pages that brought something new

	until    nostr.Timestamp     // the second at which the page begins; 0: now
	boundary map[string]struct{} // ids that came already at that second
	total    int                 // events of this page that lie in the time asked for
	outside  int                 // and those that do not
	fresh    int                 // new ones of this page
	oldest   nostr.Timestamp     // of this page
	atOldest map[string]struct{} // ids of this page at its oldest second
	suspect  nostr.Timestamp     // a second that may be crowded: if there is anything older, it is
	gaps     []Gap
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

// Gaps are the times of which the relay may not have shown everything.
func (w *Walk) Gaps() []Gap { return w.gaps }

// Matches reports whether an event is what the walk is about, of whatever time: relays may ignore
// since and until.
func (w *Walk) Matches(ev *nostr.Event) bool {
	f := w.filter
	f.Since, f.Until = nil, nil
	return f.Matches(ev)
}

// Saw notes an event of the current page that matches. It is fresh if it is not the end of the page
// before once more, and of the time that was asked for. The page is enough when it has gone so far
// beyond its limit that it is to be ended.
func (w *Walk) Saw(ev *nostr.Event) (fresh, enough bool) {
	enough = w.total+w.outside+1 >= slack*w.limit
	if w.until != 0 && ev.CreatedAt > w.until || w.filter.Since != nil && ev.CreatedAt < *w.filter.Since {
		w.outside++
		return false, enough
	}
	w.total++
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
	return !again, enough
}

// Ended notes the end of the current page, and reports whether there is another to ask for.
func (w *Walk) Ended() (more bool) {
	w.pages++
	w.most = max(w.most, w.total)
	switch {
	case w.total+w.outside >= slack*w.limit || w.pages >= maxPages || w.outside > 0 && w.fresh == 0:
		w.giveUp()
		return false
	case w.fresh > 0:
		w.turn()
	case w.total < min(w.most, w.limit) || w.total == 0:
		return false
	default:
		w.stepBelow()
	}
	w.Again()
	return w.until > 0 && (w.filter.Since == nil || w.until >= *w.filter.Since)
}

// giveUp notes that the relay does not do as it is asked, so that nothing older can be had from it.
func (w *Walk) giveUp() {
	gap := Gap{To: w.until}
	if w.filter.Since != nil {
		gap.From = *w.filter.Since
	}
	if gap.To == 0 {
		gap.To = nostr.Now()
	}
	w.gaps = append(w.gaps, gap)
}

// turn begins the next page with the second that this one ended with.
func (w *Walk) turn() {
	if w.suspect != 0 {
		w.gaps, w.suspect = append(w.gaps, Gap{w.suspect, w.suspect}), 0
	}
	w.turned++
	if w.oldest != w.until {
		w.boundary = nil
	}
	w.until = w.oldest
	if w.boundary == nil {
		w.boundary = w.atOldest
		return
	}
	for id := range w.atOldest {
		w.boundary[id] = struct{}{}
	}
}

// stepBelow leaves a second that has filled a page of which all is known: it holds as many events
// as the relay shows at once, or more. Below it there may be others. How many the relay shows is
// our limit, or what its fullest page had if there was more to show after it.
func (w *Walk) stepBelow() {
	if w.total >= w.limit || w.turned > 1 {
		w.gaps = append(w.gaps, Gap{w.until, w.until})
	} else {
		w.suspect = w.until
	}
	w.until, w.boundary = w.oldest-1, nil
}

// Again forgets the current page, which is to be asked for once more.
func (w *Walk) Again() { w.total, w.outside, w.fresh, w.atOldest = 0, 0, 0, nil }

// Restart goes back to where the walk began.
func (w *Walk) Restart() { *w = *New(w.filter, w.limit) }
