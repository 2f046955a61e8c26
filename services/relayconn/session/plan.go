package session

import (
	"slices"
	"time"
)

// want takes in what the target says now. Of the rest nothing is confirmed, and what of it is not
// under way is not tried again.
func (s *Session) want(w Wanted) {
	w.Items.First = true
	gone := !Diff(s.wanted.Items, w.Items, Set{}).Empty()
	if gone && s.trimAt.IsZero() {
		s.trimAt = time.Now().Add(trimAfter)
	}
	if gone || s.wanted.Mark == (Mark{}) { // what was confirmed at the beginning may not be wanted
		s.confirmed = Only(s.confirmed, w.Items)
	}
	s.compare = true
	s.batches = slices.DeleteFunc(s.batches, func(b *batch) bool { return b.found() && b.idle() && Only(b.items, w.Items).Empty() })
	s.wanted = w
	s.plan(startup)
}

// plan works out what is wanted and was not asked for yet: the three-way diff, with which
// everything beyond layer 1 begins.
func (s *Session) plan(why cause) {
	fresh := Diff(s.wanted.Items, Union(s.asked()...), s.confirmed)
	s.due = work{items: fresh, groups: Groups(fresh), cause: why}
}

// addNew asks for what was planned, as soon as the relay and consolidation allow it.
func (s *Session) addNew(now time.Time) {
	if s.due.items.Empty() {
		s.consolidateBy = time.Time{}
		return
	}
	pending := s.standings().pending
	// This is asked with every message, and whether consolidation is needed takes longer to find
	// out than that it waits.
	if !s.mayAsk(now) || pending && now.Before(s.consolidateBy) {
		return
	}
	if s.crowded() {
		if pending && s.consolidateBy.IsZero() {
			s.consolidateBy = now.Add(s.Rules.ConsolidateWait)
			return
		}
		s.consolidate(s.liveGroups(), now)
	}
	s.request(now)
}

// request asks for what was planned, live and of the past.
func (s *Session) request(now time.Time) {
	w := s.due
	s.due, s.consolidateBy = work{}, time.Time{}
	// Of what is found later, one by one, hardly anything is known.
	w.reconcile, s.fresh = s.fresh, false
	s.openLive(w.groups, false, time.Time{}, now)
	if !w.items.Empty() {
		s.add(w)
	}
}

// crowded reports whether the live filters of layers 2 and 3 should be made fewer before those that
// are due are added. Where even the fewest are too many, that is done only when it saves a good
// part, not with every addition.
func (s *Session) crowded() bool {
	have, more := 0, countFilters(s.due.groups)
	for _, l := range s.lives {
		if !l.first {
			have += countFilters(l.groups)
		}
	}
	if have == 0 || have+more <= s.Rules.MaxFilters {
		return false
	}
	fewest := countFilters(s.liveGroups())
	return fewest+more <= s.Rules.MaxFilters || have-fewest >= (s.Rules.MaxFilters+3)/4
}

// mayAsk reports whether something new may be asked for.
func (s *Session) mayAsk(now time.Time) bool { return s.allOpen() && !now.Before(s.quiet) }
