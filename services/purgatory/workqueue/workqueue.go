// Package workqueue is a queue of keys, made as client-go's: a key is in it once, however often it
// is added, and one worker at a time has it. It does not know why a key was added; who adds a key
// keeps that beside it.
//
//   - A key is dirty from when it is added until a worker takes it, and processing until that has
//     ended. What is added while it is processed comes again afterwards.
//   - A key that was added for later lies in one heap, under the earliest time asked for.
//   - A key whose work failed comes again after a back-off of its own, which doubles. Work that
//     succeeds ends it. Other keys do not wait.
package workqueue

import (
	"context"
	"sync"
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/services/purgatory/ordered"
)

// Options say how a queue works.
type Options[K comparable] struct {
	// Workers is how many keys are worked on at once. Required.
	Workers int
	// Work works on a key. On error the key comes again after a back-off. Required.
	Work func(context.Context, K) error
	// BackOff is the wait after a first failure. It doubles up to MaxBackOff.
	BackOff, MaxBackOff time.Duration
}

// Queue is a queue of keys. It is safe for concurrent use.
type Queue[K comparable] struct {
	Options[K]
	idle chan struct{}
	wake chan struct{} // for the workers: a key is ready

	mu         sync.Mutex
	ready      []K // dirty keys that no worker has, the longest dirty first
	dirty      map[K]bool
	processing map[K]bool
	failures   map[K]int
	delays     ordered.Heap[*delay[K]]
	delayed    map[K]*delay[K]
	timer      *time.Timer // of the first delay
}

// New makes a queue. Nothing is worked on before Run.
func New[K comparable](o Options[K]) *Queue[K] {
	q := &Queue[K]{
		Options: o, idle: make(chan struct{}), wake: make(chan struct{}, o.Workers),
		dirty: map[K]bool{}, processing: map[K]bool{}, failures: map[K]int{}, delayed: map[K]*delay[K]{},
	}
	q.timer = time.AfterFunc(time.Hour, q.fire)
	q.timer.Stop()
	return q
}

// Add makes a key dirty.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

// AddAt makes a key dirty at a time. Of several times the earliest counts.
func (q *Queue[K]) AddAt(key K, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addAt(key, at)
}

// Idle gives a token when a worker has nothing to do. Who takes the token may add a key that is not
// urgent.
func (q *Queue[K]) Idle() <-chan struct{} { return q.idle }

// Len is how many keys are dirty, processing or delayed.
func (q *Queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.processing) + len(q.delayed)
	for key := range q.dirty {
		if !q.processing[key] && q.delayed[key] == nil {
			n++
		}
	}
	return n
}

// Drop forgets the keys that which picks. What is worked on ends.
func (q *Queue[K]) Drop(which func(K) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var kept []K
	for _, key := range q.ready {
		if !which(key) {
			kept = append(kept, key)
		}
	}
	q.ready = kept
	for key := range q.dirty {
		if which(key) {
			delete(q.dirty, key)
		}
	}
	for key := range q.failures {
		if which(key) {
			delete(q.failures, key)
		}
	}
	for key, d := range q.delayed {
		if which(key) {
			q.delays.Remove(d)
			delete(q.delayed, key)
		}
	}
	q.setTimer()
}

// Run works on what is added until ctx ends.
func (q *Queue[K]) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range q.Workers {
		workers.Go(func() {
			for ctx.Err() == nil {
				key, is := q.take()
				if is {
					q.done(key, q.Work(ctx, key))
					continue
				}
				select {
				case <-ctx.Done():
				case <-q.wake:
				case q.idle <- struct{}{}:
				}
			}
		})
	}
	workers.Wait()
	return nil
}

// add is Add. The caller holds q.mu, as for all below.
func (q *Queue[K]) add(key K) {
	if q.dirty[key] {
		return
	}
	q.dirty[key] = true
	if q.processing[key] {
		return // done makes it ready
	}
	q.ready = append(q.ready, key)
	select {
	case q.wake <- struct{}{}:
	default: // no worker can sleep
	}
}

func (q *Queue[K]) addAt(key K, at time.Time) {
	d := q.delayed[key]
	switch {
	case !at.After(time.Now()):
		q.add(key)
		return
	case d == nil:
		d = &delay[K]{key: key, at: at}
		q.delayed[key] = d
	case at.Before(d.at):
		d.at = at
	}
	q.delays.Put(d)
	q.setTimer()
}

func (q *Queue[K]) setTimer() {
	if first, any := q.delays.First(); any {
		q.timer.Reset(time.Until(first.at))
	} else {
		q.timer.Stop()
	}
}

// fire makes dirty what is due.
func (q *Queue[K]) fire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for first, any := q.delays.First(); any && !first.at.After(now); first, any = q.delays.First() {
		q.delays.Remove(first)
		delete(q.delayed, first.key)
		q.add(first.key)
	}
	q.setTimer()
}

func (q *Queue[K]) take() (key K, is bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ready) == 0 {
		return key, false
	}
	key, q.ready = q.ready[0], q.ready[1:]
	delete(q.dirty, key)
	q.processing[key] = true
	return key, true
}

func (q *Queue[K]) done(key K, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.processing, key)
	if q.dirty[key] {
		delete(q.dirty, key)
		q.add(key)
	}
	if err == nil {
		delete(q.failures, key)
		return
	}
	q.failures[key]++
	q.addAt(key, time.Now().Add(backoff.After(q.failures[key], q.BackOff, q.MaxBackOff)))
}

// delay is a key that becomes dirty at a time.
type delay[K comparable] struct {
	key   K
	at    time.Time
	place int // in the heap
}

func (d *delay[K]) Before(other *delay[K]) bool { return d.at.Before(other.at) }
func (d *delay[K]) Place() *int                 { return &d.place }
