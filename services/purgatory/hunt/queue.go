package hunt

import (
	"slices"
	"sync"
	"time"
)

// Rules are the delays between attempts, all of them settings.
type Rules struct {
	Base, Max time.Duration // back-off: Base, doubled with every attempt, at most Max
	Interval  time.Duration // how often due entries are looked for
	AtOnce    int           // hunts under way
}

// backoff is the wait after so many unsuccessful attempts: 20 s, 40 s, 80 s, then 120 s each.
func (r Rules) backoff(attempts int) time.Duration {
	wait := r.Base
	for range attempts - 1 {
		if wait *= 2; wait >= r.Max {
			return r.Max
		}
	}
	return min(wait, r.Max)
}

// Queue knows which identifiers are to be hunted for and when: one entry for all events of an identifier. It is safe for concurrent use.
type Queue struct {
	rules Rules

	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	attempts int
	next     time.Time
	busy     bool
	renewed  bool // a new event came while the hunt was on
}

// NewQueue makes an empty queue.
func NewQueue(r Rules) *Queue { return &Queue{rules: r, entries: map[string]*entry{}} }

// Add notes a new event that waits: the attempts count anew, and the next comes sooner if delay says so, never later.
func (q *Queue) Add(identifier string, now time.Time, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := now.Add(delay)
	e := q.entries[identifier]
	switch {
	case e == nil:
		q.entries[identifier] = &entry{next: at}
		return
	case e.busy && !e.renewed:
		// When the present attempt was due says nothing about the next.
		e.next, e.renewed = at, true
	case at.Before(e.next):
		e.next = at
	}
	e.attempts = 0
}

// Due takes out at most n identifiers whose time has come and that are not in progress, longest due first.
func (q *Queue) Due(now time.Time, n int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var due []string
	for id, e := range q.entries {
		if !e.busy && !now.Before(e.next) {
			due = append(due, id)
		}
	}
	slices.SortFunc(due, func(a, b string) int { return q.entries[a].next.Compare(q.entries[b].next) })
	due = due[:min(n, len(due))]
	for _, id := range due {
		q.entries[id].busy, q.entries[id].renewed = true, false
	}
	return due
}

// Finished ends an attempt: the entry goes if nothing is missing any more, and waits for its next attempt otherwise.
func (q *Queue) Finished(identifier string, now time.Time, missing bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[identifier]
	switch {
	case e == nil:
	case e.renewed:
		e.busy, e.renewed = false, false
	case !missing:
		delete(q.entries, identifier)
	default:
		e.busy = false
		e.attempts++
		e.next = now.Add(q.rules.backoff(e.attempts))
	}
}

// Len is how many identifiers are hunted for.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}
