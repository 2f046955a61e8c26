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
	idle   chan repository.Place // to be looked at when nothing else is due
	wake   chan struct{}         // for the workers: something is due
	mu     sync.Mutex
	items  map[string]*item
	due    []*item
}

// item is what must be done for one identifier.
type item struct {
	identifier string
	looks      map[repository.Place]look
	timer      *time.Timer // of the earliest look
	busy       bool        // it is due, or worked on
}

// look is when a repository must be looked at, and what else with it. A repository without owner
// stands for the identifier itself.
type look struct {
	at    time.Time
	reach reach
	pulls []string // ids of pull requests that came
}

// reach is what a look at a repository is about.
type reach int

const (
	alone  reach = iota // the repository alone
	group               // also those that may change with it
	within              // and in these accepted pull requests of before, which may not be named there yet
)

// task is what must be done now.
type task struct {
	identifier string
	places     map[repository.Place]reach
	pulls      []string // ids of pull requests that came, in order
}

func newQueue(atOnce int, work func(context.Context, task)) *queue {
	return &queue{atOnce: atOnce, work: work, idle: make(chan repository.Place), wake: make(chan struct{}, atOnce), items: map[string]*item{}}
}

// itself stands for an identifier, without any of its repositories.
func itself(identifier string) repository.Place { return placeOf("", identifier) }

func placeOf(owner, identifier string) repository.Place {
	return repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: identifier}}
}

// run works on what is due until ctx ends.
func (q *queue) run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range q.atOnce {
		workers.Go(func() {
			for ctx.Err() == nil {
				if q.look(ctx) {
					continue
				}
				select {
				case <-ctx.Done():
				case <-q.wake:
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
	before, is := it.looks[place]
	if is && before.at.Before(at) {
		at = before.at
	}
	it.looks[place] = look{at, max(reach, before.reach), union(before.pulls, pulls)}
	q.schedule(it)
}

func union(a, b []string) []string {
	both := slices.Concat(a, b)
	slices.Sort(both)
	return slices.Compact(both)
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

// fire makes an item due.
func (q *queue) fire(it *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.busy || q.items[it.identifier] != it {
		return
	}
	it.busy = true
	q.due = append(q.due, it)
	select {
	case q.wake <- struct{}{}:
	default: // no worker can sleep
	}
}

// look works on what is due of the item that waits longest, and reports whether there was one.
func (q *queue) look(ctx context.Context) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.due) == 0 {
		return false
	}
	it := q.due[0]
	q.due = q.due[1:]
	t := task{identifier: it.identifier, places: map[repository.Place]reach{}}
	for place, l := range it.looks {
		if !l.at.After(time.Now()) {
			t.places[place], t.pulls = l.reach, union(t.pulls, l.pulls)
			delete(it.looks, place)
		}
	}
	q.mu.Unlock()
	q.work(ctx, t)
	q.mu.Lock()
	it.busy = false
	q.schedule(it)
	return true
}

// drop forgets those identifiers that which picks.
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
