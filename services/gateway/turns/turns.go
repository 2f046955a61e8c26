// Package turns shares out work that keeps a processor busy, like reading large messages and
// looking through the index. Only so much is done at once; clients take turns at the rest, so that
// one with a thousand questions is served no more often than one with a single question.
package turns

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// quantum is how long a turn lasts while others wait.
const quantum = 5 * time.Millisecond

// Turns are shared by all clients. They are safe for concurrent use.
type Turns struct {
	mu      sync.Mutex
	free    int
	waiting map[string]*list.Element // in order, by client
	order   list.List                // of *queue, who is next comes first
}

// queue is what waits of one client; it is never empty.
type queue struct {
	client string
	places list.List // of chan struct{}
}

// New makes turns of which so many may be under way at once.
func New(atOnce int) *Turns { return &Turns{free: atOnce, waiting: map[string]*list.Element{}} }

// Turn is the right to work, of one piece of work. Only one goroutine may use it at a time.
type Turn struct {
	turns  *Turns
	client string
	since  time.Time
	held   bool
}

// Take waits until it is the client's turn. Each call that succeeded needs one of Turn.End. The
// error is that of ctx.
func (t *Turns) Take(ctx context.Context, client string) (*Turn, error) {
	turn := &Turn{turns: t, client: client}
	if err := turn.Resume(ctx); err != nil {
		return nil, err
	}
	return turn, nil
}

// Resume takes the turn again after Pause.
func (turn *Turn) Resume(ctx context.Context) error {
	if err := turn.turns.take(ctx, turn.client); err != nil {
		return err
	}
	turn.held, turn.since = true, time.Now()
	return nil
}

// Pause lets others work while this piece of work waits for something else.
func (turn *Turn) Pause() {
	if turn.held {
		turn.held = false
		turn.turns.give()
	}
}

// End returns the turn back, if it is held.
func (turn *Turn) End() { turn.Pause() }

// Yield is called now and then by work that takes long: it lets those who wait go first once the
// turn has lasted long enough. The error is that of ctx; then the turn is not held.
func (turn *Turn) Yield(ctx context.Context) error {
	if err := ctx.Err(); err != nil || time.Since(turn.since) < quantum {
		return err
	}
	turn.Pause()
	return turn.Resume(ctx)
}

func (t *Turns) take(ctx context.Context, client string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	at := t.waiting[client]
	if at == nil {
		at = t.order.PushBack(&queue{client: client})
		t.waiting[client] = at
	}
	mine := make(chan struct{})
	place := at.Value.(*queue).places.PushBack(mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	select {
	case <-mine: // it came at the same moment
		t.mu.Unlock()
		t.give()
		return ctx.Err()
	default:
	}
	t.remove(at, place)
	t.mu.Unlock()
	return ctx.Err()
}

// remove takes a place out of a queue, and the queue out of the order if that was its last; the
// caller holds the lock.
func (t *Turns) remove(at, place *list.Element) {
	q := at.Value.(*queue)
	if q.places.Remove(place); q.places.Len() == 0 {
		delete(t.waiting, q.client)
		t.order.Remove(at)
	}
}

// give hands a turn to the client that is next, who then comes last.
func (t *Turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.order.Front()
	if first == nil {
		t.free++
		return
	}
	place := first.Value.(*queue).places.Front()
	close(place.Value.(chan struct{}))
	t.order.MoveToBack(first)
	t.remove(first, place)
}
