package history

import (
	"cmp"
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

// Walk walks back through the past of a group of filters that go in one REQ, page by page: what to
// ask next, when everything has come, and what a relay did not show.
//
// A relay answers each filter of a REQ with its newest events, so a page may reach further back for
// one filter than for another, and an event that several filters match does not say for which of
// them it came. So each filter has an until of its own, and it is moved only as far as the page is
// known to be whole for that filter; see Ended.
type Walk struct {
	sides []side
	limit int
	pages int
	most  int // the most events that any page brought
	shows int // events of each filter that the relay has shown at once, at least

	known map[key]mark // came on pages before, and may come again
	here  map[key]struct{}
	page  []seen // the events of this page that lie in the times asked for, each once
	said  int    // events of this page, however often they came and of any time
	fresh int    // those that had not come before
	out   int    // and those that lie outside
	gaps  []Gap
}

// side is one filter, and how far back everything of it has come.
type side struct {
	filter  nostr.Filter
	until   nostr.Timestamp // the second at which its next page begins; 0: now
	pages   int             // pages that brought something new of it
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

// NewWalk begins a walk for at most MaxFilters filters, with pages of at most limit events of each.
func NewWalk(filters []nostr.Filter, limit int) *Walk {
	w := &Walk{limit: limit, sides: make([]side, min(len(filters), MaxFilters))}
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

// Matches reports whether an event is what the walk is about, of any time: relays may ignore
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

// Ended notes the end of the current page, and reports whether there is another to ask for.
//
// How far the page is whole for one filter follows from what a relay does: it shows the newest
// events of each filter, as many as it shows at once, or all there are. So
//   - of a filter that alone matches an event, everything newer than that has come;
//   - if the relay shows n events of a filter at once, the n newest that match it have come, and if
//     fewer match, all of them have. That further ones match says nothing: they may have come for
//     another filter, and between them there may be others.
//
// n is learned from what came: a filter that alone matches n events of a page has shown n, and one
// of k filters has shown at least the kth part of a page.
func (w *Walk) Ended() (more bool) {
	w.pages++
	w.most = max(w.most, len(w.page))
	if w.endless() || w.pages >= maxPages || w.out > 0 && w.fresh == 0 {
		w.giveUp()
		return false
	}
	slices.SortFunc(w.page, func(a, b seen) int { return cmp.Compare(b.at, a.at) })
	w.learn()
	if !w.step() {
		return false
	}
	w.remember()
	w.Again()
	if len(w.known) > 2*slack*w.limit*len(w.sides) {
		w.giveUp()
		return false
	}
	return slices.ContainsFunc(w.sides, func(s side) bool { return !s.over() })
}

// learn works out how many events of a filter the relay has shown at once.
func (w *Walk) learn() {
	n := (len(w.page) + len(w.sides) - 1) / len(w.sides)
	for i := range w.sides {
		alone := 0
		for _, e := range w.page {
			if e.sides == 1<<i {
				alone++
			}
		}
		n = max(n, alone)
	}
	w.shows = max(w.shows, min(n, w.limit))
}

// step moves each side as far as the page is whole for it, and reports whether there is something
// to ask for.
func (w *Walk) step() (more bool) {
	var all [MaxFilters]shown
	newest := nostr.Timestamp(0)
	for i := range w.sides {
		if all[i] = w.shown(i); all[i].n > 0 {
			newest = max(newest, w.sides[i].until)
		}
	}
	full := len(w.page) >= min(w.most, w.limit)
	moved := w.fresh > 0
	var stuck []int // sides of which all that came was known
	for i := range w.sides {
		s, came := &w.sides[i], all[i]
		switch {
		case came.n == 0:
		case s.until == 0 || came.whole < s.until:
			w.advance(s, came)
			moved = true
		case came.fresh:
			w.advance(s, came)
		case full && s.until < newest: // others may have taken its room
		case came.n >= w.shows:
			w.stepBelow(s, came.n)
			moved = true
		default:
			stuck = append(stuck, i)
		}
	}
	switch {
	case moved:
		for _, i := range stuck { // what came of them has all come, and need not come again
			w.sides[i].move(w.sides[i].until - 1)
		}
	case full:
		// A relay may count the events of all filters together, and then one second has filled the
		// page for all of them.
		for _, i := range stuck {
			w.stepBelow(&w.sides[i], len(w.page))
		}
		moved = len(stuck) > 0
	}
	return moved
}

// shown is what a page has of one side.
type shown struct {
	n     int
	whole nostr.Timestamp // the second down to which it is whole
	fresh bool
}

func (w *Walk) shown(i int) (s shown) {
	for _, e := range w.page { // from the newest on
		if e.sides&(1<<i) == 0 {
			continue
		}
		if s.n++; s.n <= w.shows || e.sides == 1<<i {
			s.whole = e.at
		}
		s.fresh = s.fresh || e.fresh
	}
	return s
}

// advance notes that a page is whole for a side down to a second, with which its next page begins.
// A second that may have been crowded was, if there is something below it.
func (w *Walk) advance(s *side, to shown) {
	if to.fresh {
		s.pages++
		if s.suspect != 0 {
			w.gap(Gap{s.suspect, s.suspect})
			s.suspect = 0
		}
	}
	s.move(to.whole)
}

// stepBelow leaves a second of which all is known and that has as many events as the relay is known
// to show at once: it may hold more, and below it there may be others. It does hold more if the
// relay shows no more than that, which is so if it is our limit, or if there was more to show after
// other pages.
func (w *Walk) stepBelow(s *side, n int) {
	if n >= w.limit || s.pages > 1 {
		w.gap(Gap{s.until, s.until})
	} else {
		s.suspect = s.until
	}
	s.move(s.until - 1)
}

// move sets where the next page begins; before the beginning of time there is nothing to ask for.
func (s *side) move(until nostr.Timestamp) {
	if s.until = until; until <= 0 {
		s.until = -1
	}
}

// remember keeps what may come once more.
func (w *Walk) remember() {
	again := func(m mark) bool {
		for i := range w.sides {
			if m.sides&(1<<i) != 0 && w.sides[i].spans(m.at) {
				return true
			}
		}
		return false
	}
	for k, m := range w.known {
		if !again(m) {
			delete(w.known, k)
		}
	}
	for _, e := range w.page {
		if again(e.mark) {
			if w.known == nil {
				w.known = map[key]mark{}
			}
			w.known[e.key] = e.mark
		}
	}
}

// giveUp notes that the relay does not do as it is asked, so that nothing older can be had from it.
func (w *Walk) giveUp() {
	for _, s := range w.sides {
		if s.over() {
			continue
		}
		gap := Gap{To: s.until}
		if s.filter.Since != nil {
			gap.From = *s.filter.Since
		}
		if gap.To == 0 {
			gap.To = nostr.Now()
		}
		w.gap(gap)
	}
}

// gap notes a gap, each once.
func (w *Walk) gap(g Gap) {
	if !slices.Contains(w.gaps, g) {
		w.gaps = append(w.gaps, g)
	}
}
