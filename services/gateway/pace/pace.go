// Package pace limits how much each client may do in a time: events a minute, bytes an hour.
package pace

import (
	"container/list"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits is an allowance for each client, which fills up again with time. It is safe for concurrent
// use.
//
// It remembers a bounded number of clients. Those who have their whole allowance again are
// forgotten; if there are still too many, the one who did something longest ago is, and has a whole
// allowance when it comes again.
type Limits struct {
	most    int // allowance of a client
	per     time.Duration
	clients int // most that are remembered

	mu     sync.Mutex
	recent list.List // of *account, who did something last comes first
	by     map[string]*list.Element
}

type account struct {
	client string
	bucket *rate.Limiter
	used   time.Time
}

// New makes limits by which each client may do so much in a time, and remembers so many clients.
func New(most int, per time.Duration, clients int) *Limits {
	return &Limits{most: most, per: per, clients: clients, by: map[string]*list.Element{}}
}

// Allow takes one from the client's allowance. If there is none left, it returns false and how long
// it takes until there is.
func (l *Limits) Allow(client string) (ok bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	a := l.account(client, now)
	if a.bucket.AllowN(now, 1) {
		return true, 0
	}
	return false, l.until(a, 1, now)
}

// Left reports whether the client has any of its allowance left, and if not, how long it takes
// until a tenth of it is there again: sooner it is of no use to come again.
func (l *Limits) Left(client string) (ok bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	a := l.account(client, now)
	if a.bucket.TokensAt(now) >= 1 {
		return true, 0
	}
	return false, l.until(a, float64(l.most)/10, now)
}

// Spend takes n from the client's allowance, or what is left of it if that is less; then it returns
// false.
func (l *Limits) Spend(client string, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	a := l.account(client, now)
	if a.bucket.AllowN(now, n) {
		return true
	}
	a.bucket.AllowN(now, int(a.bucket.TokensAt(now)))
	return false
}

func (l *Limits) until(a *account, tokens float64, now time.Time) time.Duration {
	missing := max(tokens-a.bucket.TokensAt(now), 0)
	return time.Duration(math.Ceil(missing / float64(l.most) * float64(l.per)))
}

// account finds or opens the account of a client; the caller holds the lock.
func (l *Limits) account(client string, now time.Time) *account {
	if e := l.by[client]; e != nil {
		l.recent.MoveToFront(e)
		a := e.Value.(*account)
		a.used = now
		return a
	}
	for oldest := l.recent.Back(); oldest != nil; oldest = l.recent.Back() {
		a := oldest.Value.(*account)
		if len(l.by) < l.clients && now.Sub(a.used) < l.per {
			break
		}
		l.recent.Remove(oldest)
		delete(l.by, a.client)
	}
	a := &account{client: client, used: now,
		bucket: rate.NewLimiter(rate.Limit(float64(l.most)/l.per.Seconds()), l.most)}
	l.by[client] = l.recent.PushFront(a)
	return a
}

// Clients is how many clients are remembered.
func (l *Limits) Clients() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.by)
}
