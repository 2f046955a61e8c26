package session

import "sync"

// ledger knows which events were offered and have no verdict yet, and which batches wait for them. It is shared with the goroutine that brings
// verdicts.
type ledger struct {
	changed chan struct{} // of capacity 1: some batch may be complete

	mu      sync.Mutex
	flights map[string][]*account // by event id; nobody waits for a live event
}

// account is what one batch waits for; the ledger's lock guards it.
type account struct {
	waiting int  // verdicts that have not come
	lost    bool // one of them never will
}

func newLedger() *ledger {
	return &ledger{changed: make(chan struct{}, 1), flights: map[string][]*account{}}
}

// depart notes an event that came; first is true if it is not on its way already. a may be nil.
func (l *ledger) depart(id string, a *account) (first bool) {
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

// arrive notes that the verdict on an event came, or with an error that there will be none.
func (l *ledger) arrive(id string, err error) {
	l.mu.Lock()
	for _, a := range l.flights[id] {
		a.waiting--
		a.lost = a.lost || err != nil
	}
	delete(l.flights, id)
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// settled reports whether everything has its verdict, and whether one was lost.
func (l *ledger) settled(a *account) (settled, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return a.waiting == 0, a.lost
}
