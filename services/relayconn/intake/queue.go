package intake

import (
	"sync"

	"tendril.dev/proto"
)

// class tells live events from those of the past, which are less urgent.
type class int

const (
	live class = iota
	past
	classes
)

func classOf(l proto.Lane) class {
	if l == proto.LaneSyncLive {
		return live
	}
	return past
}

// queue holds what one connection has brought of one class and has not been handed on, in the order
// in which it came. The lock of the intake guards it.
type queue struct {
	relay    string
	class    class
	room     room
	entries  []entry
	looked   int  // entries that a worker has been offered
	waiting  bool // for a worker: it stands in the line of its class
	draining bool // a goroutine hands on what is at its head
}

// entry is an event in a queue. The same flight may stand in those of several connections.
type entry struct {
	*flight
	lane   proto.Lane
	source proto.Source
	size   int64 // of the room that is given back when the entry goes
}

// step is what can be done with the head of a queue.
type step int

const (
	wait  step = iota
	offer      // it to ingest
	leave      // it alone: it has been offered or has ended
)

// passOver takes out what is done with at the head of the queue, and says what can be done with the
// rest.
func (q *queue) passOver() step {
	for len(q.entries) > 0 {
		if s := q.next(); s != leave {
			return s
		}
		q.pop()
	}
	return wait
}

// next is what can be done with the head of the queue, which is not empty. A flight that stands in
// several queues is offered for the first at whose head it comes to stand. The others wait until it
// has been, so that nothing overtakes it; but where it waits with the past, and comes live as well,
// it is offered once more as live.
func (q *queue) next() step {
	switch f := q.entries[0].flight; f.stage {
	case checked:
		return offer
	case offering, offered:
		switch {
		case q.class == live && !f.urgent:
			return offer
		case f.stage == offering:
			return wait
		}
		return leave
	case ended:
		return leave
	}
	return wait
}

// nextUnchecked returns the next flight of the queue that nobody has checked; nil: there is none,
// or it is not known yet whether the next is stored.
func (q *queue) nextUnchecked() *flight {
	for q.checkable() {
		f := q.entries[q.looked].flight
		q.looked++
		if f.stage == unchecked {
			return f
		}
	}
	return nil
}

// checkable reports whether there is a next flight to look at, and it is known that it is not
// stored.
func (q *queue) checkable() bool {
	return q.looked < len(q.entries) && q.entries[q.looked].stage >= unchecked
}

// pop takes the head out.
func (q *queue) pop() {
	q.room.give(q.entries[0].size)
	q.entries[0] = entry{}
	q.entries = q.entries[1:]
	if q.looked > 0 {
		q.looked--
	}
	if len(q.entries) == 0 {
		q.entries = nil // lets go of the array
	}
}

// line is the queues that have something to check, the one that had no turn for longest first.
type line struct{ queues []*queue }

func (l *line) push(q *queue) {
	if !q.waiting {
		q.waiting = true
		l.queues = append(l.queues, q)
	}
}

func (l *line) pop() *queue {
	q := l.queues[0]
	l.queues[0] = nil
	if len(l.queues) == 1 {
		l.queues = l.queues[:0] // a lone queue, which stands in line for each event, needs no new room
	} else {
		l.queues = l.queues[1:]
	}
	q.waiting = false
	return q
}

// shift is how often the past comes before what is live, so that a flood of live events does not
// stop it: once in so many turns.
const shift = 8

// lines are what waits for the workers.
type lines struct {
	wake  sync.Cond
	of    [classes]line
	turns int
}

// next returns the flight to be checked next; nil: there is none.
func (l *lines) next() *flight {
	for {
		first, second := live, past
		if l.turns%shift == shift-1 {
			first, second = past, live
		}
		from := &l.of[first]
		if len(from.queues) == 0 {
			from = &l.of[second]
		}
		if len(from.queues) == 0 {
			return nil
		}
		q := from.pop()
		f := q.nextUnchecked()
		if q.checkable() {
			from.push(q)
		}
		if f != nil {
			l.turns++
			return f
		}
	}
}
