package purgatory

import (
	"container/heap"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
)

// queue is the identifiers that must be reconciled, each when its time has come and by one worker
// at a time, with the repositories that must be looked at. What is added while an identifier is
// worked on comes again afterwards.
type queue struct {
	mu    sync.Mutex
	items map[string]*item
	times times
	idle  []repository.Place // to be looked at when nothing else is due
	wake  chan struct{}
}

// item is what must be done for one identifier.
type item struct {
	identifier string
	looks      map[repository.Place]look
	at         time.Time            // of the earliest look
	pulls      map[string]bool      // ids of pull requests that came
	owed       map[string]time.Time // ids of accepted ones that are still to be named → since when
	allPulls   bool
	busy       bool
	place      int // in times, -1: not there
}

// look is when a repository must be looked at, and whether others must be for whose sake it
// matters. A repository without owner stands for the identifier itself.
type look struct {
	at   time.Time
	wide bool
}

// task is what must be done now.
type task struct {
	identifier string
	places     map[repository.Place]bool // true: and those that may change with it
	pulls      []string                  // ids of pull requests that came: their repositories must be looked at
	owed       []string                  // ids of accepted pull requests whose commit is still to be named
	allPulls   bool                      // accepted pull requests of before may be for the repositories too
}

// maxOwed bounds the accepted pull requests of one identifier that are still to be named.
const maxOwed = 256

func newQueue() *queue { return &queue{items: map[string]*item{}, wake: make(chan struct{}, 1)} }

// itself stands for an identifier, without any of its repositories.
func itself(identifier string) repository.Place {
	return repository.Place{RepoRef: nostr.RepoRef{Identifier: identifier}}
}

// add asks for a look at a repository and at those that may change with it. Of several times the
// earliest counts: who looks adds it again for what is due later.
func (q *queue) add(place repository.Place, at time.Time) { q.addLook(place, look{at, true}) }

// addOnly is add without the others.
func (q *queue) addOnly(place repository.Place, at time.Time) { q.addLook(place, look{at, false}) }

func (q *queue) addLook(place repository.Place, l look) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.put(place, l)
}

// put is addLook; q.mu is held.
func (q *queue) put(place repository.Place, l look) {
	it := q.of(place.Identifier)
	if before, is := it.looks[place]; is {
		l.wide = l.wide || before.wide
		if before.at.Before(l.at) {
			l.at = before.at
		}
	}
	it.looks[place] = l
	q.schedule(it)
}

// of returns the item of an identifier; q.mu is held.
func (q *queue) of(identifier string) *item {
	it := q.items[identifier]
	if it == nil {
		it = &item{identifier: identifier, place: -1, looks: map[repository.Place]look{}, pulls: map[string]bool{}, owed: map[string]time.Time{}}
		q.items[identifier] = it
	}
	return it
}

// schedule puts an item where it belongs among the times; q.mu is held.
func (q *queue) schedule(it *item) {
	if it.busy {
		return
	}
	it.at = time.Time{}
	for _, l := range it.looks {
		if it.at.IsZero() || l.at.Before(it.at) {
			it.at = l.at
		}
	}
	switch {
	case it.at.IsZero():
		if len(it.owed) == 0 {
			delete(q.items, it.identifier)
		}
	case it.place < 0:
		heap.Push(&q.times, it)
	default:
		heap.Fix(&q.times, it.place)
	}
	q.signal()
}

// addPull asks for a look at the repositories that a pull request is for.
func (q *queue) addPull(identifier, id string, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of(identifier).pulls[id] = true
	q.put(itself(identifier), look{at: at})
}

// addAllPulls says that accepted pull requests of before must be looked through at the next look.
func (q *queue) addAllPulls(identifier string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of(identifier).allPulls = true
}

// owe says which accepted pull requests of an identifier are still to be named. They are given up
// after a while, until they are looked for again.
func (q *queue) owe(identifier string, ids []string, giveUp time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it, now := q.of(identifier), time.Now()
	before := it.owed
	it.owed = map[string]time.Time{}
	for _, id := range ids[:min(len(ids), maxOwed)] {
		since, is := before[id]
		if !is {
			since = now
		}
		if now.Sub(since) < giveUp {
			it.owed[id] = since
		}
	}
}

// addIdle asks for looks when nothing else is due.
func (q *queue) addIdle(places []repository.Place) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = append(q.idle, places...)
	q.signal()
}

// next returns a task whose time has come, waiting for one until ctx ends. done must be called for
// its identifier.
func (q *queue) next(ctx context.Context) (t task, ok bool) {
	for ctx.Err() == nil {
		t, wait := q.take(time.Now())
		if wait == 0 {
			return t, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	return task{}, false
}

// take returns a task that is due, or how long to wait for one.
func (q *queue) take(now time.Time) (t task, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if (len(q.times) == 0 || q.times[0].at.After(now)) && len(q.idle) > 0 {
		place := q.idle[0]
		q.idle = q.idle[1:]
		q.of(place.Identifier).allPulls = true
		q.put(place, look{now, true})
	}
	if len(q.times) == 0 {
		return task{}, time.Hour
	}
	it := q.times[0]
	if wait := it.at.Sub(now); wait > 0 {
		return task{}, wait
	}
	heap.Pop(&q.times)
	t = task{identifier: it.identifier, places: map[repository.Place]bool{}, allPulls: it.allPulls}
	t.pulls, t.owed = slices.Sorted(maps.Keys(it.pulls)), slices.Sorted(maps.Keys(it.owed))
	it.busy, it.allPulls = true, false
	clear(it.pulls)
	for place, l := range it.looks {
		if !l.at.After(now) {
			t.places[place] = l.wide
			delete(it.looks, place)
		}
	}
	q.signal() // another worker may wait for the next one
	return t, 0
}

// done ends the work on an identifier.
func (q *queue) done(identifier string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[identifier]
	it.busy = false
	q.schedule(it)
}

// drop forgets the identifiers for which which is true.
func (q *queue) drop(which func(identifier string) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for identifier, it := range q.items {
		if which(identifier) {
			clear(it.looks)
			clear(it.owed)
			if it.place >= 0 {
				heap.Remove(&q.times, it.place)
			}
			q.schedule(it)
		}
	}
	q.idle = slices.DeleteFunc(q.idle, func(place repository.Place) bool { return which(place.Identifier) })
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
	it.place = -1
	return it
}
