package session

import (
	"context"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
)

// lookEvery is how often the past is asked for instead of what the relay has no room for live.
const lookEvery = 10 * time.Minute

// room reports whether the relay takes one more subscription. What is replaced does not count,
// because it is closed right after, and layer 1 is opened whatever the relay says.
func (s *liveSet) room(first bool) bool {
	return first || s.o.Limits.Live(s.count[open]+s.count[opening])
}

// wait keeps a subscription for which the relay has no room. It may have some later, and the past
// is asked for meanwhile.
func (s *liveSet) wait(sub *subscription, now time.Time) {
	s.o.Warn("no room", "the relay takes too few subscriptions for all that should come live; the rest is asked for from time to time", "every", lookEvery)
	s.move(sub, closed)
	sub.missing, sub.looked = history.Earlier(sub.missing, now), now
	sub.reopenAt = now.Add(s.o.Limits.Cooldown())
}

// look asks for the past instead of what the relay has no room for, once that has come that was
// asked for before. Where the relay has not said how much room there is, it reports now and then
// that this must be asked for live once more, to see.
func (s *liveSet) look(sub *subscription, now time.Time) (probe bool) {
	sub.reopenAt = now.Add(s.o.Limits.Cooldown())
	if now.Before(sub.looked.Add(lookEvery)) || s.o.MakingUp(sub.id) {
		return false
	}
	s.makeUp(sub)
	sub.missing, sub.looked = now, now
	if s.o.Limits.Tells() || now.Before(s.probed.Add(lookEvery)) {
		return false
	}
	s.probed = now
	return true
}

// MakeRoom closes what was opened last, but for layer 1, until there is room for the past, and
// reports whether it has closed anything.
func (s *liveSet) MakeRoom(ctx context.Context, now time.Time) (made bool, err error) {
	for s.count[open]+s.count[opening] > 1 && !s.o.Limits.Live(s.count[open]+s.count[opening]-1) {
		var last *subscription
		for _, sub := range s.subs {
			if sub.state <= open && !sub.first && (last == nil || sub.turn > last.turn) {
				last = sub
			}
		}
		if last == nil {
			break
		}
		if made = true; last == s.newest {
			s.newest = nil
		}
		s.wait(last, now)
		if err := s.o.Asker.Unsubscribe(ctx, last.id); err != nil {
			return made, err
		}
	}
	return made, nil
}

// Pieces is how many subscriptions those filters would be.
func (s *liveSet) Pieces(filters []nostr.Filter) (n int) {
	for ; len(filters) > 0; n++ {
		filters = filters[max(1, s.fits(nil, filters)):]
	}
	return n
}

// fits is how many more filters a subscription takes: whole groups that belong together, unless not
// even one of them fits.
func (s *liveSet) fits(have, more []nostr.Filter) (n int) {
	most, left := s.o.Limits.Filters(), s.o.Limits.Bytes()
	if s.perReq > 0 {
		most = min(most, s.perReq)
	}
	most -= len(have)
	for _, f := range have {
		left -= history.Bytes(f)
	}
	for _, group := range history.Groups(more) {
		before := n
		for _, f := range group {
			if left -= history.Bytes(f); left < 0 || n >= most {
				if before == 0 && len(have) == 0 {
					return n
				}
				return before
			}
			n++
		}
	}
	return n
}
