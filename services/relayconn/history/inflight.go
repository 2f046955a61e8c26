package history

import (
	"hash/maphash"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/moment"
)

// Inflight knows which events of one connection were offered to ingest and have no verdict yet, who
// waits for them, and which live ones never got one. It is safe for concurrent use: verdicts come from a goroutine of their own.
type Inflight struct {
	// Changed has something to receive when an account has got its last verdict since the last
	// look, or when there will be none for some event.
	Changed chan struct{}

	mu       sync.Mutex
	flights  map[key]flight
	most     int // that there were in this map, which keeps the room for so many
	unjudged map[*nostr.Filter]Unjudged
}

// key is what is offered once: the same event with another signature is another thing, because one
// of the two is wrong. The signature is hashed, so that a key does not keep the event alive of
// whose text it is a piece; nobody outside knows the seed.
type key struct {
	id  string
	sig uint64
}

var seed = maphash.MakeSeed()

func keyOf(ev *nostr.Event) key { return key{ev.ID, maphash.String(seed, ev.Sig)} }

// roomKept is for how many events room is kept while none is on its way: a worker has thousands of
// connections on which hardly anything happens once the past has come.
const roomKept = 64

// flight is an event without a verdict.
type flight struct {
	account *Account   // the first that waits; nil: it came live
	more    []*Account // and the others
	live    Unjudged   // if it came live
}

// Account is what one batch waits for; the lock of Inflight guards it. The zero value waits for
// nothing.
type Account struct {
	waiting int  // verdicts that have not come
	lost    bool // one of them never will
}

// arrived notes a verdict, and reports whether it was the last one that the account waits for.
func (a *Account) arrived(err error) (last bool) {
	a.waiting--
	a.lost = a.lost || err != nil
	return a.waiting == 0
}

// Unjudged is what events came live for that never got a verdict, and when the first of them came.
type Unjudged struct {
	Filters []nostr.Filter // of the subscription on which they came
	Since   time.Time
}

// NewInflight returns one of a connection on which nothing has come yet.
func NewInflight() *Inflight {
	return &Inflight{Changed: make(chan struct{}, 1), flights: map[key]flight{}, unjudged: map[*nostr.Filter]Unjudged{}}
}

// Depart notes an event of the past that came; first is true if it is not on its way already.
func (l *Inflight) Depart(ev *nostr.Event, a *Account) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := keyOf(ev)
	f, flying := l.flights[k]
	if f.account == nil {
		f.account = a
	} else {
		f.more = append(f.more, a)
	}
	a.waiting++
	l.flights[k] = f
	l.most = max(l.most, len(l.flights))
	return !flying
}

// DepartLive notes an event that came live on a subscription of those filters, at least one; first
// is true if it is not on its way already.
func (l *Inflight) DepartLive(ev *nostr.Event, filters []nostr.Filter, now time.Time) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := keyOf(ev)
	f, flying := l.flights[k]
	if f.live.Since.IsZero() {
		f.live = Unjudged{filters, now}
		l.flights[k] = f
		l.most = max(l.most, len(l.flights))
	}
	return !flying
}

// Arrive notes that the verdict on an event came, or with an error that there will be none.
func (l *Inflight) Arrive(ev *nostr.Event, err error) {
	l.mu.Lock()
	k := keyOf(ev)
	f := l.flights[k]
	changed := err != nil
	if f.account != nil && f.account.arrived(err) {
		changed = true
	}
	for _, a := range f.more {
		if a.arrived(err) {
			changed = true
		}
	}
	if err != nil && !f.live.Since.IsZero() {
		first := &f.live.Filters[0]
		f.live.Since = moment.Earlier(f.live.Since, l.unjudged[first].Since)
		l.unjudged[first] = f.live
	}
	delete(l.flights, k)
	if len(l.flights) == 0 && l.most > roomKept {
		l.flights, l.most = map[key]flight{}, 0
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
		since = moment.Earlier(since, u.Since)
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
