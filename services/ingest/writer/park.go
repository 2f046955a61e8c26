package writer

import (
	"cmp"
	"slices"
	"time"

	"tendril.dev/services/ingest/policy"
)

// maxPerKey bounds how many events wait for one key, so that one arrival is never more than a
// moment's work.
const maxPerKey = 1024

// Park keeps rejected events whole for a short time, by what they miss.
type Park struct {
	duration time.Duration
	most     int

	next   uint64
	byID   map[string]*parked
	byKey  map[string][]*parked
	oldest []*parked // in order of their end; those taken are still among them
}

type parked struct {
	candidate *policy.Candidate
	missing   []string
	number    uint64 // in order of coming
	until     time.Time
}

// NewPark makes a park that keeps at most so many events, each for at most that time.
func NewPark(duration time.Duration, most int) *Park {
	return &Park{duration: duration, most: most, byID: map[string]*parked{}, byKey: map[string][]*parked{}}
}

// Add parks an event by what it misses. An event that is parked already stays as it is, its time
// too. A full park lets its oldest go.
func (p *Park) Add(c *policy.Candidate, missing []string, now time.Time) {
	p.Expire(now)
	crowded := func(key string) bool { return len(p.byKey[key]) >= maxPerKey }
	if p.byID[c.Event.ID] != nil || p.most <= 0 || len(missing) == 0 || slices.ContainsFunc(missing, crowded) {
		return
	}
	for len(p.byID) >= p.most {
		p.removeOldest()
	}
	p.next++
	e := &parked{candidate: c, missing: missing, number: p.next, until: now.Add(p.duration)}
	p.byID[c.Event.ID], p.oldest = e, append(p.oldest, e)
	for _, key := range missing {
		p.byKey[key] = append(p.byKey[key], e)
	}
}

// Take removes and gives the events that wait for any of these keys, in the order in which they
// came.
func (p *Park) Take(keys []string, now time.Time) (candidates []*policy.Candidate) {
	p.Expire(now)
	var taken []*parked
	for _, key := range keys {
		taken = append(taken, p.byKey[key]...)
	}
	slices.SortFunc(taken, func(a, b *parked) int { return cmp.Compare(a.number, b.number) })
	for _, e := range slices.Compact(taken) {
		p.remove(e)
		candidates = append(candidates, e.candidate)
	}
	return candidates
}

// Expire lets go of those whose time is over.
func (p *Park) Expire(now time.Time) {
	for len(p.oldest) > 0 && (p.isGone(p.oldest[0]) || !now.Before(p.oldest[0].until)) {
		p.removeOldest()
	}
}

// Len is how many events are parked.
func (p *Park) Len() int { return len(p.byID) }

func (p *Park) isGone(e *parked) bool { return p.byID[e.candidate.Event.ID] != e }

func (p *Park) removeOldest() {
	e := p.oldest[0]
	p.oldest[0] = nil
	if p.oldest = p.oldest[1:]; !p.isGone(e) {
		p.remove(e)
	}
}

func (p *Park) remove(e *parked) {
	delete(p.byID, e.candidate.Event.ID)
	for _, key := range e.missing {
		p.byKey[key] = slices.DeleteFunc(p.byKey[key], func(o *parked) bool { return o == e })
		if len(p.byKey[key]) == 0 {
			delete(p.byKey, key)
		}
	}
}
