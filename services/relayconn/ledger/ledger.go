// Package ledger knows which events of one connection were offered to ingest and have no verdict
// yet, and who waits for them.
package ledger

import "sync"

// Ledger is safe for concurrent use: verdicts come from a goroutine of their own.
type Ledger struct {
	// Changed has something to receive when a verdict has come since the last look.
	Changed chan struct{}

	mu      sync.Mutex
	flights map[string][]*Account // by event id; nobody waits for a live event
}

// Account is what one batch waits for; the ledger's lock guards it. The zero value waits for
// nothing.
type Account struct {
	waiting int  // verdicts that have not come
	lost    bool // one of them never will
}

// New returns a ledger of a connection on which nothing has come yet.
func New() *Ledger {
	return &Ledger{Changed: make(chan struct{}, 1), flights: map[string][]*Account{}}
}

// Depart notes an event that came; first is true if it is not on its way already. a may be nil.
func (l *Ledger) Depart(id string, a *Account) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	accounts, flying := l.flights[id]
	if a != nil {
		accounts = append(accounts, a)
		a.waiting++
	}
	l.flights[id] = accounts
	return !flying
}

// Arrive notes that the verdict on an event came, or with an error that there will be none.
func (l *Ledger) Arrive(id string, err error) {
	l.mu.Lock()
	for _, a := range l.flights[id] {
		a.waiting--
		a.lost = a.lost || err != nil
	}
	delete(l.flights, id)
	l.mu.Unlock()
	select {
	case l.Changed <- struct{}{}:
	default:
	}
}

// Settled reports whether everything has its verdict, and whether one was lost.
func (l *Ledger) Settled(a *Account) (settled, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return a.waiting == 0, a.lost
}
