package hunt

import (
	"time"

	"tendril.dev/services/purgatory/ordered"
)

const (
	// quarter is the part of all slots that one author, or one domain, may have, and that is left to
	// strangers, however much served owners want; eighth is left to these owners.
	quarter, eighth = 4, 8
	// servedInARow is after how many requests of a host for owners who are served a stranger's comes.
	servedInARow = 3
	// manyHosts is how many hosts are kept before the one idle for the longest time is forgotten.
	manyHosts = 4 * 4096
)

// class is who pays for a search: an owner who is served, or a stranger.
type class int

const (
	stranger class = iota
	served
	classes
)

// schedule chooses the next request. Each host has a line of (host, author) pairs for each class,
// and each pair has tickets. Of the hosts that may be asked, the host that was asked the longest
// time ago is next; of its authors, the author who waits for the longest time; and of the author's
// tickets the oldest. Hosts that may not be asked yet sleep, in order of their time. So the work of
// one choice does not grow with what waits.
//
// An author, or a domain, that has its quarter of the slots is a full gate: a pair that meets a
// full gate is parked there, and one parked pair comes back for each slot that becomes free.
//
// It knows no clock and is not safe for concurrent use.
type schedule struct {
	limits  Limits
	part    share
	hosts   map[string]*host
	authors map[string]*gate
	domains map[string]*gate

	ready   [classes]ordered.Heap[*line] // of hosts that may be asked
	asleep  ordered.Heap[*host]
	waking  []*gate // that have room again
	idle    []*host // that may be forgotten, in order
	running [classes]int
	inARow  int    // requests for owners who are served since the last for a stranger
	turn    uint64 // grows with everything that begins to wait or run
}

// line is the pairs that wait for a host.
type line struct {
	host    *host
	class   class
	pairs   map[string]*pair // by author, also those that are parked
	waiting ordered.Heap[*pair]
	index   int
}

func (l *line) Before(other *line) bool {
	if l.host.turn != other.host.turn {
		return l.host.turn < other.host.turn
	}
	mine, _ := l.waiting.First()
	others, _ := other.waiting.First()
	return mine != nil && others != nil && mine.since < others.since
}
func (l *line) Place() *int { return &l.index }

// pair is what one author wants of one host.
type pair struct {
	line    *line
	author  *gate
	tickets ordered.Heap[*ticket]
	parked  *gate
	since   uint64 // its key in the line: see waits
	index   int
}

func (p *pair) Before(other *pair) bool { return p.since < other.since }
func (p *pair) Place() *int             { return &p.index }

// waits is since when the pair waits: since its oldest ticket came, or its author's last request.
func (p *pair) waits() uint64 {
	if first, ok := p.tickets.First(); ok {
		return max(p.author.turn, first.since)
	}
	return p.author.turn
}

// gate is an author, or a domain, that has a quarter of the slots at most.
type gate struct {
	name    string
	in      map[string]*gate // authors or domains
	running int
	pairs   int
	turn    uint64 // of its last request
	parked  []*pair
	wakes   int // how many parked pairs come back
}

// ticket is the URLs of one host and author that a search has not asked yet.
type ticket struct {
	search   *search
	pair     *pair
	requests []request
	since    uint64
	index    int
	retries  int
}

func (t *ticket) Before(other *ticket) bool { return t.since < other.since }
func (t *ticket) Place() *int               { return &t.index }

func newSchedule(limits Limits) *schedule {
	return &schedule{limits: limits, hosts: map[string]*host{}, authors: map[string]*gate{}, domains: map[string]*gate{}}
}

// atGate is how many requests one author may have at once, or one domain.
func (s *schedule) atGate() int { return max(1, s.limits.AtOnce/quarter) }

func (s *schedule) hasRoom(c class) bool {
	all := s.limits.AtOnce
	most := [classes]int{stranger: all - all/eighth, served: all - all/quarter}
	return s.running[stranger]+s.running[served] < all && s.running[c] < most[c]
}

// host finds a host.
func (s *schedule) host(name string, now time.Time) *host {
	if h := s.hosts[name]; h != nil {
		return h
	}
	for range min(len(s.idle), max(0, len(s.hosts)+3-manyHosts), 3) {
		old := s.idle[0]
		s.idle = s.idle[1:]
		if old.idle = false; old.forgettable(now) {
			delete(s.hosts, old.name)
		} else {
			s.mayForget(old)
		}
	}
	limit, known := s.limits.Hosts[name]
	if !known {
		limit = s.limits.Default
	}
	// A host alone must not fill its domain's gate: what waits there keeps no order.
	limit.Concurrent = min(limit.Concurrent, s.atGate())
	h := &host{name: name, limit: limit}
	for c := range h.lines {
		h.lines[c] = line{host: h, class: class(c), pairs: map[string]*pair{}}
	}
	s.hosts[name] = h
	s.mayForget(h)
	return h
}

// mayForget puts a host that nothing waits for among those that may be forgotten.
func (s *schedule) mayForget(h *host) {
	if !h.idle && len(h.lines[stranger].pairs)+len(h.lines[served].pairs) == 0 {
		h.idle = true
		s.idle = append(s.idle, h)
	}
}

func gateOf(in map[string]*gate, name string) *gate {
	if in[name] == nil {
		in[name] = &gate{name: name, in: in}
	}
	return in[name]
}

// leaveIfUnused forgets a gate that nothing waits at. Who comes again waits since then.
func (g *gate) leaveIfUnused() {
	if g.pairs == 0 && g.running == 0 {
		delete(g.in, g.name)
	}
}

// add lets a request wait for its turn. A search has one ticket for each host and author.
func (s *schedule) add(one *search, r request, now time.Time) (isNew bool) {
	h := s.host(r.host, now)
	for _, t := range one.tickets {
		if t.pair.line.host.name == h.name && t.pair.author.name == r.source.Author {
			t.requests = append(t.requests, r)
			return false
		}
	}
	s.turn++
	t := &ticket{search: one, requests: []request{r}, since: s.turn, pair: s.pair(h, one.class(), r.source.Author)}
	one.tickets = append(one.tickets, t)
	s.enqueue(t, now)
	return true
}

// pair finds a pair, and counts it for its gates if it is new.
func (s *schedule) pair(h *host, c class, author string) *pair {
	l := &h.lines[c]
	p := l.pairs[author]
	if p == nil {
		if h.domain == nil || s.domains[h.domain.name] != h.domain {
			h.domain = gateOf(s.domains, domainOf(h.name))
		}
		p = &pair{line: l, author: gateOf(s.authors, author)}
		p.author.pairs++
		h.domain.pairs++
		l.pairs[author] = p
	}
	return p
}

// enqueue puts a ticket into its line. While its search is busy it waits aside.
func (s *schedule) enqueue(t *ticket, now time.Time) {
	if t.search.isBusy() || t.index > 0 {
		return
	}
	t.pair = s.pair(s.host(t.pair.line.host.name, now), t.search.class(), t.pair.author.name)
	t.pair.tickets.Put(t)
	s.line(t.pair, now)
}

// line puts a pair where it belongs.
func (s *schedule) line(p *pair, now time.Time) {
	if _, any := p.tickets.First(); p.parked == nil {
		if any {
			p.since = p.waits()
			p.line.waiting.Put(p)
		} else {
			p.line.waiting.Remove(p)
			s.forget(p)
		}
	}
	s.settle(p.line.host, now)
}

// forget drops a pair without tickets that is in no heap.
func (s *schedule) forget(p *pair) {
	h := p.line.host
	if p.line.pairs[p.author.name] != p {
		return
	}
	delete(p.line.pairs, p.author.name)
	for _, g := range []*gate{p.author, h.domain} {
		g.pairs--
		g.leaveIfUnused()
	}
	s.mayForget(h)
}

// settle puts a host among those that may be asked, or among those that sleep.
func (s *schedule) settle(h *host, now time.Time) {
	ok, at := h.mayBeAsked(s.part, now)
	waits := false
	for c := range h.lines {
		l := &h.lines[c]
		_, any := l.waiting.First()
		waits = waits || any
		if ok && any {
			s.ready[c].Put(l)
		} else {
			s.ready[c].Remove(l)
		}
	}
	if h.wakes = at; waits && !at.IsZero() {
		s.asleep.Put(h)
	} else {
		s.asleep.Remove(h)
	}
}

// leave takes a ticket out that is not asked now. If its pair had come back from a gate, another
// pair comes instead.
func (s *schedule) leave(t *ticket, now time.Time) {
	s.take(t, now)
	for _, g := range []*gate{t.pair.author, t.pair.line.host.domain} {
		s.open(g, 1)
	}
}

func (s *schedule) take(t *ticket, now time.Time) {
	t.pair.tickets.Remove(t)
	s.line(t.pair, now)
}

// open lets so many pairs come back that are parked at a gate, as far as it has room.
func (s *schedule) open(g *gate, pairs int) {
	if pairs = min(pairs, s.atGate()-g.running); len(g.parked) == 0 || pairs <= 0 {
		return
	}
	if g.wakes == 0 {
		s.waking = append(s.waking, g)
	}
	g.wakes = max(g.wakes, pairs)
}

// next makes one step: it returns the ticket that is next with its request, or it moves something
// that stands in the way. more is false if nothing can be asked now.
func (s *schedule) next(now time.Time) (next *ticket, r request, more bool) {
	if h, any := s.asleep.First(); any && !h.wakes.After(now) {
		s.settle(h, now)
		return nil, r, true
	}
	if len(s.waking) > 0 {
		s.wake(now)
		return nil, r, true
	}
	l := s.nextLine()
	if l == nil {
		return nil, r, false
	}
	p, _ := l.waiting.First()
	switch full := s.fullGate(p); {
	case p.since != p.waits(): // its author had a request elsewhere
		s.line(p, now)
		return nil, r, true
	case full != nil:
		l.waiting.Remove(p)
		p.parked, full.parked = full, append(full.parked, p)
		s.settle(l.host, now)
		return nil, r, true
	}
	t, _ := p.tickets.First()
	if t.search.isBusy() { // it comes back when that has ended
		s.leave(t, now)
		return nil, r, true
	}
	t = s.inOrder(t)
	s.take(t, now)
	r, t.requests = t.requests[0], t.requests[1:]
	return t, r, true
}

// inOrder is the first ticket of a search that is next at its host too: what a search names first
// is asked first, where no other waits longer for it.
func (s *schedule) inOrder(t *ticket) *ticket {
	for _, other := range t.search.tickets {
		p := other.pair
		if other == t || p.line.index == 0 {
			continue
		}
		next, _ := p.line.waiting.First()
		if first, _ := p.tickets.First(); next == p && first == other && other.since < t.since && s.fullGate(p) == nil {
			return other
		}
	}
	return t
}

// nextLine is the line of the host that is next: one for owners who are served, if there is any,
// but after servedInARow of these one for strangers, at each host and over all.
func (s *schedule) nextLine() *line {
	first := func(c class) *line {
		l, any := s.ready[c].First()
		if !any || !s.hasRoom(c) {
			return nil
		}
		return l
	}
	owners, strangers := first(served), first(stranger)
	if owners == nil || strangers != nil && s.inARow >= servedInARow {
		return strangers
	}
	if here := &owners.host.lines[stranger]; here.index > 0 && strangers != nil && owners.host.inARow >= servedInARow {
		return here
	}
	return owners
}

// fullGate is the gate that a pair may not pass now.
func (s *schedule) fullGate(p *pair) *gate {
	most := s.atGate()
	switch {
	case p.author.running >= most:
		return p.author
	case p.line.host.domain.running >= most:
		return p.line.host.domain
	}
	return nil
}

// wake lets one parked pair come back. If its host cannot be asked now, it waits there, and another
// comes too.
func (s *schedule) wake(now time.Time) {
	g := s.waking[0]
	if g.wakes <= 0 || len(g.parked) == 0 {
		g.wakes = 0
		s.waking = s.waking[1:]
		return
	}
	p := g.parked[0]
	g.parked, p.parked = g.parked[1:], nil
	if s.line(p, now); p.index > 0 && p.line.index > 0 {
		g.wakes--
	}
}

// begin counts the beginning of a request of a ticket.
func (s *schedule) begin(t *ticket, now time.Time) {
	h, c := t.pair.line.host, t.pair.line.class
	s.turn++
	s.running[c]++
	h.running++
	h.turn, h.recent = s.turn, append(h.recent, now)
	// A pair that lost its last ticket is forgotten, and its gates perhaps with it.
	t.pair = s.pair(h, c, t.pair.author.name)
	for _, g := range []*gate{t.pair.author, h.domain} {
		g.running++
		g.turn = s.turn
	}
	s.inARow++
	h.inARow++
	if c == stranger {
		s.inARow, h.inARow = 0, 0
	}
	s.line(t.pair, now)
}

// end counts the end of a request.
func (s *schedule) end(h *host, c class, author *gate, now time.Time) {
	s.running[c]--
	h.running--
	for _, g := range []*gate{author, h.domain} {
		g.running--
		s.open(g, s.limits.AtOnce)
		g.leaveIfUnused()
	}
	s.settle(h, now)
}
