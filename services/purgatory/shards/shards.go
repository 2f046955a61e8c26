// Package shards knows which shards of identifiers this worker holds, and lets one writer at a time
// at an identifier. A shard is handed on only when nobody writes in it any more, so that each has
// one writer in the whole deployment (docs/architecture.md).
package shards

import (
	"context"
	"errors"
	"sync"

	"tendril.dev/proto"
)

// ErrElsewhere: the shard of the identifier is not this worker's.
var ErrElsewhere = errors.New("another worker holds this repository")

// Held is the set of shards that this worker holds. It is safe for concurrent use.
type Held struct {
	mu     sync.Mutex
	shards map[int]*shard
}

type shard struct {
	closing bool // it takes no more writers
	writers sync.WaitGroup
	locks   map[string]*lock // by identifier
}

// lock is taken by sending on its channel. It goes when nobody has it or waits for it.
type lock struct {
	taken chan struct{}
	users int
}

// New makes a worker that holds nothing.
func New() *Held { return &Held{shards: map[int]*shard{}} }

// Open begins to hold a shard.
func (h *Held) Open(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shards[n] = &shard{locks: map[string]*lock{}}
}

// Close lets go of a shard, and returns when its writers have finished. It takes no new ones, but
// is held until then: readers do not wait for them.
func (h *Held) Close(n int) {
	h.mu.Lock()
	s := h.shards[n]
	if s != nil {
		s.closing = true
	}
	h.mu.Unlock()
	if s == nil {
		return
	}
	s.writers.Wait()
	h.mu.Lock()
	delete(h.shards, n)
	h.mu.Unlock()
}

// Holds reports whether the identifier's shard is held, be it for reading only.
func (h *Held) Holds(identifier string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shards[proto.ShardOf(identifier)] != nil
}

// HoldsShard reports whether a shard is held.
func (h *Held) HoldsShard(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shards[n] != nil
}

// Count is how many shards are held.
func (h *Held) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.shards)
}

// Write waits until the caller is the only writer of the identifier. unlock must be called when it
// is done. ErrElsewhere: it may not write.
func (h *Held) Write(ctx context.Context, identifier string) (unlock func(), err error) {
	h.mu.Lock()
	s := h.shards[proto.ShardOf(identifier)]
	if s == nil || s.closing {
		h.mu.Unlock()
		return nil, ErrElsewhere
	}
	s.writers.Add(1)
	l := s.locks[identifier]
	if l == nil {
		l = &lock{taken: make(chan struct{}, 1)}
		s.locks[identifier] = l
	}
	l.users++
	h.mu.Unlock()
	leave := func() {
		h.mu.Lock()
		if l.users--; l.users == 0 {
			delete(s.locks, identifier)
		}
		h.mu.Unlock()
		s.writers.Done()
	}
	select {
	case l.taken <- struct{}{}:
		return func() { <-l.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
