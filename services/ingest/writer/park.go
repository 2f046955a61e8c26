package writer

import (
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

	byKey  map[string][]*parked
	oldest []*parked // in order of their end; those taken are still among them
	count  int
}

type parked struct {
	candidate *policy.Candidate
	missing   []string
	until     time.Time
	gone      bool
}

// NewPark makes a park that keeps at most so many events, each for at most that time.
func NewPark(duration time.Duration, most int) *Park {
	return &Park{duration: duration, most: most, byKey: map[string][]*parked{}}
}

// Add parks an event by what it misses. A full park lets its oldest go.
func (p *Park) Add(c *policy.Candidate, missing []string, now time.Time) {
	for _, key := range missing {
		same := func(o *parked) bool { return o.candidate.Event.ID == c.Event.ID }
		if len(p.byKey[key]) >= maxPerKey || slices.ContainsFunc(p.byKey[key], same) {
			return
		}
	}
	for p.Expire(now); p.count >= p.most && len(p.oldest) > 0; p.oldest = p.oldest[1:] {
		p.remove(p.oldest[0])
	}
	e := &parked{candidate: c, missing: missing, until: now.Add(p.duration)}
	p.oldest, p.count = append(p.oldest, e), p.count+1
	for _, key := range missing {
		p.byKey[key] = append(p.byKey[key], e)
	}
}

// Take removes and gives the events that wait for any of these keys, those of each in the order in
// which they came.
func (p *Park) Take(keys []string, now time.Time) (candidates []*policy.Candidate) {
	p.Expire(now)
	for _, key := range keys {
		for _, e := range slices.Clone(p.byKey[key]) {
			if !e.gone {
				candidates = append(candidates, e.candidate)
			}
			p.remove(e)
		}
	}
	return candidates
}

// Expire lets go of those whose time is over.
func (p *Park) Expire(now time.Time) {
	for len(p.oldest) > 0 && (p.oldest[0].gone || !now.Before(p.oldest[0].until)) {
		p.remove(p.oldest[0])
		p.oldest = p.oldest[1:]
	}
}

func (p *Park) remove(e *parked) {
	if e.gone {
		return
	}
	e.gone, p.count = true, p.count-1
	for _, key := range e.missing {
		p.byKey[key] = slices.DeleteFunc(p.byKey[key], func(o *parked) bool { return o == e })
		if len(p.byKey[key]) == 0 {
			delete(p.byKey, key)
		}
	}
}
