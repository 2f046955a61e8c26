package purgatory

import (
	"context"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/workqueue"
)

// queue is the identifiers that must be reconciled, one worker for each at a time. Why an
// identifier is in it lies beside the key: which repositories must be looked at, and when.
type queue struct {
	keys *workqueue.Queue[string]

	mu     sync.Mutex
	causes map[string]*causes // by identifier
}

// causes are why an identifier is in the queue.
type causes struct {
	identifier   *cause // its held events, its hunt and its pull requests; nil: none of these
	repositories map[repository.Place]*cause
	// expirations are when events end from which repositories follow. They are not causes like others,
	// of which the earlier counts: who looks earlier may not know of an event that ends later.
	expirations map[expiration]bool
}

// expiration is a look at a repository, and at those that may change with it, because an event
// ends.
type expiration struct {
	at    time.Time
	place repository.Place
	pull  string // the id of a pull request that ends; empty for other events
}

// maxExpirations bounds the expirations that are awaited for one identifier. What is beyond it ends
// with the next look at all repositories, within a day.
const maxExpirations = 4096

// cause is when something must be looked at, and what else with it. Who looks adds it again for
// what is due later.
type cause struct {
	at    time.Time
	reach reach
	pulls []string // ids of pull requests that came or ended
}

// reach is what a look at a repository is about.
type reach int

const (
	repoOnly            reach = iota // the repository alone
	maintainerGroup                  // also those that may change with it
	groupAndAcceptedPRs              // and accepted pull requests of before, which may not be named there yet
)

// task is what must be done now for an identifier.
type task struct {
	identifier     string
	identifierOnly bool // what concerns no repository alone: held events, the hunt, pull requests that came
	places         map[repository.Place]reach
	pulls          []string // ids of pull requests that came or ended, in order
}

// newQueue makes a queue whose tasks are done by work. A task that fails comes again, with what was
// added meanwhile.
func newQueue(workers int, backOff, most time.Duration, work func(context.Context, task) error) *queue {
	q := &queue{causes: map[string]*causes{}}
	q.keys = workqueue.New(workqueue.Options[string]{
		Workers: workers, BackOff: backOff, MaxBackOff: most,
		Work: func(ctx context.Context, identifier string) error {
			t, due := q.take(identifier)
			if !due { // it was taken sooner
				return nil
			}
			err := work(ctx, t)
			if err != nil {
				q.putBack(t)
			}
			return err
		},
	})
	return q
}

func placeOf(owner, identifier string) repository.Place {
	return repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: identifier}}
}

// addRepository asks for a look at a repository.
func (q *queue) addRepository(place repository.Place, at time.Time, reach reach, pulls ...string) {
	q.mu.Lock()
	of := q.of(place.Identifier)
	of.repositories[place] = of.repositories[place].with(at, reach, pulls)
	q.mu.Unlock()
	q.keys.AddAt(place.Identifier, at)
}

// addExpiration asks for a look at a repository when an event ends, beside every other look.
func (q *queue) addExpiration(place repository.Place, at time.Time, pull string) {
	q.mu.Lock()
	of := q.of(place.Identifier)
	if len(of.expirations) < maxExpirations {
		of.expirations[expiration{at, place, pull}] = true
	}
	q.mu.Unlock()
	q.keys.AddAt(place.Identifier, at)
}

// addIdentifier asks for a look at what concerns no repository alone.
func (q *queue) addIdentifier(identifier string, at time.Time, pulls ...string) {
	q.mu.Lock()
	of := q.of(identifier)
	of.identifier = of.identifier.with(at, repoOnly, pulls)
	q.mu.Unlock()
	q.keys.AddAt(identifier, at)
}

// of are the causes of an identifier. The caller holds q.mu.
func (q *queue) of(identifier string) *causes {
	if q.causes[identifier] == nil {
		q.causes[identifier] = &causes{repositories: map[repository.Place]*cause{}, expirations: map[expiration]bool{}}
	}
	return q.causes[identifier]
}

// with is a cause and another one together: of the times the earlier counts.
func (c *cause) with(at time.Time, reach reach, pulls []string) *cause {
	if c == nil {
		return &cause{at, reach, union(pulls, nil)}
	}
	if c.at.Before(at) {
		at = c.at
	}
	return &cause{at, max(reach, c.reach), union(c.pulls, pulls)}
}

func union(a, b []string) []string {
	both := slices.Concat(a, b)
	slices.Sort(both)
	return slices.Compact(both)
}

// take takes what is due of an identifier, and asks for a look when the next of its causes is.
func (q *queue) take(identifier string) (t task, due bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	of := q.causes[identifier]
	if of == nil {
		return t, false
	}
	t = task{identifier: identifier, places: map[repository.Place]reach{}}
	now := time.Now()
	var next time.Time
	isOver := func(at time.Time) bool {
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
		return !at.After(now)
	}
	isDue := func(c *cause) bool {
		if !isOver(c.at) {
			return false
		}
		t.pulls = union(t.pulls, c.pulls)
		return true
	}
	if of.identifier != nil && isDue(of.identifier) {
		t.identifierOnly, of.identifier = true, nil
	}
	for place, c := range of.repositories {
		if isDue(c) {
			t.places[place] = c.reach
			delete(of.repositories, place)
		}
	}
	for e := range of.expirations {
		if isOver(e.at) {
			if t.places[e.place] = max(t.places[e.place], maintainerGroup); e.pull != "" {
				t.pulls = union(t.pulls, []string{e.pull})
			}
			delete(of.expirations, e)
		}
	}
	if of.identifier == nil && len(of.repositories)+len(of.expirations) == 0 {
		delete(q.causes, identifier)
	}
	if !next.IsZero() {
		q.keys.AddAt(identifier, next)
	}
	return t, t.identifierOnly || len(t.places) > 0
}

// putBack puts back a task that failed. It is due; the queue's back-off says when it is taken.
func (q *queue) putBack(t task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	of, now := q.of(t.identifier), time.Now()
	if t.identifierOnly || len(t.pulls) > 0 {
		of.identifier = of.identifier.with(now, repoOnly, t.pulls)
	}
	for place, reach := range t.places {
		of.repositories[place] = of.repositories[place].with(now, reach, nil)
	}
}

// drop forgets the identifiers that which picks.
func (q *queue) drop(which func(identifier string) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for identifier := range q.causes {
		if which(identifier) {
			delete(q.causes, identifier)
		}
	}
	q.keys.Drop(which)
}
