// Package share divides what there is only so much of, like connections or memory, among clients:
// none of them holds more than a share.
package share

import (
	"context"
	"errors"
	"sync"
)

// The reasons for which nothing is given.
var (
	ErrFull    = errors.New("all of it is taken")
	ErrTooMuch = errors.New("the client holds its share already")
)

// Pool is an amount that clients take parts of and give back. It is safe for concurrent use.
// What it remembers is bounded by what is taken.
type Pool struct {
	size, each int64

	mu      sync.Mutex
	taken   int64
	by      map[string]int64
	changed chan struct{} // closed when something is given back; nil: nobody waits
}

// NewPool makes a pool of that size, of which one client may hold at most each.
func NewPool(size, each int64) *Pool {
	return &Pool{size: size, each: each, by: map[string]int64{}}
}

// Take gives n to a client, who gives it back by calling back, which may happen several times. The
// error is [ErrFull] or [ErrTooMuch].
func (p *Pool) Take(client string, n int64) (back func(), err error) {
	part, err := p.Part(client, n)
	if err != nil {
		return nil, err
	}
	return part.Back, nil
}

// Part is what a client has taken of a pool.
type Part struct {
	pool   *Pool
	client string
	n      int64
	back   bool // it was given back, or passed on
}

// Part is Take for what may be passed on to another client.
func (p *Pool) Part(client string, n int64) (*Part, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.by[client]+n > p.each:
		return nil, ErrTooMuch
	case p.taken+n > p.size:
		return nil, ErrFull
	}
	p.taken += n
	p.by[client] += n
	return &Part{pool: p, client: client, n: n}, nil
}

// Back gives it back. It may be called several times.
func (part *Part) Back() {
	part.pool.mu.Lock()
	defer part.pool.mu.Unlock()
	if !part.back {
		part.back = true
		part.pool.give(part.client, part.n)
	}
}

// PassTo passes it on to another client, before anybody else can take it. The error is [ErrFull]
// where it is not there any more, or [ErrTooMuch].
func (part *Part) PassTo(client string) (*Part, error) {
	p := part.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case part.back:
		return nil, ErrFull
	case p.by[client]+part.n > p.each:
		return nil, ErrTooMuch
	}
	part.back = true
	p.give(part.client, part.n)
	p.taken += part.n
	p.by[client] += part.n
	return &Part{pool: p, client: client, n: part.n}, nil
}

// give takes n back; p.mu is held.
func (p *Pool) give(client string, n int64) {
	p.taken -= n
	if p.by[client] -= n; p.by[client] == 0 {
		delete(p.by, client)
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Wait is Take for those who can wait until there is room. The error is that of ctx, or
// [ErrTooMuch] if n is more than a client may ever hold.
func (p *Pool) Wait(ctx context.Context, client string, n int64) (back func(), err error) {
	if n > min(p.each, p.size) {
		return nil, ErrTooMuch
	}
	for {
		changed := p.watch()
		if back, err := p.Take(client, n); err == nil {
			return back, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// watch returns a channel that is closed when something is given back.
func (p *Pool) watch() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// Heaviest returns who holds most, and how much more than client that is.
func (p *Pool) Heaviest(client string) (heaviest string, more int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for who, n := range p.by {
		if n > more {
			heaviest, more = who, n
		}
	}
	return heaviest, more - p.by[client]
}

// Counts returns how much is taken, by how many clients, and how many of them hold more than
// threshold.
func (p *Pool) Counts(threshold int64) (taken int64, clients, over int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.by {
		if n > threshold {
			over++
		}
	}
	return p.taken, len(p.by), over
}
