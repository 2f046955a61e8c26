package intake

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/rawevent"
)

// Bounds of what is taken in and not yet handed on, in bytes as they lie in memory.
const (
	// liveRoom and pastRoom are what all connections may have together. They are apart, so that
	// what comes live never waits for room behind the past.
	liveRoom, pastRoom = 4 << 20, 8 << 20
	// streamRoom is what one connection may have of either. Those that wait for more get it in the
	// order in which they came, each for one event at a time. A larger event waits until it is
	// alone.
	streamRoom = 2 << 20
	// copyRoom is about what waits for the verdict on an event that another connection has brought:
	// half for its place in the queue, half for who waits.
	copyRoom = 1024
)

// size is about how much memory an event takes.
func (a *Arrival) size() int64 { return min(rawevent.Memory(a.Event, a.Raw), streamRoom) }

// room is what one connection has of one class.
type room struct {
	own *semaphore.Weighted
	all *semaphore.Weighted // shared with the other connections
}

// tryTake takes n bytes if they are free and nobody waits for any.
func (r *room) tryTake(n int64) bool {
	if !r.own.TryAcquire(n) {
		return false
	}
	if !r.all.TryAcquire(n) {
		r.own.Release(n)
		return false
	}
	return true
}

// take takes n bytes. It waits until they are free or ctx ends, and says how long that took.
func (r *room) take(ctx context.Context, n int64) (waited time.Duration, err error) {
	began := time.Now()
	if err := r.own.Acquire(ctx, n); err != nil {
		return time.Since(began), err
	}
	if err := r.all.Acquire(ctx, n); err != nil {
		r.own.Release(n)
		return time.Since(began), err
	}
	return time.Since(began), nil
}

// give gives n bytes back.
func (r *room) give(n int64) {
	r.all.Release(n)
	r.own.Release(n)
}
