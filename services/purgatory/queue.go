package purgatory

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
)

// queue is the identifiers that must be worked on, each when its time has come and by one at a
// time, with the repositories that must be looked at. What is added while an identifier is worked
// on comes again afterwards.
type queue struct {
	mu    sync.Mutex
	items map[string]*item
	due   []*item
	idle  []repository.Place // to be looked at when nothing else is due
	wake  chan struct{}
}

// item is what must be done for one identifier.
type item struct {
	identifier string
	looks      map[repository.Place]look
	pulls      map[string]bool // ids of pull requests that came
	timer      *time.Timer     // of the earliest look
	due, busy  bool
}

// look is when a repository must be looked at, and what else with it. A repository without owner
// stands for the identifier itself.
type look struct {
	at    time.Time
	reach reach
}

// reach is what a look at a repository is about.
type reach int

const (
	alone  reach = iota // the repository alone
	group               // and those that may change with it
	within              // and accepted pull requests of before, which may be for these
)

// task is what must be done now.
type task struct {
	identifier string
	places     map[repository.Place]reach
	pulls      []string // ids of pull requests that came: their repositories must be looked at
}

func newQueue() *queue { return &queue{items: map[string]*item{}, wake: make(chan struct{}, 1)} }

// itself stands for an identifier, without any of its repositories.
func itself(identifier string) repository.Place { return placeOf("", identifier) }

func placeOf(owner, identifier string) repository.Place {
	return repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: identifier}}
}

// add asks for a look. Of several times the earliest counts: who looks adds it again for what is
// due later.
func (q *queue) add(place repository.Place, at time.Time, reach reach) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.put(place, look{at, reach})
}

// put is add; q.mu is held.
func (q *queue) put(place repository.Place, l look) *item {
	it := q.items[place.Identifier]
	if it == nil {
		it = &item{identifier: place.Identifier, looks: map[repository.Place]look{}, pulls: map[string]bool{}}
		it.timer = time.AfterFunc(time.Hour, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.items[it.identifier] == it {
				q.schedule(it)
			}
		})
		q.items[place.Identifier] = it
	}
	if before, is := it.looks[place]; is {
		l.reach = max(l.reach, before.reach)
		if before.at.Before(l.at) {
			l.at = before.at
		}
	}
	it.looks[place] = l
	q.schedule(it)
	return it
}

// schedule puts an item among those that are due, if it is, or sets its timer; q.mu is held.
func (q *queue) schedule(it *item) {
	if it.busy || it.due {
		return
	}
	if len(it.looks) == 0 {
		it.timer.Stop()
		delete(q.items, it.identifier)
		return
	}
	wait := time.Hour
	for _, l := range it.looks {
		wait = min(wait, time.Until(l.at))
	}
	if wait > 0 {
		it.timer.Reset(wait)
		return
	}
	it.due = true
	q.due = append(q.due, it)
	q.signal()
}

// addPull asks for a look at the repositories that a pull request is for.
func (q *queue) addPull(identifier, id string, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.put(itself(identifier), look{at: at}).pulls[id] = true
}

// addIdle asks for a look when nothing else is due.
func (q *queue) addIdle(place repository.Place) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = append(q.idle, place)
	q.signal()
}

// next returns a task whose time has come, waiting for one until ctx ends. done must be called for
// its identifier.
func (q *queue) next(ctx context.Context) (t task, ok bool) {
	for ctx.Err() == nil {
		if t, ok = q.take(); ok {
			return t, true
		}
		select {
		case <-ctx.Done():
		case <-q.wake:
		}
	}
	return task{}, false
}

// take returns a task that is due.
func (q *queue) take() (t task, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if len(q.due) == 0 && len(q.idle) > 0 {
		place := q.idle[0]
		q.idle = q.idle[1:]
		q.put(place, look{now, within})
	}
	if len(q.due) == 0 {
		return task{}, false
	}
	it := q.due[0]
	q.due = q.due[1:]
	it.due, it.busy = false, true
	t = task{identifier: it.identifier, places: map[repository.Place]reach{}, pulls: slices.Sorted(maps.Keys(it.pulls))}
	clear(it.pulls)
	for place, l := range it.looks {
		if !l.at.After(now) {
			t.places[place] = l.reach
			delete(it.looks, place)
		}
	}
	q.signal() // another worker may wait for the next one
	return t, true
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
	q.due = slices.DeleteFunc(q.due, func(it *item) bool { return which(it.identifier) })
	q.idle = slices.DeleteFunc(q.idle, func(place repository.Place) bool { return which(place.Identifier) })
	for identifier, it := range q.items {
		if which(identifier) {
			clear(it.looks)
			it.due = false
			q.schedule(it)
		}
	}
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
