// Package throttle keeps us polite and fair. Polite: so many requests at once and so many in any
// minute to one git server, and a queue of identifiers for each server that is busy.
// Fair: so many requests at once in all, of which no owner of servers,
// no network, no author of announcements and no client has more than a quarter; who had no turn for
// the longest time is next. It is driven by triggers (a request ends, an identifier joins, the
// minute moves on) and never polls.
package throttle

import (
	"net/netip"
	"slices"
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
	AtOnce  int              // requests at once to all servers together
}

// Share says among how many workers the limits of servers are divided, so that they hold for the
// whole deployment, and which of them this one is (from 0).
type Share func() (place, workers int)

// Throttle admits requests. It is safe for concurrent use.
type Throttle struct {
	limits Limits
	share  Share

	mu       sync.Mutex
	domains  map[string]*domain
	parties  parties
	networks networks
	running  int
	joined   uint64 // entries that ever joined a queue
	closed   bool
	serving  sync.WaitGroup
}

// domain is one server. It is forgotten when nothing of the last minute concerns it.
type domain struct {
	name     string
	owner    string
	inFlight int
	recent   []time.Time // requests begun within the window, oldest first
	queue    []*waiting  // in the order in which they joined
	timer    *time.Timer
}

// waiting is an identifier in a server's queue.
type waiting struct {
	identifier string
	holders    holders
	joined     uint64
	serve      func(*Turn)
}

// Who is on whose behalf a server is asked: who named it, and the client that submitted that, if it
// came through the front door. Keys cost nothing, so that authors alone would be no bound.
type Who struct{ Author, Client string }

// New makes a throttle.
func New(l Limits, share Share) *Throttle {
	return &Throttle{limits: l, share: share, domains: map[string]*domain{}, parties: parties{by: map[string]*party{}}}
}

// Close stops serving queues, and waits for those whose turn it is.
func (t *Throttle) Close() {
	defer t.serving.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, d := range t.domains {
		d.queue = nil
		if d.timer != nil {
			d.timer.Stop()
		}
	}
}

// Try admits a request to a server, on behalf of those who named it, if it may be made now and
// nobody waits for that server. The turn must be ended when the request has.
func (t *Throttle) Try(name string, who Who) (turn *Turn, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, m := t.domain(name), t.moment()
	defer t.forget(d)
	if len(d.queue) > 0 || t.running >= t.limits.AtOnce || !t.free(d, m) {
		return nil, false
	}
	h := t.holders(d, who, m.now)
	defer h.leave()
	if !h.below(t.most()) {
		return nil, false
	}
	return t.admit(d, h, m), true
}

// Join puts an identifier into a server's queue. serve is called once, in a goroutine of its own,
// when its turn has come, and must end the turn. One that is queued already keeps its place.
func (t *Throttle) Join(name, identifier string, who Who, serve func(*Turn)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	d, m := t.domain(name), t.moment()
	at := -1
	for i, w := range d.queue {
		if w.identifier == identifier {
			at = i
		}
	}
	if at < 0 {
		t.joined++
		at = len(d.queue)
		d.queue = append(d.queue, &waiting{identifier: identifier, joined: t.joined})
	}
	w := d.queue[at]
	w.holders.leave()
	w.holders, w.serve = t.holders(d, who, m.now), serve
	t.advance(m, d)
	t.wakeLater(d, m)
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
		d = &domain{name: name, owner: ownerOf(name)}
		t.domains[name] = d
	}
	return d
}

// holders are the parties of a request: who has the server, the network where it was found the last
// time, and on whose behalf it is made. They must be left again.
func (t *Throttle) holders(d *domain, who Who, now time.Time) holders {
	h := holders{all: []*party{t.parties.of("server "+d.owner, now)}}
	if network, known := t.networks.of(d.name); known && network != d.owner {
		h.all = append(h.all, t.parties.of("server "+network, now))
	}
	if who.Author != "" {
		h.author = t.parties.of("author "+who.Author, now)
		h.all = append(h.all, h.author)
	}
	if who.Client != "" {
		h.client = t.parties.of("client "+who.Client, now)
		h.all = append(h.all, h.client)
	}
	return h
}

// most is how many requests at once one party may have.
func (t *Throttle) most() int { return max(1, t.limits.AtOnce/shareOf) }

// Turn is a request that may be made.
type Turn struct {
	throttle *Throttle
	domain   *domain
	holders  holders
	over     bool
}

// End says that the request has ended. It may be called again.
func (turn *Turn) End() {
	t := turn.throttle
	t.mu.Lock()
	defer t.mu.Unlock()
	if turn.over {
		return
	}
	turn.over = true
	m := t.moment()
	turn.domain.inFlight--
	t.running--
	turn.holders.end(m.now)
	t.advance(m, nil)
	t.wakeLater(turn.domain, m)
}

// Reached says at which address the server of the request was found. It reports whether the request
// may go on: not if others to the same network have its share already, for any number of names lead
// to one address. That is known the next time.
func (turn *Turn) Reached(addr netip.Addr) bool {
	t, network := turn.throttle, networkOf(addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	if turn.over {
		return true
	}
	t.networks.note(turn.domain.name, network)
	now := time.Now()
	joins := holders{all: []*party{t.parties.of("server "+network, now)}}
	defer joins.leave()
	switch {
	case slices.Contains(turn.holders.all, joins.all[0]):
		return true
	case !joins.below(t.most()):
		return false
	}
	joins.begin(now)
	turn.holders.all = append(turn.holders.all, joins.all...)
	return true
}

// maxNetworks bounds the servers of which it is remembered where they are.
const maxNetworks = 10_000

// networks is where servers were found the last time.
type networks struct{ by map[string]string }

func (n *networks) of(domain string) (network string, known bool) {
	network, known = n.by[domain]
	return network, known
}

func (n *networks) note(domain, network string) {
	if _, known := n.by[domain]; n.by == nil || !known && len(n.by) >= maxNetworks {
		n.by = map[string]string{}
	}
	n.by[domain] = network
}
