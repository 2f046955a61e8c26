package pages

import (
	"cmp"
	"slices"

	"tendril.dev/lib/nostr"
)

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
	w.kin.pages++
	w.most = max(w.most, len(w.page))
	if w.endless() || w.kin.pages >= maxPages || w.out > 0 && w.fresh == 0 {
		w.giveUp()
		return false
	}
	slices.SortFunc(w.page, func(a, b seen) int { return cmp.Compare(b.at, a.at) })
	w.learn()
	w.dense = w.density()
	if !w.turn() {
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
	w.kin.shows = max(w.kin.shows, min(n, w.limit))
}

// turn moves each side as far as the page is whole for it, and reports whether there is something
// to ask for.
func (w *Walk) turn() (more bool) {
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
		case came.n >= w.kin.shows:
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
		if s.n++; s.n <= w.kin.shows || e.sides == 1<<i {
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
		s.turned++
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
	if n >= w.limit || s.turned > 1 {
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
