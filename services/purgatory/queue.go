package purgatory

import (
	"context"
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
	atOnce int // identifiers
	work   func(context.Context, task)
	due    chan *item
	idle   chan repository.Place // to be looked at when nothing else is due
	ended  chan struct{}         // closed when nothing is worked on any more
	mu     sync.Mutex
	items  map[string]*item
}

// item is what must be done for one identifier.
type item struct {
	identifier string
	looks      map[repository.Place]look
	pulls      []string    // ids of pull requests that came
	timer      *time.Timer // of the earliest look
	busy       bool        // it is due, or worked on
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

func newQueue(atOnce int, work func(context.Context, task)) *queue {
	return &queue{atOnce: atOnce, work: work, due: make(chan *item), idle: make(chan repository.Place), ended: make(chan struct{}), items: map[string]*item{}}
}

// itself stands for an identifier, without any of its repositories.
func itself(identifier string) repository.Place { return placeOf("", identifier) }

func placeOf(owner, identifier string) repository.Place {
	return repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: identifier}}
}

// run works on what is due until ctx ends.
func (q *queue) run(ctx context.Context) error {
	defer close(q.ended)
	var workers sync.WaitGroup
	for range q.atOnce {
		workers.Go(func() {
			for ctx.Err() == nil {
				select {
				case it := <-q.due:
					q.look(ctx, it)
					continue
				default:
				}
				select {
				case <-ctx.Done():
				case it := <-q.due:
					q.look(ctx, it)
				case place := <-q.idle:
					q.add(place, time.Now(), within)
				}
			}
		})
	}
	workers.Wait()
	return nil
}

// add asks for a look. Of several times the earliest counts: who looks adds it again for what is
// due later.
func (q *queue) add(place repository.Place, at time.Time, reach reach, pulls ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[place.Identifier]
	if it == nil {
		it = &item{identifier: place.Identifier, looks: map[repository.Place]look{}}
		it.timer = time.AfterFunc(time.Hour, func() { q.fire(it) })
		q.items[place.Identifier] = it
	}
	if before, is := it.looks[place]; is {
		reach = max(reach, before.reach)
		if before.at.Before(at) {
			at = before.at
		}
	}
	it.looks[place] = look{at, reach}
	for _, id := range pulls {
		if !slices.Contains(it.pulls, id) {
			it.pulls = append(it.pulls, id)
		}
	}
	q.schedule(it)
}

// schedule sets the timer of an item that is not worked on; q.mu is held.
func (q *queue) schedule(it *item) {
	if it.busy {
		return
	}
	wait := time.Hour
	for _, l := range it.looks {
		wait = min(wait, time.Until(l.at))
	}
	it.timer.Reset(wait)
	if len(it.looks) == 0 {
		it.timer.Stop()
		delete(q.items, it.identifier)
	}
}

// fire hands an item to a worker that is free.
func (q *queue) fire(it *item) {
	q.mu.Lock()
	passed := it.busy || q.items[it.identifier] != it
	it.busy = true
	q.mu.Unlock()
	if passed {
		return
	}
	select {
	case q.due <- it:
	case <-q.ended:
	}
}

// look works on what is due of an item.
func (q *queue) look(ctx context.Context, it *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := task{identifier: it.identifier, places: map[repository.Place]reach{}, pulls: it.pulls}
	it.pulls = nil
	for place, l := range it.looks {
		if !l.at.After(time.Now()) {
			t.places[place] = l.reach
			delete(it.looks, place)
		}
	}
	q.mu.Unlock()
	q.work(ctx, t)
	q.mu.Lock()
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
			q.schedule(it)
		}
	}
}
