package hunt

import (
	"container/heap"
	"sync"
	"time"
)

// Rules are the delays between attempts, all of them settings.
type Rules struct {
	Base, Max time.Duration // back-off: Base, doubled with every attempt, at most Max
	Interval  time.Duration // how often due entries are looked for
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

// Queue knows which identifiers must be hunted for and when: one entry for all events of an
// identifier. It is safe for concurrent use.
type Queue struct {
	rules Rules

	mu      sync.Mutex
	entries map[string]*entry
	idle    idle // those not in progress
}

type entry struct {
	identifier string
	attempts   int
	next       time.Time
	busy       bool
	renewed    bool // a new event came while the hunt was on
	place      int  // among the idle ones
}

// NewQueue makes an empty queue.
func NewQueue(r Rules) *Queue { return &Queue{rules: r, entries: map[string]*entry{}} }

// Add notes a new event that waits: the attempts count anew, and the next comes sooner if delay
// says so, never later.
func (q *Queue) Add(identifier string, now time.Time, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := now.Add(delay)
	e := q.entries[identifier]
	switch {
	case e == nil:
		e = &entry{identifier: identifier, next: at}
		q.entries[identifier] = e
		heap.Push(&q.idle, e)
		return
	case e.busy && !e.renewed:
		// When the present attempt was due says nothing about the next.
		e.next, e.renewed = at, true
	case at.Before(e.next):
		e.next = at
		if !e.busy {
			heap.Fix(&q.idle, e.place)
		}
	}
	e.attempts = 0
}

// Ensure notes that something waits, if nothing of the identifier is hunted for already.
func (q *Queue) Ensure(identifier string, now time.Time, delay time.Duration) {
	q.mu.Lock()
	known := q.entries[identifier] != nil
	q.mu.Unlock()
	if !known {
		q.Add(identifier, now, delay)
	}
}

// Due takes out at most n identifiers whose time has come and that are not in progress, longest due
// first.
func (q *Queue) Due(now time.Time, n int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var due []string
	for len(due) < n && len(q.idle) > 0 && !now.Before(q.idle[0].next) {
		e := heap.Pop(&q.idle).(*entry)
		e.busy, e.renewed = true, false
		due = append(due, e.identifier)
	}
	return due
}

// Finished ends an attempt: the entry goes if nothing is missing any more, and waits for its next
// attempt otherwise.
func (q *Queue) Finished(identifier string, now time.Time, missing bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[identifier]
	switch {
	case e == nil || !e.busy:
		return
	case e.renewed:
		e.renewed = false
	case !missing:
		delete(q.entries, identifier)
		return
	default:
		e.attempts++
		e.next = now.Add(q.rules.backoff(e.attempts))
	}
	e.busy = false
	heap.Push(&q.idle, e)
}

// Len is how many identifiers are hunted for.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}

// idle is a heap of entries, the one that is due first on top.
type idle []*entry

func (h idle) Len() int           { return len(h) }
func (h idle) Less(i, j int) bool { return h[i].next.Before(h[j].next) }
func (h idle) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push adds an entry at the end.
func (h *idle) Push(e any) {
	e.(*entry).place = len(*h)
	*h = append(*h, e.(*entry))
}

// Pop takes the last entry off.
func (h *idle) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
