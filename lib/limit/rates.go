package limit

import (
	"container/list"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// mostParties is how many parties a Rates remembers. Beyond it the party is forgotten that was
// active longest ago.
const mostParties = 1 << 16

// Rates is an allowance for each party that fills up again with time. It is safe for concurrent
// use.
type Rates struct {
	most int
	per  time.Duration

	mu      sync.Mutex
	recent  list.List // of *allowance, latest first
	byParty map[string]*list.Element
}

type allowance struct {
	party  string
	bucket *rate.Limiter
	used   time.Time
}

// NewRates lets each party do so much in a time.
func NewRates(most int, per time.Duration) *Rates {
	return &Rates{most: most, per: per, byParty: map[string]*list.Element{}}
}

// Allow takes one from the party's allowance. When none is left, it reports after which time one
// is.
func (l *Rates) Allow(party string) (ok bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	a := l.of(party, now)
	if a.bucket.AllowN(now, 1) {
		return true, 0
	}
	return false, l.until(a, 1, now)
}

// Left reports whether the party has any of its allowance left, and if not, after which time it has
// a tenth of it again: it need not come back before.
func (l *Rates) Left(party string) (ok bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	a := l.of(party, now)
	if a.bucket.TokensAt(now) >= 1 {
		return true, 0
	}
	return false, l.until(a, float64(l.most)/10, now)
}

// Spend takes n from the party's allowance. When less is left, it takes that and returns false.
func (l *Rates) Spend(party string, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	a := l.of(party, now)
	if a.bucket.AllowN(now, n) {
		return true
	}
	a.bucket.AllowN(now, int(a.bucket.TokensAt(now)))
	return false
}

func (l *Rates) until(a *allowance, tokens float64, now time.Time) time.Duration {
	missing := max(tokens-a.bucket.TokensAt(now), 0)
	return time.Duration(math.Ceil(missing / float64(l.most) * float64(l.per)))
}

// of finds or adds the allowance of a party; the caller holds the lock.
func (l *Rates) of(party string, now time.Time) *allowance {
	if e := l.byParty[party]; e != nil {
		l.recent.MoveToFront(e)
		a := e.Value.(*allowance)
		a.used = now
		return a
	}
	for e := l.recent.Back(); e != nil; e = l.recent.Back() {
		a := e.Value.(*allowance)
		if len(l.byParty) < mostParties && now.Sub(a.used) < l.per {
			break // after the time per, an allowance is whole again and need not be remembered
		}
		l.recent.Remove(e)
		delete(l.byParty, a.party)
	}
	a := &allowance{party: party, used: now,
		bucket: rate.NewLimiter(rate.Limit(float64(l.most)/l.per.Seconds()), l.most)}
	l.byParty[party] = l.recent.PushFront(a)
	return a
}
