package history

import (
	"sync"
	"time"

	"tendril.dev/lib/nostr"
)

// Inflight knows who waits for the verdicts on what came on one connection, and which live events
// never got one. It is safe for concurrent use: verdicts come from goroutines of their own.
type Inflight struct {
	// Changed has something to receive when an account has got its last verdict since the last
	// look, or when there will be none for some event.
	Changed chan struct{}

	mu       sync.Mutex
	unjudged map[*nostr.Filter]Unjudged
}

// Account is what one batch waits for; the lock of Inflight guards it. The zero value waits for
// nothing.
type Account struct {
	waiting int  // verdicts that have not come
	lost    bool // one of them never will
}

// Unjudged is what events came live for that never got a verdict, and when the first of them came.
type Unjudged struct {
	Filters []nostr.Filter // of the subscription on which they came
	Since   time.Time
}

// Owed says who waits for the verdict on one event.
type Owed struct {
	account *Account
	live    Unjudged // if it came live
}

// NewInflight returns one of a connection on which nothing has come yet.
func NewInflight() *Inflight {
	return &Inflight{Changed: make(chan struct{}, 1), unjudged: map[*nostr.Filter]Unjudged{}}
}

// Past notes that an account waits for one more event.
func (l *Inflight) Past(a *Account) Owed {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.waiting++
	return Owed{account: a}
}

// Live says that an event came live on a subscription of those filters, at least one.
func (l *Inflight) Live(filters []nostr.Filter, now time.Time) Owed {
	return Owed{live: Unjudged{filters, now}}
}

// Arrive notes that the verdict on an event came, or with an error that there will be none.
func (l *Inflight) Arrive(o Owed, err error) {
	l.mu.Lock()
	changed := err != nil
	if a := o.account; a != nil {
		a.waiting--
		a.lost = a.lost || err != nil
		changed = changed || a.waiting == 0
	} else if err != nil {
		first := &o.live.Filters[0]
		o.live.Since = Earlier(o.live.Since, l.unjudged[first].Since)
		l.unjudged[first] = o.live
	}
	l.mu.Unlock()
	if changed {
		l.Wake()
	}
}

// Wake sends on Changed, unless something waits there already.
func (l *Inflight) Wake() {
	select {
	case l.Changed <- struct{}{}:
	default:
	}
}

// Settled reports whether everything has its verdict, and whether one was lost since that was
// reported last.
func (l *Inflight) Settled(a *Account) (settled, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.waiting > 0 {
		return false, false
	}
	lost, a.lost = a.lost, false
	return true, lost
}

// Missing is since when events came live that never got a verdict and were not taken; zero: none
// were.
func (l *Inflight) Missing() (since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.unjudged {
		since = Earlier(since, u.Since)
	}
	return since
}

// TakeUnjudged returns what must be asked for again, once.
func (l *Inflight) TakeUnjudged() (all []Unjudged) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.unjudged {
		all = append(all, u)
	}
	clear(l.unjudged)
	return all
}
