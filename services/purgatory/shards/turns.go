package shards

import (
	"context"
	"errors"
	"slices"

	"tendril.dev/proto"
)

// ErrCrowded: so many wait for the identifier already that this writer cannot wait too.
var ErrCrowded = errors.New("too many wait to write into this repository")

// Rank is what a writer of an identifier comes for. Where several kinds wait they take turns, so
// that none of them waits for more than one of each other kind, however many there are.
type Rank int

// The ranks.
const (
	Own      Rank = iota // the worker itself, and pushes to served repositories that a state allows
	Newcomer             // pushes to repositories that are not served yet, which a state allows
	Offered              // commits of pull requests whose events are here
	Unknown              // everything else: commits without an event, and what will be refused
	ranks
)

// maxWaiting is how many pushes of a rank wait at one identifier. Those of one identifier must not
// take all the places that a worker has for requests.
const maxWaiting = 64

// maxServed bounds the clients of whom a lock remembers when they had their last turn.
const maxServed = 4096

// lock is that of an identifier. Who waits takes turns: by rank, then whoever had none for longest,
// client by client, then whoever came first. It goes when nobody has it or waits for it.
type lock struct {
	users   int
	taken   bool
	waiting [ranks][]*waiter // in the order in which they came
	last    Rank             // of the last turn
	turn    uint64
	served  map[string]uint64 // client → its last turn, of those since the lock was made
}

// waiter waits for its turn.
type waiter struct {
	client  string // "": the worker itself
	since   uint64 // the turn at which it came
	turn    chan struct{}
	has     bool // its turn has come
	crowded bool // another has taken its place
}

// join takes the lock, then w is nil, or waits for it.
func (l *lock) join(client string, rank Rank) (w *waiter, err error) {
	if !l.taken {
		l.taken = true
		l.serve(client, rank)
		return nil, nil
	}
	if client != "" && len(l.waiting[rank]) >= maxWaiting && !l.makeWay(client, rank) {
		return nil, ErrCrowded
	}
	w = &waiter{client: client, since: l.turn, turn: make(chan struct{})}
	l.waiting[rank] = append(l.waiting[rank], w)
	return w, nil
}

// makeWay takes the latest place of the client that has most, if that is more than client has then.
func (l *lock) makeWay(client string, rank Rank) bool {
	queue, places := l.waiting[rank], map[string]int{}
	latest := -1
	for i, w := range queue {
		places[w.client]++
		if w.client != "" && (latest < 0 || places[w.client] >= places[queue[latest].client]) {
			latest = i
		}
	}
	if latest < 0 || places[queue[latest].client] < places[client]+2 {
		return false
	}
	w := queue[latest]
	l.waiting[rank] = slices.Delete(queue, latest, latest+1)
	w.crowded = true
	close(w.turn)
	return true
}

// serve notes whose turn it is.
func (l *lock) serve(client string, rank Rank) {
	l.turn++
	l.last = rank
	if l.served == nil || len(l.served) >= maxServed {
		l.served = map[string]uint64{}
	}
	l.served[client] = l.turn
}

// lastTurn is when who waits had its last turn. Of whom nothing is known it is as if it had been
// when it came: newcomers do not come before everybody else.
func (l *lock) lastTurn(w *waiter) uint64 {
	if turn, known := l.served[w.client]; known {
		return turn
	}
	return w.since
}

// pass gives the lock to the next one who waits, if anybody does.
func (l *lock) pass() {
	l.taken = false
	for n := range ranks {
		rank := (l.last + 1 + n) % ranks
		queue := l.waiting[rank]
		if len(queue) == 0 {
			continue
		}
		next := 0
		for i, w := range queue {
			if l.lastTurn(w) < l.lastTurn(queue[next]) {
				next = i
			}
		}
		w := queue[next]
		l.waiting[rank] = slices.Delete(queue, next, next+1)
		l.taken, w.has = true, true
		l.serve(w.client, rank)
		close(w.turn)
		return
	}
}

// leave takes somebody out who does not want to wait any more. It reports false where its turn has
// come meanwhile.
func (l *lock) leave(w *waiter, rank Rank) bool {
	if w.has {
		return false
	}
	l.waiting[rank] = slices.DeleteFunc(l.waiting[rank], func(other *waiter) bool { return other == w })
	return true
}

// Write waits until the caller, the worker itself, is the only writer of the identifier. unlock
// must be called when it is done. ErrElsewhere: it may not write.
func (h *Held) Write(ctx context.Context, identifier string) (unlock func(), err error) {
	return h.WriteFor(ctx, identifier, "", func() Rank { return Own })
}

// WriteFor is Write for a push of a client. rank is asked only where somebody else writes at the
// moment. The error is ErrCrowded where too many wait already.
func (h *Held) WriteFor(ctx context.Context, identifier, client string, rank func() Rank) (unlock func(), err error) {
	s, l, err := h.enter(identifier)
	if err != nil {
		return nil, err
	}
	end := func() {
		h.locked(func() { quit(s, l, identifier) })
		s.writers.Done()
	}
	var w *waiter
	as, busy := Unknown, false // Unknown: whoever waits meanwhile comes next, whatever for
	h.locked(func() {
		if busy = l.taken; !busy {
			w, err = l.join(client, as)
		}
	})
	if busy {
		as = rank()
		h.locked(func() { w, err = l.join(client, as) })
	}
	if err != nil {
		end()
		return nil, err
	}
	unlock = func() {
		h.locked(l.pass)
		end()
	}
	if w == nil {
		return unlock, nil
	}
	select {
	case <-w.turn:
		if w.crowded {
			end()
			return nil, ErrCrowded
		}
		return unlock, nil
	case <-ctx.Done():
	}
	var left bool
	h.locked(func() { left = l.leave(w, as) })
	if left {
		end()
	} else {
		unlock()
	}
	return nil, ctx.Err()
}

// enter counts a writer of an identifier, who has the lock or waits for it.
func (h *Held) enter(identifier string) (*shard, *lock, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.shards[proto.ShardOf(identifier)]
	if s == nil || s.closing {
		return nil, nil, ErrElsewhere
	}
	s.writers.Add(1)
	l := s.locks[identifier]
	if l == nil {
		l = &lock{}
		s.locks[identifier] = l
	}
	l.users++
	return s, l, nil
}

func (h *Held) locked(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	do()
}

// quit counts a writer out.
func quit(s *shard, l *lock, identifier string) {
	if l.users--; l.users == 0 {
		delete(s.locks, identifier)
	}
}
