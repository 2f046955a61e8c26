package writer

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
	"tendril.dev/services/ingest/policy"
)

// park keeps rejected events whole for a short time, in case what they miss arrives.
type park struct {
	duration time.Duration
	metrics  parkMetrics

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
func newPark(duration time.Duration, metrics parkMetrics) *park {
	return &park{duration: duration, metrics: metrics, byID: map[string]*parked{}}
}

// parkMetrics count what is parked and what becomes of it, by type of event.
type parkMetrics struct {
	current               *prometheus.GaugeVec
	hits, misses, expired *prometheus.CounterVec
}

func newParkMetrics(r prometheus.Registerer) parkMetrics {
	with, label := promauto.With(r), []string{"event_type"}
	counter := func(name, help string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: "ngit_sync_rejected_hot_cache_" + name, Help: help}, label)
	}
	m := parkMetrics{
		current: with.NewGaugeVec(prometheus.GaugeOpts{Name: "ngit_sync_rejected_hot_cache_current",
			Help: "Rejected events that are kept whole for a moment, in case what they miss arrives."}, label),
		hits:    counter("hits_total", "Rejected events that were kept whole when what they missed arrived."),
		misses:  counter("misses_total", "Rejected events that were not, and are asked for again."),
		expired: counter("expired_total", "Rejected events that are not kept whole any more: nothing arrived in time."),
	}
	for _, kind := range obs.EventTypes {
		m.current.WithLabelValues(kind)
		for _, c := range []*prometheus.CounterVec{m.hits, m.misses, m.expired} {
			c.WithLabelValues(kind)
		}
	}
	return m
}

// add parks an event. A full park lets its oldest go.
func (p *park) add(c *policy.Candidate, now time.Time) {
	if p.byID[c.Event.ID] != nil {
		return
	}
	p.count++
	c.Parsed = nil // it would take as much again
	e := &parked{c, now.Add(p.duration), p.count}
	p.oldest, p.byID[c.Event.ID], p.memory = append(p.oldest, e), e, p.memory+nostr.Memory(c.Event)
	p.metrics.current.WithLabelValues(obs.EventTypeLabel(c.Event.Kind)).Inc()
	for p.memory > mostParked {
		p.dropOldest()
	}
}

// maxTaken bounds what is taken at once, so that one arrival is never more than a moment's work.
const maxTaken = 1024

// take removes and gives those of some events that are parked, in the order in which they came.
// kindOf tells the kind of one that is not.
func (p *park) take(ids []string, kindOf func(id string) int) (candidates []*policy.Candidate) {
	var taken []*parked
	for _, id := range ids {
		e := p.byID[id]
		if e == nil {
			p.metrics.misses.WithLabelValues(obs.EventTypeLabel(kindOf(id))).Inc()
			continue
		}
		taken = append(taken, e)
		delete(p.byID, id)
	}
	slices.SortFunc(taken, func(a, b *parked) int { return a.n - b.n })
	for i, e := range taken {
		kind := obs.EventTypeLabel(e.candidate.Event.Kind)
		p.metrics.current.WithLabelValues(kind).Dec()
		if i >= maxTaken {
			p.metrics.misses.WithLabelValues(kind).Inc()
			continue
		}
		p.metrics.hits.WithLabelValues(kind).Inc()
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
		kind := obs.EventTypeLabel(e.candidate.Event.Kind)
		p.metrics.expired.WithLabelValues(kind).Inc()
		p.metrics.current.WithLabelValues(kind).Dec()
	}
	p.oldest[0] = nil // the array would keep it
	p.oldest, p.memory = p.oldest[1:], p.memory-nostr.Memory(e.candidate.Event)
}
