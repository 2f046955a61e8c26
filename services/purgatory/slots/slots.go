// Package slots shares out a fixed number of slots for processes among classes of work, and within
// a class among clients, so that neither a class nor a client can keep the others waiting.
//
// Each class has slots of its own that no other class can take; what is left over is taken by
// whoever asks. Within a class one client holds at most a quarter of what the class can have, and
// those who wait are served one client after the other.
package slots

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Class is a kind of work.
type Class int

// The classes.
const (
	Work  Class = iota // the worker's own: settling, hunting, look-ups, maintenance
	Look               // listing references for a client (info/refs)
	Fetch              // answering a clone or a fetch
	Push               // taking a push
	classes
)

const (
	// Least is the smallest number of slots that can be shared out.
	Least = 5
	// maxWaiting is how many requests of one client may wait in one class.
	maxWaiting = 32
	// maxWaitingInAll is how many requests of all clients may wait in one class.
	maxWaitingInAll = 1024
)

var (
	// ErrFull is returned where too many requests wait already.
	ErrFull = errors.New("too many git processes at once")
	// ErrShare is returned where too many requests of the same client wait already.
	ErrShare = errors.New("too many git processes at once for one client")
)

// Pool is a number of slots. It is safe for concurrent use.
type Pool struct {
	total   int
	reserve [classes]int // slots that only this class can take
	share   [classes]int // most slots that one client can have of the class

	mu    sync.Mutex
	free  int
	used  [classes]int
	held  map[holder]int
	lines [classes]line
	next  Class // the class that is served first
}

type holder struct {
	class  Class
	client string
}

// New makes a pool of that many slots, at least [Least]. A quarter of them is the worker's own, an
// eighth each is for listing references, for fetches and for pushes; the rest is for all.
func New(total int) *Pool {
	total = max(total, Least)
	p := &Pool{total: total, free: total, held: map[holder]int{}}
	p.reserve = [classes]int{Work: max(2, total/4), Look: max(1, total/8), Fetch: max(1, total/8), Push: max(1, total/8)}
	for class := range classes {
		p.share[class] = max(1, p.limit(class)/4)
	}
	return p
}

// limit is the most slots that a class can have.
func (p *Pool) limit(class Class) int {
	limit := p.total
	for other, reserve := range p.reserve {
		if Class(other) != class {
			limit -= reserve
		}
	}
	return limit
}

// Acquire waits for n slots (1 or 2) of a class, all at once, until ctx ends. client is whose share
// they count towards; work of our own, and that of clients who are not known, has an empty one and
// no share. release must be called once.
//
// The error is ErrShare or ErrFull, where the line of those who wait is full, or the cause of the
// end of ctx.
func (p *Pool) Acquire(ctx context.Context, class Class, client string, n int) (release func(), err error) {
	w := &waiter{n: n, served: make(chan struct{})}
	who := holder{class, client}
	p.mu.Lock()
	if err := p.lines[class].join(class, client, w); err != nil {
		p.mu.Unlock()
		return nil, err
	}
	p.serve()
	p.mu.Unlock()
	select {
	case <-w.served:
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		if !w.granted {
			p.lines[class].leave(client, w)
			p.serve() // it may have stood in the way of another
			return nil, fmt.Errorf("wait for one of %d git processes to end: %w", p.total, context.Cause(ctx))
		}
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free += n
		p.used[class] -= n
		if p.held[who] -= n; p.held[who] == 0 {
			delete(p.held, who)
		}
		p.serve()
	}), nil
}

// Used returns how many slots each class has now.
func (p *Pool) Used(class Class) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used[class]
}

// serve hands out what can be handed out, one to each class in turn.
func (p *Pool) serve() {
	for idle := Class(0); idle < classes; {
		class := p.next
		p.next = (p.next + 1) % classes
		if p.serveOne(class) {
			idle = 0
		} else {
			idle++
		}
	}
}

// serveOne serves the next client of a class whose turn it is.
func (p *Pool) serveOne(class Class) bool {
	line := &p.lines[class]
	for i, client := range line.clients {
		w := line.waiting[client][0]
		who := holder{class, client}
		if client != "" && p.held[who] > 0 && p.held[who]+w.n > p.share[class] {
			continue
		}
		if w.n > p.available(class) {
			return false // those behind it must not overtake it for ever
		}
		line.served(i)
		p.free -= w.n
		p.used[class] += w.n
		p.held[who] += w.n
		w.granted = true
		close(w.served)
		return true
	}
	return false
}

// available is how many slots a class can take now, while the others keep what is theirs alone.
func (p *Pool) available(class Class) int {
	n := p.free
	for other, reserve := range p.reserve {
		if Class(other) != class {
			n -= max(0, reserve-p.used[other])
		}
	}
	return n
}

type waiter struct {
	n       int
	granted bool
	served  chan struct{} // closed when granted
}

// line is who waits in one class.
type line struct {
	clients []string             // who waits, in the order of their turns
	waiting map[string][]*waiter // of each, first come first served
	length  int
}

func (l *line) join(class Class, client string, w *waiter) error {
	if class != Work { // whose requests are bounded by those who make them
		if client != "" && len(l.waiting[client]) >= maxWaiting {
			return ErrShare
		}
		if l.length >= maxWaitingInAll {
			return ErrFull
		}
	}
	if l.waiting == nil {
		l.waiting = map[string][]*waiter{}
	}
	if len(l.waiting[client]) == 0 {
		l.clients = append(l.clients, client)
	}
	l.waiting[client] = append(l.waiting[client], w)
	l.length++
	return nil
}

// served takes the first waiter of the i-th client out, and sends that client to the end.
func (l *line) served(i int) {
	client := l.clients[i]
	l.clients = append(l.clients[:i], l.clients[i+1:]...)
	l.length--
	if rest := l.waiting[client][1:]; len(rest) > 0 {
		l.waiting[client] = rest
		l.clients = append(l.clients, client)
		return
	}
	delete(l.waiting, client)
}

// leave takes out one that does not wait any more.
func (l *line) leave(client string, w *waiter) {
	waiting := l.waiting[client]
	for i := range waiting {
		if waiting[i] == w {
			l.waiting[client] = append(waiting[:i:i], waiting[i+1:]...)
			l.length--
			break
		}
	}
	if len(l.waiting[client]) > 0 {
		return
	}
	delete(l.waiting, client)
	for i := range l.clients {
		if l.clients[i] == client {
			l.clients = append(l.clients[:i], l.clients[i+1:]...)
			break
		}
	}
}
