package live

import (
	"time"

	"tendril.dev/services/relayconn/moment"
)

// Standing returns how many subscriptions the relay has answered and not closed.
func (s *Set) Standing() int { return s.count[open] + s.count[retiring] }

// Count returns how many subscriptions are open at the relay, as far as is known.
func (s *Set) Count() int {
	n := s.count[open] + s.count[opening] + s.count[retiring]
	if s.count[opening] > 0 {
		for _, sub := range s.subs {
			if sub.state == opening && !sub.missing.IsZero() {
				n--
			}
		}
	}
	return n
}

// Len counts the subscriptions that are open or are to be, and those that are replaced.
func (s *Set) Len() int { return len(s.subs) }

// Filters counts the filters of layers 2 and 3 that are live or are to be.
func (s *Set) Filters() (n int) {
	for _, sub := range s.subs {
		if sub.current() && !sub.first {
			n += len(sub.filters)
		}
	}
	return n
}

// Missing is since when what comes live is not all there; zero: it is all there.
func (s *Set) Missing() time.Time {
	missing := s.gaveUp
	if s.count[opening]+s.count[closed] == 0 {
		return missing
	}
	for _, sub := range s.subs {
		if sub.current() {
			missing = moment.Earlier(missing, sub.missing)
		}
	}
	return missing
}

// GaveUp reports whether something is not live and is not asked for again before all is replaced.
func (s *Set) GaveUp() bool { return !s.gaveUp.IsZero() }
