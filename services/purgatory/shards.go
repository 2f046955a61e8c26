package purgatory

import (
	"cmp"
	"context"
	"sync"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
)

// shards is the set of shards that this worker holds. It lets one writer at a time into a
// repository. A shard is handed on only when nothing writes in it any more, so that each has one
// writer in the whole deployment. It is safe for concurrent use.
type shards struct {
	mu    sync.Mutex
	held  map[int]*shard
	locks map[repository.Place]*lock // of repositories that are being written or waited for
}

type shard struct {
	opened  time.Time
	writers sync.WaitGroup
	lease   context.Context // ends when the claim on the shard does
	tenure  context.Context // ends when the shard is to be let go: it takes no more writers
	end     context.CancelFunc
}

// notHeld stands for every shard that is not held: its lease has ended.
var notHeld = func() *shard {
	ended, end := context.WithCancel(context.Background())
	end()
	return &shard{lease: ended}
}()

func newShards() *shards { return &shards{held: map[int]*shard{}, locks: map[repository.Place]*lock{}} }

// Open begins to hold a shard, for as long as its lease.
func (h *shards) Open(n int, lease context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &shard{opened: time.Now(), lease: lease}
	s.tenure, s.end = context.WithCancel(lease)
	h.held[n] = s
}

// Close lets go of a shard, and returns when its writers have finished. It takes no new ones, but
// is held until then: readers do not wait for them.
func (h *shards) Close(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.held[n]
	s.end()
	h.mu.Unlock()
	s.writers.Wait()
	h.mu.Lock()
	delete(h.held, n)
}

// During returns a context for work on an identifier that is given up when the shard is to be let
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
		return nil, githttp.ErrElsewhere
	}
	s.writers.Add(1)
	return s, nil
}

// lock is that of one repository.
type lock struct {
	users int
	// writer has one place, which parties get fairly: this worker, each client, and all strangers
	// together. strangers has one place too, for the stranger who is next.
	writer, strangers *limit.Fair
}

// The parties at a lock; clients have names of their own.
const (
	theWorker    = "the worker"
	theStrangers = "the strangers"
)

// Write waits until a party, this worker or a client, is the only writer of a repository. unlock must
// be called when it is done, and Write not before that again: two writers would wait for each other.
// Clients come one after the other, whatever each of them sends. All strangers together count as one
// client, so that others wait for one of them at most. githttp.ErrElsewhere: it may not write.
func (h *shards) Write(ctx context.Context, party string, stranger bool, at repository.Place) (unlock func(), err error) {
	return h.acquire(at, func(l *lock) (func(), error) {
		if !stranger {
			return l.writer.Acquire(ctx, party)
		}
		next, err := l.strangers.Acquire(ctx, party)
		if err != nil {
			return nil, err
		}
		release, err := l.writer.Acquire(ctx, theStrangers)
		if err != nil {
			next()
			return nil, err
		}
		return func() { release(); next() }, nil
	})
}

// TryWrite is Write where the repository is free; ok is false where it is not. It may be called
// while other repositories are locked.
func (h *shards) TryWrite(at repository.Place) (unlock func(), ok bool) {
	unlock, err := h.acquire(at, func(l *lock) (func(), error) { return l.writer.Try(theWorker, 1) })
	return unlock, err == nil
}

// acquire takes the lock of a repository by what take does, and counts the writer.
func (h *shards) acquire(at repository.Place, take func(*lock) (release func(), err error)) (unlock func(), err error) {
	h.mu.Lock()
	s, err := h.enter(at.Identifier)
	if err != nil {
		h.mu.Unlock()
		return nil, err
	}
	l := h.locks[at]
	if l == nil {
		l = &lock{writer: limit.NewFair(1, 1), strangers: limit.NewFair(1, 1)}
		h.locks[at] = l
	}
	l.users++
	h.mu.Unlock()
	leave := func() {
		h.mu.Lock()
		if l.users--; l.users == 0 {
			delete(h.locks, at)
		}
		h.mu.Unlock()
		s.writers.Done()
	}
	release, err := take(l)
	if err == nil && s.tenure.Err() != nil { // it waited, and the shard is to be let go
		release()
		err = githttp.ErrElsewhere
	}
	if err != nil {
		leave()
		return nil, err
	}
	return sync.OnceFunc(func() { release(); leave() }), nil
}

// Lease returns the context of what is written of an identifier. It ends with the lease of the
// shard: another worker may write from then on. Of a shard that is not held it has ended.
func (h *shards) Lease(identifier string) context.Context {
	return h.of(proto.ShardOf(identifier)).lease
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
