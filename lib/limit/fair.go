// Package limit keeps one party from stopping another. A party is a client address, an author or a
// relay.
//
// Its first part is admission. [Fair] divides an amount that is held for a while, like processes,
// connections or bytes of memory. [Rates] bounds how often something is done. It does not know what
// it divides, and refuses no request by itself: its callers do.
package limit

import (
	"container/list"
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

var (
	// ErrFull is the error of a request while all places are taken, or too many wait. The party holds
	// what it held before; it may try again when another has released some.
	ErrFull = errors.New("all places are taken")
	// ErrShare is the error of a request beyond what one party may hold. It holds what it held before;
	// only its own release makes room.
	ErrShare = errors.New("the party holds its share already")
)

const (
	// mostWaiting and mostWaitingOfParty bound the waiters of one Fair.
	mostWaiting        = 1 << 16
	mostWaitingOfParty = 1 << 12
	// quantum is how long a Turn lasts while others wait.
	quantum = 5 * time.Millisecond
)

// Fair divides a number of places among parties. A party holds at most its share. When all places
// are taken, parties wait: the party that holds least is next, and of those the one that has waited
// longest for its next place. So one party with a thousand requests delays another by one request.
// It is safe for concurrent use, and remembers only parties that hold places or wait.
type Fair struct {
	places, perParty int64

	mu      sync.Mutex
	taken   int64
	waiting int // requests
	parties map[string]*party
	queue   list.List // of *party: those that wait, longest without a new place first
}

type party struct {
	name    string
	held    int64
	waiting list.List     // of *request, oldest first
	at      *list.Element // in the queue; nil: none of its requests wait
}

type request struct {
	n       int64
	granted chan struct{} // closed when the places are its own
}

// NewFair divides so many places, of which a party holds at most perParty.
func NewFair(places, perParty int64) *Fair {
	return &Fair{places: places, perParty: min(places, perParty), parties: map[string]*party{}}
}

// Acquire waits for a place. The caller must call release, once or more often. The error is that of
// ctx, or [ErrFull] when too many wait already.
func (f *Fair) Acquire(ctx context.Context, name string) (release func(), err error) {
	return f.AcquireN(ctx, name, 1)
}

// AcquireN is Acquire for n places at once. The error is [ErrShare] if that is more than a share.
func (f *Fair) AcquireN(ctx context.Context, name string, n int64) (release func(), err error) {
	if err := f.acquire(ctx, name, n); err != nil {
		return nil, err
	}
	return f.releaser(name, n), nil
}

// Try is AcquireN without waiting. The error is [ErrShare] or [ErrFull].
func (f *Fair) Try(name string, n int64) (release func(), err error) { return f.try(name, n, false) }

// TryOver is Try for a caller that has just made another party give up as many places: it succeeds
// before those are released. The error is [ErrShare].
func (f *Fair) TryOver(name string, n int64) (release func(), err error) { return f.try(name, n, true) }

func (f *Fair) try(name string, n int64, over bool) (release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case n == 0:
	case f.heldBy(name)+n > f.perParty:
		return nil, ErrShare
	case !over && (f.taken+n > f.places || f.queue.Len() > 0):
		return nil, ErrFull
	default:
		f.take(f.party(name), n)
	}
	return f.releaser(name, n), nil
}

// Heaviest returns the party that holds most, and how much more that is than this party holds.
func (f *Fair) Heaviest(than string) (name string, more int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.parties {
		if p.held > more {
			name, more = p.name, p.held
		}
	}
	return name, more - f.heldBy(than)
}

// Counts returns how many places are taken, by how many parties, and how many of these hold more
// than threshold.
func (f *Fair) Counts(threshold int64) (taken int64, parties, over int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.parties {
		if p.held > 0 {
			parties++
		}
		if p.held > threshold {
			over++
		}
	}
	return f.taken, parties, over
}

func (f *Fair) acquire(ctx context.Context, name string, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch {
	case n == 0:
		return nil
	case n > f.perParty:
		return ErrShare
	}
	f.mu.Lock()
	p := f.party(name)
	if f.queue.Len() == 0 && f.taken+n <= f.places && p.held+n <= f.perParty {
		f.take(p, n)
		f.mu.Unlock()
		return nil
	}
	if f.waiting >= mostWaiting || p.waiting.Len() >= mostWaitingOfParty {
		f.forget(p)
		f.mu.Unlock()
		return ErrFull
	}
	r := &request{n: n, granted: make(chan struct{})}
	place := p.waiting.PushBack(r)
	f.waiting++
	if p.at == nil {
		p.at = f.queue.PushBack(p)
	}
	f.serve()
	f.mu.Unlock()

	select {
	case <-r.granted:
		return nil
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-r.granted: // at the same moment
		f.give(p, n)
	default:
		f.leave(p, place)
		f.forget(p)
		f.serve() // a smaller request may have waited behind this one
	}
	return ctx.Err()
}

// serve gives free places to those who wait; the caller holds the lock. A large request at the head
// keeps smaller ones waiting: else it would wait forever.
func (f *Fair) serve() {
	for {
		p := f.next()
		if p == nil {
			return
		}
		place := p.waiting.Front()
		r := place.Value.(*request)
		if f.taken+r.n > f.places {
			return
		}
		f.queue.MoveToBack(p.at)
		f.leave(p, place)
		f.take(p, r.n)
		close(r.granted)
	}
}

// next returns the party that is served next, nil if none that waits may hold more.
func (f *Fair) next() (best *party) {
	for e := f.queue.Front(); e != nil; e = e.Next() {
		p := e.Value.(*party)
		if p.held == 0 {
			return p
		}
		fits := p.held+p.waiting.Front().Value.(*request).n <= f.perParty
		if fits && (best == nil || p.held < best.held) {
			best = p
		}
	}
	return best
}

// leave removes a request of a party from those that wait.
func (f *Fair) leave(p *party, place *list.Element) {
	p.waiting.Remove(place)
	f.waiting--
	if p.waiting.Len() == 0 {
		f.queue.Remove(p.at)
		p.at = nil
	}
}

// party finds or adds a party; forget or take follows.
func (f *Fair) party(name string) *party {
	p := f.parties[name]
	if p == nil {
		p = &party{name: name}
		f.parties[name] = p
	}
	return p
}

// forget removes a party that neither holds anything nor waits.
func (f *Fair) forget(p *party) {
	if p.held == 0 && p.at == nil {
		delete(f.parties, p.name)
	}
}

func (f *Fair) heldBy(name string) int64 {
	if p := f.parties[name]; p != nil {
		return p.held
	}
	return 0
}

func (f *Fair) take(p *party, n int64) {
	f.taken += n
	p.held += n
}

// give returns n places of a party to those who wait.
func (f *Fair) give(p *party, n int64) {
	f.taken -= n
	p.held -= n
	f.forget(p)
	f.serve()
}

func (f *Fair) release(name string, n int64) {
	if n == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.give(f.parties[name], n)
}

func (f *Fair) releaser(name string, n int64) func() {
	return sync.OnceFunc(func() { f.release(name, n) })
}

// Turn is one place, for work that lasts long and lets others go first now and then. Only one
// goroutine may use it at a time.
type Turn struct {
	fair  *Fair
	party string
	since time.Time
	held  bool
}

// Turn waits for a place. The caller must call [Turn.Pause] in the end.
func (f *Fair) Turn(ctx context.Context, party string) (*Turn, error) {
	t := &Turn{fair: f, party: party}
	return t, t.Resume(ctx)
}

// Pause gives the place up while the work waits for something else, or has ended.
func (t *Turn) Pause() {
	if t.held {
		t.held = false
		t.fair.release(t.party, 1)
	}
}

// Resume takes a place again after Pause.
func (t *Turn) Resume(ctx context.Context) error {
	if err := t.fair.acquire(ctx, t.party, 1); err != nil {
		return err
	}
	t.held, t.since = true, time.Now()
	return nil
}

// Yield lets those who wait go first once the turn has lasted for 5 ms. When the error, which is
// that of ctx, comes after such a wait, the place is given up.
func (t *Turn) Yield(ctx context.Context) error {
	if err := ctx.Err(); err != nil || time.Since(t.since) < quantum {
		return err
	}
	t.Pause()
	return t.Resume(ctx)
}

// Address returns the party that a client address belongs to: an IPv4 address, or the /64 of an
// IPv6 address, which one customer has.
func Address(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	switch {
	case addr.Is4():
		return addr.String()
	case addr.Is6():
		if network, err := addr.Prefix(64); err == nil {
			return network.String()
		}
	}
	return "unknown"
}
