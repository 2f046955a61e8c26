package limit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// mostParties is how many parties a Rates remembers. Beyond it those are forgotten that were active
// longest ago.
const mostParties = 1 << 16

// Rates is an allowance for each party that fills up again with time. It is safe for concurrent
// use.
type Rates struct {
	most int
	per  time.Duration

	mu sync.Mutex
	// Parties that were active since the last change of the two, and before it. In the time per an
	// allowance that is not used is whole again and need not be remembered.
	recent, before map[string]*rate.Limiter
	changed        time.Time
}

// NewRates lets each party do so much in a time.
func NewRates(most int, per time.Duration) *Rates {
	return &Rates{most: most, per: per, recent: map[string]*rate.Limiter{}}
}

// Allow takes one from the party's allowance. When none is left, it reports after which time one
// is.
func (l *Rates) Allow(party string) (ok bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	taken := l.of(party, now).ReserveN(now, 1)
	if wait = taken.DelayFrom(now); wait > 0 {
		taken.CancelAt(now)
	}
	return wait == 0, wait
}

// of finds or adds the allowance of a party; the caller holds the lock.
func (l *Rates) of(party string, now time.Time) *rate.Limiter {
	if now.Sub(l.changed) > l.per || len(l.recent) >= mostParties/2 {
		l.recent, l.before, l.changed = map[string]*rate.Limiter{}, l.recent, now
	}
	a := l.recent[party]
	if a == nil {
		if a = l.before[party]; a == nil {
			a = rate.NewLimiter(rate.Limit(float64(l.most)/l.per.Seconds()), l.most)
		}
		l.recent[party] = a
	}
	return a
}
