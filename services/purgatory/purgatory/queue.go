package purgatory

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// queue is the keys that must be worked on, each when its time has come, each once however often it
// is added before, and each by one worker at a time. A key that is added while it is worked on
// comes again afterwards.
type queue struct {
	mu    sync.Mutex
	items map[string]*item
	times times
	wake  chan struct{}
}

type item struct {
	key       string
	at, later time.Time // the two earliest times; zero: none
	busy      bool
	place     int // in times, while it is not worked on
}

func newQueue() *queue { return &queue{items: map[string]*item{}, wake: make(chan struct{}, 1)} }

// add adds a key whose time has come.
func (q *queue) add(key string) { q.addAt(key, time.Now()) }

// addAt adds a key for a time. Of several times the two earliest count: what is worked on adds its
// own later ones again.
func (q *queue) addAt(key string, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[key]
	if it == nil {
		it = &item{key: key, place: -1}
		q.items[key] = it
	}
	switch {
	case it.at.IsZero():
		it.at = at
	case at.Before(it.at):
		it.at, it.later = at, it.at
	case at.After(it.at) && (it.later.IsZero() || at.Before(it.later)):
		it.later = at
	}
	switch {
	case it.busy:
	case it.place < 0:
		heap.Push(&q.times, it)
	default:
		heap.Fix(&q.times, it.place)
	}
	q.signal()
}

// next takes a key out whose time has come, waiting for one until ctx ends. done must be called for
// it.
func (q *queue) next(ctx context.Context) (key string, ok bool) {
	for ctx.Err() == nil {
		key, wait := q.take(time.Now())
		if wait == 0 {
			return key, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	return "", false
}

// take returns a key that is due, or how long to wait for one.
func (q *queue) take(now time.Time) (key string, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.times) == 0 {
		return "", time.Hour
	}
	it := q.times[0]
	if wait := it.at.Sub(now); wait > 0 {
		return "", wait
	}
	heap.Pop(&q.times)
	it.at, it.later, it.busy = it.later, time.Time{}, true
	if len(q.times) > 0 {
		q.signal() // another worker may wait for the time of the next one
	}
	return it.key, 0
}

// done ends the work on a key.
func (q *queue) done(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[key]
	if it.busy = false; it.at.IsZero() {
		delete(q.items, key)
		return
	}
	heap.Push(&q.times, it)
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// times is a heap of items, the one that is due first on top.
type times []*item

func (t times) Len() int           { return len(t) }
func (t times) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t times) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].place, t[j].place = i, j
}

// Push implements heap.Interface.
func (t *times) Push(x any) {
	x.(*item).place = len(*t)
	*t = append(*t, x.(*item))
}

// Pop implements heap.Interface.
func (t *times) Pop() any {
	last := len(*t) - 1
	it := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return it
}
