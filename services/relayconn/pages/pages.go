// Package pages walks back through the past of a group of filters that go in one REQ, page by page:
// what to ask next, when everything has come, and what a relay did not show (docs/architecture.md,
// How things flow). It is a value that hears of events and ends of pages; asking is its caller's.
//
// A relay answers each filter of a REQ with its newest events, so a page may reach further back for
// one filter than for another, and an event that several filters match does not say for which of
// them it came. So each filter has an until of its own, and it is moved only as far as the page is
// known to be whole for that filter; see Ended.
package pages

import (
	"slices"

	"tendril.dev/lib/nostr"
)

const (
	// slack is how far a relay may go beyond the limit of a page, as a factor: relays may ignore a
	// limit, but not send for ever.
	slack = 20
	// maxPages ends a walk through a past that is being invented.
	maxPages = 20_000
	// MaxFilters is how many filters a walk may have.
	MaxFilters = 64
)

// Gap is a time of which a relay may have more events than it has shown, both ends included. One
// that begins where it ends is a second that holds more than the relay shows at once; the relay of
// any other does not heed since, until or limit.
type Gap struct{ From, To nostr.Timestamp }

// Walk is the way through the past of a group of filters.
type Walk struct {
	sides []side
	limit int
	kin   *kin
	pages int
	most  int // the most events that any page brought
	dense density

	known map[key]mark // came on pages before, and may come again
	here  map[key]struct{}
	page  []seen // the events of this page that lie in the times asked for, each once
	said  int    // events of this page, however often they came and of whatever time
	fresh int    // those that had not come before
	out   int    // and those that lie outside
	gaps  []Gap
}

// kin is what the slices of one past have together.
type kin struct {
	pages, slices int
	shows         int // events of each filter that the relay has shown at once, at least
}

// side is one filter, and how far back everything of it has come.
type side struct {
	filter  nostr.Filter
	until   nostr.Timestamp // the second at which its next page begins; 0: now
	turned  int             // pages that brought something new of it
	suspect nostr.Timestamp // a second that may be crowded: if there is anything older, it is
}

// key is half of an event's id, which is enough to tell events apart.
type key [16]byte

// mark says of an event when it was made and for which sides it may come, as bits.
type mark struct {
	at    nostr.Timestamp
	sides uint64
}

type seen struct {
	mark
	key   key
	fresh bool
}

// New begins a walk for at most MaxFilters filters, with pages of at most limit events of each.
func New(filters []nostr.Filter, limit int) *Walk {
	w := &Walk{limit: limit, kin: &kin{}, sides: make([]side, min(len(filters), MaxFilters))}
	for i := range w.sides {
		w.sides[i].filter = filters[i]
		if until := filters[i].Until; until != nil {
			w.sides[i].until = *until
		}
	}
	return w
}

// Filters are what to ask for next, in one REQ.
func (w *Walk) Filters() []nostr.Filter {
	filters := make([]nostr.Filter, 0, len(w.sides))
	for i := range w.sides {
		s := &w.sides[i]
		if s.over() {
			continue
		}
		f := s.filter
		f.Limit, f.Until = w.limit, nil
		if s.until != 0 {
			until := s.until
			f.Until = &until
		}
		filters = append(filters, f)
	}
	return filters
}

// over reports whether nothing of the time that is asked for is left.
func (s *side) over() bool {
	return s.until < 0 || s.until != 0 && s.filter.Since != nil && s.until < *s.filter.Since
}

// spans reports whether a moment is of the time that the next page is asked for.
func (s *side) spans(at nostr.Timestamp) bool {
	return (s.until == 0 || at <= s.until) && (s.filter.Since == nil || at >= *s.filter.Since)
}

// Gaps are the times of which the relay may not have shown everything.
func (w *Walk) Gaps() []Gap { return w.gaps }

// Matches reports whether an event is what the walk is about, of whatever time: relays may ignore
// since and until.
func (w *Walk) Matches(ev *nostr.Event) bool {
	return slices.ContainsFunc(w.sides, func(s side) bool { return s.matches(ev) })
}

func (s *side) matches(ev *nostr.Event) bool {
	f := s.filter
	f.Since, f.Until = nil, nil
	return f.Matches(ev)
}

// Saw notes an event of the current page that matches. It is fresh if it is of the time that was
// asked for and came neither on the pages before nor on this one. The page is enough when it has
// gone so far beyond its limit that it must be ended.
func (w *Walk) Saw(ev *nostr.Event) (fresh, enough bool) {
	w.said++
	enough = w.endless()
	m := mark{at: ev.CreatedAt}
	for i := range w.sides {
		if s := &w.sides[i]; s.spans(ev.CreatedAt) && s.matches(ev) {
			m.sides |= 1 << i
		}
	}
	if m.sides == 0 {
		w.out++
		return false, enough
	}
	k := keyOf(ev.ID)
	if _, again := w.here[k]; again {
		return false, enough
	}
	if w.here == nil {
		w.here = map[key]struct{}{}
	}
	w.here[k] = struct{}{}
	_, again := w.known[k]
	w.page = append(w.page, seen{mark: m, key: k, fresh: !again})
	if !again {
		w.fresh++
	}
	return !again, enough
}

func (w *Walk) endless() bool { return w.said >= slack*w.limit*len(w.sides) }

// keyOf takes the end of an id. One that is no id is found out when it is verified.
func keyOf(id string) (k key) {
	for i := range k {
		if j := len(id) - 2*len(k) + 2*i; j >= 0 {
			k[i] = nibble(id[j])<<4 | nibble(id[j+1])
		}
	}
	return k
}

func nibble(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c & 15
}

// Again forgets the current page, which must be asked for once more.
func (w *Walk) Again() { w.page, w.here, w.said, w.fresh, w.out = nil, nil, 0, 0, 0 }
