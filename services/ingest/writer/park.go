package writer

import (
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/ingest/policy"
)

// park keeps rejected events whole for a short time, in case what they miss arrives.
type park struct {
	duration time.Duration

	byID   map[string]*parked
	oldest []*parked // in order of their end; those taken are still among them
	memory int64     // of oldest
	count  int       // that were ever parked
}

type parked struct {
	candidate *policy.Candidate
	until     time.Time
	n         int // which it was
}

// mostParked bounds what a park takes in memory.
const mostParked = 64 << 20

// newPark makes a park that keeps events for at most that time.
func newPark(duration time.Duration) *park {
	return &park{duration: duration, byID: map[string]*parked{}}
}

// add parks an event. A full park lets its oldest go.
func (p *park) add(c *policy.Candidate, now time.Time) {
	if p.byID[c.Event.ID] != nil {
		return
	}
	p.count++
	e := &parked{c, now.Add(p.duration), p.count}
	p.oldest, p.byID[c.Event.ID], p.memory = append(p.oldest, e), e, p.memory+nostr.Memory(c.Event)
	for p.memory > mostParked {
		p.dropOldest()
	}
}

// maxTaken bounds what is taken at once, so that one arrival is never more than a moment's work.
const maxTaken = 1024

// take removes and gives those of some events that are parked, in the order in which they came.
func (p *park) take(ids []string) (candidates []*policy.Candidate) {
	var taken []*parked
	for _, id := range ids {
		if e := p.byID[id]; e != nil {
			taken = append(taken, e)
			delete(p.byID, id)
		}
	}
	slices.SortFunc(taken, func(a, b *parked) int { return a.n - b.n })
	for _, e := range taken[:min(len(taken), maxTaken)] {
		candidates = append(candidates, e.candidate)
	}
	return candidates
}

// expire lets go of those whose time is over.
func (p *park) expire(now time.Time) {
	for len(p.oldest) > 0 && !now.Before(p.oldest[0].until) {
		p.dropOldest()
	}
}

func (p *park) dropOldest() {
	e := p.oldest[0]
	if id := e.candidate.Event.ID; p.byID[id] == e {
		delete(p.byID, id)
	}
	p.oldest[0] = nil // the array would keep it
	p.oldest, p.memory = p.oldest[1:], p.memory-nostr.Memory(e.candidate.Event)
}
