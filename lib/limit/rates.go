package limit

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// mostParties is how many parties a Rates remembers. Beyond it those are forgotten that were active
// longest ago.
const mostParties = 1 << 16

// Rates is an allowance for each party that fills up again with time. It is safe for concurrent
// use.
type Rates struct {
	most    int
	per     time.Duration
	parties *lru.Cache[string, *rate.Limiter]
}

// NewRates lets each party do so much in a time.
func NewRates(most int, per time.Duration) *Rates {
	parties, _ := lru.New[string, *rate.Limiter](mostParties) // it fails for a size below 1 only
	return &Rates{most, per, parties}
}

// Allow takes one from the party's allowance. When none is left, it reports after which time one
// is.
func (l *Rates) Allow(party string) (ok bool, wait time.Duration) {
	own, known := l.parties.Get(party)
	if !known {
		own = rate.NewLimiter(rate.Limit(float64(l.most)/l.per.Seconds()), l.most)
		if other, came, _ := l.parties.PeekOrAdd(party, own); came {
			own = other
		}
	}
	now := time.Now()
	taken := own.ReserveN(now, 1)
	if wait = taken.DelayFrom(now); wait > 0 {
		taken.CancelAt(now)
	}
	return wait == 0, wait
}
