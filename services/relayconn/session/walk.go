package session

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

const (
	// slack is how far a relay may go beyond the limit of a page, as a factor: relays may ignore a
	// limit, but not send for ever.
	slack = 20
	// maxPages ends a walk through a past that is being invented.
	maxPages = 20_000
	// fetchTries is how often ids are asked for that the relay named and does not deliver.
	fetchTries = 2
)

// Gap is a time of which a relay may have more events than it has shown, both ends included. One
// that begins where it ends is a second that holds more than the relay shows at once; the relay of
// any other does not heed since, until or limit.
type Gap struct{ From, To nostr.Timestamp }

// Walk reads what filters that go in one REQ ask for, page by page: what to ask next, when
// everything has come, and what a relay did not show. It goes back through the past, or asks for
// ids until all have come.
type Walk struct {
	// Gaps are the times of which the relay may not have shown everything.
	Gaps []Gap

	filters []nostr.Filter
	limit   int
	until   nostr.Timestamp // the second at which the next page begins; 0: now
	fetches bool            // it asks for ids
	// exclusive: the relay does not show the second of until itself.
	exclusive bool

	pages   int
	brought int             // pages that had something new
	most    int             // the most events that any page had
	shows   int             // events of one filter that the relay has shown at once, at least
	suspect nostr.Timestamp // a second that may be crowded: if there is anything older, it is

	checked uint64 // filters that were looked at whether they show something, as bits; see TakeAlone
	alone   []nostr.Filter

	known    map[uint64]nostr.Timestamp // when those were made that came on pages before, and may come again
	page     map[uint64]seen            // what came on this page of the time asked for
	received int                        // events of this page, however often they came and of any time
	fresh    int                        // those that had not come before
	out      int                        // those that lie outside the time
}

// seen is an event on a page: when it was made, and which filters ask for it, as bits.
type seen struct {
	at    nostr.Timestamp
	sides uint64
}

// A REQ has no more filters than there are sides.
const _ = uint(64 - wire.MostFilters)

var seed = maphash.MakeSeed()

// keyOf stands for an event. An id that is none is found out when it is verified.
func keyOf(id string) uint64 { return maphash.String(seed, id) }

// NewWalk begins a walk for at most [wire.MostFilters] filters of the same time, with pages of at
// most limit events of each.
func NewWalk(filters []nostr.Filter, limit int) *Walk {
	w := &Walk{filters: filters, limit: limit, known: map[uint64]nostr.Timestamp{}}
	if until := filters[0].Until; until != nil {
		w.until = *until
	}
	w.Again()
	return w
}

// NewFetch asks for events by their ids.
func NewFetch(ids []string) *Walk {
	w := NewWalk([]nostr.Filter{{IDs: ids}}, len(ids))
	w.fetches = true
	return w
}

// Filters are what to ask for next, in one REQ.
func (w *Walk) Filters() []nostr.Filter {
	if w.fetches {
		ids := slices.DeleteFunc(slices.Clone(w.filters[0].IDs), func(id string) bool {
			_,
				came := w.known[keyOf(id)]
			return came
		})
		return []nostr.Filter{{IDs: ids, Limit: len(ids)}}
	}
	filters := slices.Clone(w.filters)
	for i := range filters {
		if filters[i].Limit = w.limit; w.until != 0 {
			until := w.until
			if w.exclusive {
				until++
			}
			filters[i].Until = &until
		}
	}
	return filters
}

// spans reports whether a moment is of the time that the next page is asked for.
func (w *Walk) spans(at nostr.Timestamp) bool {
	since := w.filters[0].Since
	return (w.until == 0 || at <= w.until) && (since == nil || at >= *since)
}

// Missing is how many events that are asked for by id have not come.
func (w *Walk) Missing() int {
	if !w.fetches {
		return 0
	}
	return len(w.filters[0].IDs) - len(w.known)
}

// Matches reports whether an event is what the walk is about, of any time: relays may ignore
// since and until.
func (w *Walk) Matches(ev *nostr.Event) bool { return w.sides(ev) != 0 }

func (w *Walk) sides(ev *nostr.Event) (sides uint64) {
	for i, f := range w.filters {
		if f.MatchesIgnoringTimestampConstraints(ev) {
			sides |= 1 << i
		}
	}
	return sides
}

// Saw notes an event of the current page that matches. It is fresh if it is of the time that was
// asked for and came neither on the pages before nor on this one. The page is enough when it has
// gone so far beyond its limit that it must be ended.
func (w *Walk) Saw(ev *nostr.Event) (fresh, enough bool) {
	w.received++
	key := keyOf(ev.ID)
	_, again := w.known[key]
	if !w.spans(ev.CreatedAt) {
		w.out++
	} else if _, here := w.page[key]; !here {
		w.page[key] = seen{ev.CreatedAt, w.sides(ev)}
		if fresh = !again; fresh {
			w.fresh++
		}
	}
	return fresh, w.endless()
}

func (w *Walk) endless() bool { return w.received >= slack*w.limit*len(w.filters) }

// Again forgets the current page, which must be asked for once more.
func (w *Walk) Again() { w.page, w.received, w.fresh, w.out = map[uint64]seen{}, 0, 0, 0 }

// Ended notes the end of the current page, and reports whether there is another to ask for.
func (w *Walk) Ended() (more bool) {
	w.pages++
	if w.fetches { // the relay may show less at once than is asked for
		goesOn := w.fresh > 0 || w.pages < fetchTries
		w.next()
		return w.Missing() > 0 && goesOn
	}
	if w.excludes() {
		w.exclusive = true
		w.Again()
		return true
	}
	if w.endless() || w.pages >= maxPages || w.out > 0 && w.fresh == 0 {
		return w.giveUp()
	}
	if len(w.page) == 0 {
		return false
	}
	if w.fresh > 0 {
		w.brought++
		if w.suspect != 0 {
			w.Gaps, w.suspect = append(w.Gaps, Gap{w.suspect, w.suspect}), 0
		}
	}
	to, full := w.whole()
	w.findHidden(full)
	switch {
	case !full && (w.fresh == 0 || to == w.until):
		return false
	case w.until == 0 || to < w.until:
	default: // one second has filled the page, and may hold more than the relay shows
		if w.suspect, to = w.until, w.until-1; len(w.page) >= w.limit || w.brought > 1 {
			w.Gaps, w.suspect = append(w.Gaps, Gap{w.until, w.until}), 0
		}
	}
	w.until = to
	w.next()
	if len(w.known) > 2*slack*w.limit*len(w.filters) {
		return w.giveUp()
	}
	return to > 0 && w.spans(to)
}

// excludes reports whether the relay has left out the second of until: the page has nothing of it,
// though the page before had. Then there may be more in that second.
func (w *Walk) excludes() bool {
	if w.until == 0 || w.exclusive {
		return false
	}
	for _, e := range w.page {
		if e.at == w.until {
			return false
		}
	}
	for _, at := range w.known {
		if at == w.until {
			return true
		}
	}
	return false
}

// whole is the second down to which the page is whole, with which the next one begins, and whether
// the relay may have had more to show.
//
// A relay shows the newest events of each filter, as many as it shows at once, or all there are; or
// it shows as many of all filters together. An event that several filters match does not say for
// which of them it came. So
//   - of a filter that alone matches an event, everything newer than that has come;
//   - if the relay shows n events of a filter at once, the n newest that match it have come, and if
//     fewer match, all of them have, or the page is whole down to its end.
//
// n is learned from what came: a filter that alone matches n events of a page has shown n, and one
// of k filters has shown at least the kth part of a page.
func (w *Walk) whole() (to nostr.Timestamp, full bool) {
	page := slices.SortedFunc(maps.Values(w.page), func(a, b seen) int { return cmp.Compare(b.at, a.at) })
	n := (len(page) + len(w.filters) - 1) / len(w.filters)
	for i := range w.filters {
		alone := 0
		for _, e := range page {
			if e.sides == 1<<i {
				alone++
			}
		}
		n = max(n, alone)
	}
	w.shows, w.most = max(w.shows, min(n, w.limit)), max(w.most, len(page))
	for i := range w.filters {
		came, end := 0, nostr.Timestamp(0)
		for _, e := range page {
			if e.sides&(1<<i) == 0 {
				continue
			}
			if came++; came <= w.shows || e.sides == 1<<i {
				end = e.at
			}
		}
		if came >= w.shows {
			to, full = max(to, end), true
		}
	}
	if full {
		return to, true
	}
	return page[len(page)-1].at, len(page) >= min(w.most, w.limit)
}

// findHidden finds the filters of which a full page shows nothing, once for each: a relay may show
// as many events of the others as it shows at all.
func (w *Walk) findHidden(full bool) {
	if len(w.filters) == 1 || !full && len(w.page) < w.limit {
		return
	}
	var shown uint64
	for _, e := range w.page {
		shown |= e.sides
	}
	for i, f := range w.filters {
		if bit := uint64(1) << i; w.checked&bit == 0 {
			if w.checked |= bit; shown&bit == 0 {
				w.alone = append(w.alone, f)
			}
		}
	}
}

// TakeAlone returns the filters that must be asked for alone, each once.
func (w *Walk) TakeAlone() (filters []nostr.Filter) {
	filters, w.alone = w.alone, nil
	return filters
}

// next begins the next page, and keeps in mind what may come once more.
func (w *Walk) next() {
	for key, e := range w.page {
		w.known[key] = e.at
	}
	maps.DeleteFunc(w.known, func(_ uint64, at nostr.Timestamp) bool { return !w.spans(at) })
	w.Again()
}

// giveUp notes that the relay does not do as it is asked, so that nothing older can be had from it.
func (w *Walk) giveUp() (more bool) {
	gap := Gap{To: w.until}
	if since := w.filters[0].Since; since != nil {
		gap.From = *since
	}
	if gap.To == 0 {
		gap.To = nostr.Now()
	}
	w.Gaps = append(w.Gaps, gap)
	return false
}
