package session

import (
	"context"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
)

// crowded reports whether the live filters of layers 2 and 3 should be made fewer before those that
// are due are added. Where even the fewest are too many, that is done only when it saves a good
// part, not with every addition.
func (s *Session) crowded() bool {
	have := s.live.Filters()
	if have == 0 || have+len(s.due.filters) <= s.Rules.MaxFilters {
		return false
	}
	fewest := history.Fewest(s.past.Confirmed(), s.past.Asked())
	return fewest+len(s.due.filters) <= s.Rules.MaxFilters || have-fewest >= (s.Rules.MaxFilters+3)/4
}

// waits reports whether consolidation waits for pending batches. This is asked with every message,
// and whether it is needed at all takes long to find out.
func (s *Session) waits(now time.Time) bool {
	return now.Before(s.consolidateBy) && s.past.Standing().Pending
}

// mayConsolidate reports whether consolidation need not wait for pending batches any more.
func (s *Session) mayConsolidate(now time.Time) bool {
	if s.past.Standing().Pending {
		if s.consolidateBy.IsZero() {
			s.consolidateBy = now.Add(s.Rules.ConsolidateWait)
		}
		if now.Before(s.consolidateBy) {
			return false
		}
		s.Log.Debug("consolidating while historic sync is pending; it goes on afterwards")
	}
	s.consolidateBy = time.Time{}
	return true
}

// consolidate leaves the many live filters of layers 2 and 3, and returns the few full ones that
// are to replace them. What is pending goes on when they are open, from where each walk stands.
func (s *Session) consolidate(ctx context.Context) (fewer []nostr.Filter, err error) {
	if err := s.past.Interrupt(ctx); err != nil {
		return nil, err
	}
	s.live.Retire(false)
	return history.FiltersOf(history.Union(s.past.Confirmed(), s.past.Asked())), nil
}
