package session

import "time"

// want takes in what the target says now.
func (s *Session) want(w Wanted) {
	w.Items.First = s.first
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
	if !s.due.items.Empty() {
		why = s.due.cause
	}
	s.due = work{items: s.history.missing(), cause: why}
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
	// What lies below is found in what comes, so it is asked for when that has come, all together.
	if s.due.items.Above().Empty() && s.history.finds() {
		return
	}
	if s.live.crowded(countFilters(Live(s.due.items))) {
		if pending && s.consolidateBy.IsZero() {
			s.consolidateBy = now.Add(s.Rules.ConsolidateWait)
			return
		}
		s.live.consolidate(s.live.wanted(), now)
	}
	s.request(now)
}

// request asks for what was planned, live and of the past: for layer 4 when nothing else is due.
func (s *Session) request(now time.Time) {
	w := s.due
	s.due, s.consolidateBy = work{}, time.Time{}
	if above := w.items.Above(); !above.Empty() {
		s.due = work{items: Set{Replies: w.items.Replies}, cause: w.cause}
		w.items = above
	}
	// Of what is found later, one by one, hardly anything is known; but below many replies it is.
	w.reconcile, s.fresh = s.fresh || len(w.items.Replies) >= fewestShared, false
	if !s.past {
		s.live.open(w.items, time.Time{}, now)
	}
	if !w.items.Empty() {
		w.groups = Groups(w.items)
		s.history.add(w)
	}
}
