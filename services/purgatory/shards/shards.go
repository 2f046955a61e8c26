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
	lease   context.Context // ends when the claim on the shard does
	tenure  context.Context // ends when the shard is to be let go
	end     context.CancelFunc
	locks   map[string]*lock // by identifier
}

// New makes a worker that holds nothing.
func New() *Held { return &Held{shards: map[int]*shard{}} }

// Open begins to hold a shard, for as long as its lease.
func (h *Held) Open(n int, lease context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &shard{lease: lease, locks: map[string]*lock{}}
	s.tenure, s.end = context.WithCancel(lease)
	h.shards[n] = s
}

// Close lets go of a shard, and returns when its writers have finished. It takes no new ones, but
// is held until then: readers do not wait for them.
func (h *Held) Close(n int) {
	h.mu.Lock()
	s := h.shards[n]
	if s != nil {
		s.closing = true
		s.end()
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

// During returns a context for work on an identifier that is given up when the shard is to be let
// go. done must be called when the work has ended: the shard is held until then.
func (h *Held) During(ctx context.Context, identifier string) (during context.Context, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.shards[proto.ShardOf(identifier)]
	if s == nil || s.closing {
		return nil, nil, ErrElsewhere
	}
	s.writers.Add(1)
	during, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.tenure, cancel)
	return during, func() {
		stop()
		cancel()
		s.writers.Done()
	}, nil
}

// Lease returns the context of what is written of an identifier. It ends with the lease of the
// shard: another worker may write from then on. Of a shard that is not held it has ended.
func (h *Held) Lease(identifier string) context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.shards[proto.ShardOf(identifier)]; s != nil {
		return s.lease
	}
	return ended
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

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
