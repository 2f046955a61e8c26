// Package throttle keeps us polite: so many requests at once and so many in any minute to one git server, and a queue of identifiers for each server
// that is busy, served round-robin (spec/purgatory.md, Path 2). It is driven by triggers — a request ends, an identifier joins, the minute moves on
// — and never polls.
package throttle

import (
	"net/url"
	"strings"
	"sync"
	"time"
)

// window is the time that rate limits speak of.
const window = time.Minute

// Limit is what one server is asked at most.
type Limit struct {
	Concurrent int // requests at once
	Rate       int // requests in any 60 seconds
}

// Limits are the limits of all servers.
type Limits struct {
	Default Limit
	Domains map[string]Limit // overrides, by Domain
}

// Domain is the server behind a URL: its host, with the port if the URL has one.
func Domain(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// Share says among how many workers the limits are divided, so that they hold for the whole deployment, and which of them this one is (from 0).
type Share func() (place, workers int)

// Throttle admits requests. It is safe for concurrent use.
type Throttle struct {
	limits Limits
	share  Share

	mu      sync.Mutex
	domains map[string]*domain
	closed  bool
	serving sync.WaitGroup
}

// domain is one server. It is forgotten when nothing of the last minute concerns it.
type domain struct {
	inFlight int
	recent   []time.Time // requests begun within the window, oldest first
	queue    []string    // identifiers, next first
	serve    map[string]func(release func())
	timer    *time.Timer
}

// New makes a throttle.
func New(l Limits, share Share) *Throttle {
	return &Throttle{limits: l, share: share, domains: map[string]*domain{}}
}

// Close stops serving queues, and waits for those whose turn it is.
func (t *Throttle) Close() {
	defer t.serving.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, d := range t.domains {
		d.queue, d.serve = nil, nil
		if d.timer != nil {
			d.timer.Stop()
		}
	}
}

// Try admits a request to a server if it may be made now and nobody waits for it. release must be called when the request has ended.
func (t *Throttle) Try(name string) (release func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.domain(name)
	now := time.Now()
	if len(d.queue) > 0 || !t.free(name, d, now) {
		return nil, false
	}
	return t.admit(name, d, now), true
}

// Join puts an identifier into a server's queue; serve is called once, in a goroutine of its own, when its turn has come. One that is queued already
// keeps its place.
func (t *Throttle) Join(name, identifier string, serve func(release func())) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	d := t.domain(name)
	if d.serve == nil {
		d.serve = map[string]func(func()){}
	}
	if _, queued := d.serve[identifier]; !queued {
		d.queue = append(d.queue, identifier)
	}
	d.serve[identifier] = serve
	t.advance(name, d)
}

// InFlight tells the requests under way, by server.
func (t *Throttle) InFlight() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := map[string]int{}
	for name, d := range t.domains {
		if d.inFlight > 0 {
			n[name] = d.inFlight
		}
	}
	return n
}

func (t *Throttle) domain(name string) *domain {
	d := t.domains[name]
	if d == nil {
		d = &domain{}
		t.domains[name] = d
	}
	return d
}

// limit is this worker's part of a server's limit at this time.
func (t *Throttle) limit(name string, now time.Time) Limit {
	l, ok := t.limits.Domains[name]
	if !ok {
		l = t.limits.Default
	}
	place, workers := t.share()
	turn := (place + int(now.Unix()/int64(window/time.Second))) % max(1, workers)
	return Limit{part(l.Concurrent, turn, workers), part(l.Rate, turn, workers)}
}

// part is what one of several workers has of a limit. Where there are more workers than it allows requests, so many at a time as it allows have
// one, and with every minute others.
func part(limit, turn, workers int) int {
	switch {
	case workers <= 1:
		return limit
	case limit >= workers:
		return limit / workers
	case turn < limit:
		return 1
	}
	return 0
}

func (t *Throttle) free(name string, d *domain, now time.Time) bool {
	for len(d.recent) > 0 && now.Sub(d.recent[0]) >= window {
		d.recent = d.recent[1:]
	}
	l := t.limit(name, now)
	return d.inFlight < l.Concurrent && len(d.recent) < l.Rate
}

// admit counts a request that begins. t.mu is held.
func (t *Throttle) admit(name string, d *domain, now time.Time) (release func()) {
	d.inFlight++
	d.recent = append(d.recent, now)
	var once sync.Once
	return func() {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			d.inFlight--
			t.advance(name, d)
		})
	}
}

// advance serves the queue as far as the limits let, and sees to it that somebody comes back when the window moves on. t.mu is held.
func (t *Throttle) advance(name string, d *domain) {
	now := time.Now()
	for len(d.queue) > 0 && !t.closed && t.free(name, d, now) {
		identifier := d.queue[0]
		d.queue = d.queue[1:]
		serve := d.serve[identifier]
		delete(d.serve, identifier)
		release := t.admit(name, d, now)
		t.serving.Go(func() { serve(release) })
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if at := d.next(now); !at.IsZero() && !t.closed {
		d.timer = time.AfterFunc(at.Sub(now), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.free(name, d, time.Now())
			if len(d.recent) == 0 && d.inFlight == 0 && len(d.queue) == 0 {
				if t.domains[name] == d {
					delete(t.domains, name)
				}
				return
			}
			t.advance(name, d)
		})
	}
}

// next is when to look at a server again though nothing happens: when its oldest request leaves the window, with nobody waiting too, so that the server
// is forgotten; and while somebody waits at the turn of the minute, when it may be this worker's turn. Zero: never.
func (d *domain) next(now time.Time) (at time.Time) {
	if len(d.recent) > 0 {
		at = d.recent[0].Add(window)
	}
	if len(d.queue) > 0 {
		if turn := now.Truncate(window).Add(window); at.IsZero() || turn.Before(at) {
			at = turn
		}
	}
	return at
}
