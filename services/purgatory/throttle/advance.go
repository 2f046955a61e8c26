package throttle

import (
	"cmp"
	"slices"
	"time"
)

// moment is the time and our part of the limits at that time.
type moment struct {
	now            time.Time
	place, workers int
}

func (t *Throttle) moment() moment {
	place, workers := t.share()
	return moment{time.Now(), place, workers}
}

// limit is this worker's part of a server's limit at this time.
func (t *Throttle) limit(name string, m moment) Limit {
	l, ok := t.limits.Domains[name]
	if !ok {
		l = t.limits.Default
	}
	turn := (m.place + int(m.now.Unix()/int64(window/time.Second))) % max(1, m.workers)
	return Limit{part(l.Concurrent, turn, m.workers), part(l.Rate, turn, m.workers)}
}

// part is what one of several workers has of a limit. Where there are more workers than it allows
// requests, so many at a time as it allows have one, and with every minute others.
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

// free reports whether the limits of a server let one more request begin.
func (t *Throttle) free(d *domain, m moment) bool {
	for len(d.recent) > 0 && m.now.Sub(d.recent[0]) >= window {
		d.recent = d.recent[1:]
	}
	l := t.limit(d.name, m)
	return d.inFlight < l.Concurrent && len(d.recent) < l.Rate
}

// admit counts a request that begins. t.mu is held.
func (t *Throttle) admit(d *domain, h holders, m moment) *Turn {
	d.inFlight++
	d.recent = append(d.recent, m.now)
	t.running++
	h.begin(m.now)
	return &Turn{throttle: t, domain: d, holders: h}
}

// advance serves the queues, or that of only one server, as far as limits and shares let. t.mu is
// held.
func (t *Throttle) advance(m moment, only *domain) {
	for t.running < t.limits.AtOnce && !t.closed {
		d, at := t.next(m, only)
		if d == nil {
			return
		}
		w := d.queue[at]
		d.queue = slices.Delete(d.queue, at, at+1)
		turn := t.admit(d, w.holders, m)
		w.holders.leave()
		t.wakeLater(d, m)
		t.serving.Go(func() { w.serve(turn) })
	}
}

// next finds whose turn it is: of all whose servers are free and whose parties have less than their
// share, who had no turn for the longest time.
func (t *Throttle) next(m moment, only *domain) (best *domain, at int) {
	var rank rank
	consider := func(d *domain) {
		if len(d.queue) == 0 || !t.free(d, m) {
			return
		}
		for i, w := range d.queue {
			if !w.holders.below(t.most()) {
				continue
			}
			if r := rankOf(w); best == nil || r.before(rank) {
				best, at, rank = d, i, r
			}
		}
	}
	if only != nil {
		consider(only)
		return best, at
	}
	for _, d := range t.domains {
		consider(d)
	}
	return best, at
}

// rank is the place of an entry among those that wait.
type rank struct {
	last   time.Time // turn of any of its parties
	sender time.Time // turn of its client, or of its author where it has no client
	author time.Time // turn of its author
	joined uint64
}

func rankOf(w *waiting) rank {
	r := rank{last: w.holders.last(), joined: w.joined}
	if author := w.holders.author; author != nil {
		r.author, r.sender = author.last, author.last
	}
	if client := w.holders.client; client != nil {
		r.sender = client.last
	}
	return r
}

func (r rank) before(o rank) bool {
	c := cmp.Or(r.last.Compare(o.last), r.sender.Compare(o.sender), r.author.Compare(o.author),
		cmp.Compare(r.joined, o.joined))
	return c < 0
}

// wakeLater sees to it that somebody comes back to a server when its window moves on. t.mu is held.
func (t *Throttle) wakeLater(d *domain, m moment) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	at := d.next(m.now)
	if at.IsZero() || t.closed {
		return
	}
	d.timer = time.AfterFunc(at.Sub(m.now), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		m := t.moment()
		if t.free(d, m); t.forget(d) {
			return
		}
		t.advance(m, d)
		t.wakeLater(d, m)
	})
}

// forget forgets a server that nothing concerns.
func (t *Throttle) forget(d *domain) bool {
	idle := len(d.recent) == 0 && d.inFlight == 0 && len(d.queue) == 0
	if idle && t.domains[d.name] == d {
		delete(t.domains, d.name)
	}
	return idle
}

// next is when to look at a server again though nothing happens: when its oldest request leaves the
// window, with nobody waiting too, so that the server is forgotten; and while somebody waits at the
// turn of the minute, when it may be this worker's turn. Zero: never.
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
