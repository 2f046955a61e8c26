package writer

import (
	"context"
	"slices"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// class is how soon work is due. People wait for urgent work as it happens: the events of users,
// releases, and live events of relays. Older events of relays are bulk.
type class int

const (
	urgent class = iota
	bulk
	classes
)

const (
	// bulkShare is the part of a batch that bulk work may fill while urgent events come.
	bulkShare = 4
	// bulkPace is the time from bulk batch to bulk batch, unless one is full or urgent work waits: each
	// commit costs the disk and the processor as much as dozens of events.
	bulkPace = 100 * time.Millisecond
	// urgentFor is for how long after an urgent event the next one is expected.
	urgentFor = 2 * time.Second
	// mostUrgentRechecks is how many rechecks may wait as urgent ones, and how many are decided until
	// the next urgent event. More than that count as bulk, so the next urgent batch has room for an
	// event at least.
	mostUrgentRechecks = commitSize - 1
)

// work is one candidate that is due for its decision: an event of a pack, or a recheck.
type work struct {
	pack      *pack             // nil: a recheck
	n         int               // of the pack's events
	candidate *policy.Candidate // nil: this line of the pack is no candidate, and has its verdict
}

// ends reports whether a pack has been decided with this work.
func (x work) ends() bool { return x.pack != nil && x.n == len(x.pack.events)-1 }

// scheduler says what is decided next. Its sources are the lanes and the rechecks: parked and held
// events that are decided again. A recheck has the class of what caused it, and comes before all
// else of its class: right behind its cause.
//
// A batch has one class. Where work of both waits the classes alternate, so that urgent work waits
// for one commit of bulk work at most, and for a short one where more urgent work is expected.
type scheduler struct {
	*lanes
	*rechecks
	last     class          // of the last batch
	started  [classes]*pack // packs of which a part has been decided
	urgentAt time.Time      // when an urgent pack was begun
	woken    chan struct{}  // of capacity 1: something else is due than work
	fillTo   time.Time      // until when the bulk batch at hand, or the next one, may wait for more
}

func newScheduler(l *lanes, again *rechecks) *scheduler {
	return &scheduler{lanes: l, rechecks: again, last: bulk, woken: make(chan struct{}, 1)}
}

// wake ends the wait for work. Any goroutine may call it.
func (s *scheduler) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// next waits for work, and returns the first work of a batch with the class of that batch. ok is
// false if nothing has come for a while, or something else is due, or ctx has ended.
func (s *scheduler) next(ctx context.Context) (c class, first work, ok bool) {
	tired := time.After(sweepEvery)
	for {
		for _, c := range [...]class{1 - s.last, s.last} { // the class that had not the last batch
			if x, ok := s.more(c); ok {
				s.last = c
				return c, x, true
			}
		}
		select {
		case <-s.arrived:
		case <-s.woken:
			return 0, work{}, false
		case <-tired:
			return 0, work{}, false
		case <-ctx.Done():
			return 0, work{}, false
		}
	}
}

// fill is [scheduler.more] for a batch that is not full. A bulk batch waits for more, if another was
// filled just before.
func (s *scheduler) fill(ctx context.Context, c class) (x work, ok bool) {
	for {
		x, ok = s.more(c)
		pause := time.Until(s.fillTo)
		if ok || c == urgent || pause <= 0 || s.urgentWaits() {
			return x, ok
		}
		select {
		case <-s.arrived:
		case <-time.After(pause):
		case <-ctx.Done():
			return work{}, false
		}
	}
}

func (s *scheduler) urgentWaits() bool {
	return s.started[urgent] != nil || len(s.rechecks.waiting[urgent]) > 0 || s.lanes.waits(urgent)
}

// committing notes that a batch of a class is not filled any more.
func (s *scheduler) committing(c class) {
	if c == bulk {
		s.fillTo = time.Now().Add(bulkPace)
	}
}

// more returns further work of a class without waiting for it.
func (s *scheduler) more(c class) (x work, ok bool) {
	if recheck := s.rechecks.take(c); recheck != nil {
		return work{candidate: recheck}, true
	}
	if s.started[c] == nil {
		p := s.lanes.take(c)
		if p == nil {
			return work{}, false
		}
		if s.started[c] = p; c == urgent {
			s.urgentAt, s.rechecks.urgentInRow = time.Now(), 0
		}
	}
	p := s.started[c]
	x = work{pack: p, n: p.next, candidate: p.events[p.next]}
	if p.next++; x.ends() {
		s.started[c] = nil
	}
	return x, true
}

// most is how much work a batch of a class may have, of size at most.
func (s *scheduler) most(c class, size int) int {
	if c == bulk && (time.Since(s.urgentAt) < urgentFor || s.lanes.waits(urgent)) {
		return max(1, size/bulkShare)
	}
	return size
}

// close ends the lanes, and gives back what was begun. The rechecks stay: no message brings them
// again.
func (s *scheduler) close() {
	s.lanes.close()
	for _, p := range s.started {
		if p != nil {
			p.giveBack()
		}
	}
}

// rechecks are events that are decided again. Those that were parked are nowhere else, so rechecks
// outlive a term.
type rechecks struct {
	waiting     [classes][]*policy.Candidate
	urgentInRow int // urgent ones that were taken since the last urgent pack was begun
}

// add adds rechecks that something of a class has caused.
func (r *rechecks) add(c class, candidates ...*policy.Candidate) {
	r.waiting[c] = append(r.waiting[c], candidates...)
	r.demote()
}

// demote makes bulk of the urgent rechecks if they are too many. Each may cause the next one: then
// few wait at any moment, and yet no event would have its turn before the last of them.
func (r *rechecks) demote() {
	if len(r.waiting[urgent]) > mostUrgentRechecks || r.urgentInRow >= mostUrgentRechecks {
		r.waiting[bulk], r.waiting[urgent] = append(r.waiting[bulk], r.waiting[urgent]...), nil
	}
}

// take returns the first recheck of a class; nil: there is none.
func (r *rechecks) take(c class) *policy.Candidate {
	r.demote()
	if len(r.waiting[c]) == 0 {
		return nil
	}
	if c == urgent {
		r.urgentInRow++
	}
	first := r.waiting[c][0]
	r.waiting[c][0] = nil // the array would keep it
	r.waiting[c] = r.waiting[c][1:]
	return first
}

// len is how many there are.
func (r *rechecks) len() int { return len(r.waiting[urgent]) + len(r.waiting[bulk]) }

// restore is for the end of a term whose last batch failed: what that had taken comes first again.
// The next writer looks itself for what is released or purged: by then a ban may have ended.
func (r *rechecks) restore(c class, taken []*policy.Candidate) {
	r.waiting[c] = append(taken, r.waiting[c]...)
	for c := range r.waiting {
		r.waiting[c] = slices.DeleteFunc(r.waiting[c], func(c *policy.Candidate) bool { return c.Lane == proto.LaneRelease })
	}
}
