package session

import "time"

// want takes in what the target says now.
func (s *Session) want(w Wanted) {
	w.Items.First = true
	gone := !Diff(s.wanted.Items, w.Items, Set{}).Empty()
	if gone {
		s.live.withdrawn(time.Now())
	}
	// What was confirmed at the beginning may not be wanted.
	s.history.want(w.Items, gone || s.wanted.Mark == (Mark{}))
	s.wanted = w
	s.plan(startup)
}

// plan works out what is wanted and was not asked for yet: the three-way diff, with which
// everything beyond layer 1 begins.
func (s *Session) plan(why cause) {
	fresh := s.history.missing()
	s.due = work{items: fresh, groups: Groups(fresh), cause: why}
}

// addNew asks for what was planned, as soon as the relay and consolidation allow it.
func (s *Session) addNew(now time.Time) {
	if s.due.items.Empty() {
		s.consolidateBy = time.Time{}
		return
	}
	pending := s.history.standing().pending
	// This is asked with every message, and whether consolidation is needed takes longer to find
	// out than that it waits.
	if !s.live.allOpen() || s.governor.paused(now) || pending && now.Before(s.consolidateBy) {
		return
	}
	if s.live.crowded(countFilters(s.due.groups)) {
		if pending && s.consolidateBy.IsZero() {
			s.consolidateBy = now.Add(s.Rules.ConsolidateWait)
			return
		}
		s.live.consolidate(s.live.groups(), now)
	}
	s.request(now)
}

// request asks for what was planned, live and of the past.
func (s *Session) request(now time.Time) {
	w := s.due
	s.due, s.consolidateBy = work{}, time.Time{}
	// Of what is found later, one by one, hardly anything is known.
	w.reconcile, s.fresh = s.fresh, false
	s.live.open(w.groups, false, time.Time{}, now)
	if !w.items.Empty() {
		s.history.add(w)
	}
}
