package live

import (
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/layers"
	"tendril.dev/services/relayconn/moment"
)

// lookEvery is how often the past is asked for instead of what the relay has no room for live.
const lookEvery = 10 * time.Minute

// room reports whether the relay takes one more subscription. What is replaced does not count,
// because it is closed right after, and layer 1 is opened whatever the relay says.
func (s *Set) room(first bool) bool {
	return first || s.o.Allowance.Live(s.count[open]+s.count[opening])
}

// wait keeps a subscription for which the relay has no room. It may have some later, and the past
// is asked for meanwhile.
func (s *Set) wait(sub *Subscription, now time.Time) {
	s.o.Warn("no room", "the relay takes too few subscriptions for all that should come live; the rest is asked for from time to time", "every", lookEvery)
	s.move(sub, closed)
	sub.missing, sub.looked = moment.Earlier(sub.missing, now), now
	sub.reopenAt = now.Add(s.o.Allowance.Cooldown())
}

// look asks for the past instead of what the relay has no room for.
func (s *Set) look(sub *Subscription, now time.Time) {
	sub.reopenAt = now.Add(s.o.Allowance.Cooldown())
	if now.Before(sub.looked.Add(lookEvery)) {
		return
	}
	s.makeUp(sub)
	sub.missing, sub.looked = now, now
}

// fits is how many more filters a subscription takes: whole groups that belong together, unless not
// even one of them fits.
func (s *Set) fits(have, more []nostr.Filter) (n int) {
	most, left := s.o.Allowance.Filters(), s.o.Allowance.Bytes()
	if s.perReq > 0 {
		most = min(most, s.perReq)
	}
	most -= len(have)
	for _, f := range have {
		left -= layers.Bytes(f)
	}
	for _, group := range layers.Groups(more) {
		before := n
		for _, f := range group {
			if left -= layers.Bytes(f); left < 0 || n >= most {
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
