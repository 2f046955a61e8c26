package purgatory

import (
	"cmp"
	"context"
	"sync"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

// shards is the set of shards that this worker holds. A shard is handed on only when nothing writes
// in it any more, so that each has one worker that writes in the whole deployment. It is safe for
// concurrent use.
type shards struct {
	mu   sync.Mutex
	held map[int]*shard
}

// handOverPatience is how long a hand-over waits for running work before it cuts that off: one slow
// push does not keep the shard from everybody else.
const handOverPatience = 30 * time.Second

type shard struct {
	opened  time.Time
	writers sync.WaitGroup
	lease   context.Context // ends when the claim on the shard does, or when the hand-over cuts work off
	cut     context.CancelFunc
	tenure  context.Context // ends when the shard is being let go: it takes no more writers
	end     context.CancelFunc
}

// notHeld stands for every shard that is not held: its lease has ended.
var notHeld = func() *shard {
	ended, end := context.WithCancel(context.Background())
	end()
	return &shard{lease: ended}
}()

func newShards() *shards { return &shards{held: map[int]*shard{}} }

// Open begins to hold a shard, for as long as its lease.
func (h *shards) Open(n int, lease context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &shard{opened: time.Now()}
	s.lease, s.cut = context.WithCancel(lease)
	s.tenure, s.end = context.WithCancel(s.lease)
	h.held[n] = s
}

// Close lets go of a shard, and returns when its writers have finished, or were cut off after
// handOverPatience. It takes no new ones, but is held until then: readers do not wait for them. A
// writer that does not even end then is a fault of ours: ended is false after as long again. It
// keeps the repositories that it has locked, where it can write nothing any more, but not the shard.
func (h *shards) Close(n int) (ended bool) {
	h.mu.Lock()
	s := h.held[n]
	s.end()
	h.mu.Unlock()
	defer s.cut()
	late := time.AfterFunc(handOverPatience, s.cut)
	defer late.Stop()
	finished := make(chan struct{})
	go func() {
		s.writers.Wait()
		close(finished)
	}()
	select {
	case <-finished:
		ended = true
	case <-time.After(2 * handOverPatience):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, n)
	return ended
}

// During returns a context for work on an identifier that is given up when the shard has to be let
// go. done must be called when the work has ended: the shard is held until then.
func (h *shards) During(ctx context.Context, identifier string) (during context.Context, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, err := h.enter(identifier)
	if err != nil {
		return nil, nil, err
	}
	during, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.tenure, cancel)
	return during, func() {
		stop()
		cancel()
		s.writers.Done()
	}, nil
}

// enter counts a writer in the shard of an identifier. The caller holds h.mu.
func (h *shards) enter(identifier string) (*shard, error) {
	s := h.held[proto.ShardOf(identifier)]
	if s == nil || s.tenure.Err() != nil {
		return nil, repository.ErrElsewhere
	}
	s.writers.Add(1)
	return s, nil
}

// Enter counts a writer in the shard of an identifier. It implements repository.Options.
func (h *shards) Enter(identifier string) (repository.Tenure, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, err := h.enter(identifier)
	if err != nil {
		return repository.Tenure{}, err
	}
	return repository.Tenure{Lease: s.lease, Open: s.tenure, Leave: s.writers.Done}, nil
}

// Opened is since when the identifier's shard is held.
func (h *shards) Opened(identifier string) time.Time { return h.of(proto.ShardOf(identifier)).opened }

// Holds reports whether the identifier's shard is held, be it for reading only.
func (h *shards) Holds(identifier string) bool { return h.of(proto.ShardOf(identifier)) != notHeld }

// of is a shard that is held, or notHeld.
func (h *shards) of(n int) *shard {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.held[n], notHeld)
}

// Count is how many shards are held.
func (h *shards) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held)
}
