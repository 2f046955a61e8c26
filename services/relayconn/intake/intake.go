// Package intake takes in the events that relays bring, for all connections of a process: each
// event is verified once and offered to ingest once, however many relays bring it, and everybody
// who has brought it hears its verdict. What is stored already is neither.
//
// Live events come before the past, connections take turns, and what one connection brings is
// offered in the order in which it came. All that waits is bounded in bytes: where there is no
// room, whoever brings more waits, and reads nothing from its relay meanwhile.
package intake

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/genuine"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/recent"
)

// ErrEnded: the intake's Run has ended. An event that was on its way then may have been decided or
// not.
var ErrEnded = errors.New("the intake has ended")

// recentIDs is how many ids of stored events are remembered, and recentKeys how many right
// signatures of events that were not stored: relays that have the same bring it at about the same
// time, not at the very same.
const recentIDs, recentKeys = 1 << 15, 1 << 13

// Offerer takes candidates; *candidates.Sender is one.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// Options are what an intake needs.
type Options struct {
	Offerer Offerer
	// Known reports whether an event is stored, by its id, where that can be said at once. Nil: it
	// cannot, and Stored is asked.
	Known func(id string) bool
	// Stored is asked what Known cannot say, about many events at once, while others are brought.
	// Nil: nobody is.
	Stored Store
	// CheckSignature is [CheckSignature] if nil. It is asked only when the id is right.
	CheckSignature func(*nostr.Event) error
	// Workers is how many events are verified at once; 0: as many as run goroutines at once, but
	// for one, and two at least.
	Workers int
	Metrics *Metrics // nil: nothing is counted
}

// Arrival is an event that has come from a relay.
type Arrival struct {
	Event *nostr.Event // not verified; not to be changed any more
	// Raw is the JSON of Event as it came, if it can be stored so (see rawevent.Parse); nil: it has
	// to be encoded anew.
	Raw    []byte
	Lane   proto.Lane
	Source proto.Source
	// Done is called once, unless the arrival was not taken, from any goroutine. It must not block,
	// nor keep Event alive: others may have brought the same.
	Done func(Result)
}

// Result is how an event ended.
type Result struct {
	// Event is the event as it was brought first. Whoever waits for the end need not keep a copy.
	Event   *nostr.Event
	Verdict proto.Verdict
	// Copy: another connection has brought the event before, and hears the same verdict.
	Copy bool
	// Known: the event is stored already, and was not verified.
	Known bool
	// Err says why there is no verdict and will be none; one that wraps [ErrForged]: because the
	// event is not genuine.
	Err error
}

// Intake is safe for concurrent use.
type Intake struct {
	o    Options
	room [classes]*semaphore.Weighted
	life context.Context // of what is being offered
	cut  context.CancelFunc

	mu       sync.Mutex
	over     bool
	lines    lines
	flights  flights
	asks     [classes]asks
	stored   recent.Set[[32]byte]
	signed   recent.Set[key]
	draining sync.WaitGroup
}

// New makes an intake. What is brought before Run waits for it.
func New(o Options) *Intake {
	if o.CheckSignature == nil {
		o.CheckSignature = CheckSignature
	}
	if o.Workers == 0 {
		o.Workers = max(2, runtime.GOMAXPROCS(0)-1)
	}
	if o.Known != nil {
		o.Stored = nil
	} else {
		o.Known = func(string) bool { return false }
	}
	i := &Intake{
		o: o, asks: [classes]asks{newAsks(), newAsks()}, room: [classes]*semaphore.Weighted{live: semaphore.NewWeighted(liveRoom), past: semaphore.NewWeighted(pastRoom)},
		flights: flights{of: map[key]*flight{}, lone: map[*flight]struct{}{}}, stored: recent.New[[32]byte](recentIDs), signed: recent.New[key](recentKeys),
	}
	i.lines.wake.L = &i.mu
	i.life, i.cut = context.WithCancel(context.Background())
	return i
}

// Run verifies and offers until ctx ends. Then what is on its way ends with [ErrEnded], unless it
// has been offered: of that the offerer's end is heard. It runs once.
func (i *Intake) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range i.o.Workers {
		workers.Go(i.work)
	}
	if i.o.Stored != nil {
		for c := range classes {
			workers.Go(func() { i.askAll(c) })
		}
	}
	<-ctx.Done()
	i.mu.Lock()
	i.over = true
	i.lines.wake.Broadcast()
	i.mu.Unlock()
	i.cut()
	workers.Wait()
	i.draining.Wait()
	i.mu.Lock()
	left := slices.DeleteFunc(i.flights.all(), func(f *flight) bool { return f.stage == offered })
	i.mu.Unlock()
	for _, f := range left {
		i.end(f, Result{Err: ErrEnded})
	}
	return nil
}

// Known reports whether the event of that id (64 hex digits) is stored, so that it need not be
// taken in; where others must be asked, whether it was lately. It costs little: about a
// microsecond.
func (i *Intake) Known(id string) bool {
	var bin [32]byte
	if !genuine.ReadHex(bin[:], id) {
		return false
	}
	i.mu.Lock()
	stored := i.stored.Has(bin)
	i.mu.Unlock()
	if stored {
		return true
	}
	if !i.o.Known(id) {
		return false
	}
	i.mu.Lock()
	i.stored.Add(bin)
	i.mu.Unlock()
	return true
}

// Stream is what one connection to a relay brings. One goroutine at a time may use it; what it has
// brought goes on when the connection has ended.
type Stream struct {
	intake *Intake
	queues [classes]*queue
}

// Open makes a stream for a connection to a relay, which is named by its normalised URL.
func (i *Intake) Open(relay string) *Stream {
	s := &Stream{intake: i}
	for c := range classes {
		s.queues[c] = &queue{relay: relay, class: c, room: room{own: semaphore.NewWeighted(streamRoom), all: i.room[c]}}
	}
	return s
}

// Known is that of the intake.
func (s *Stream) Known(id string) bool { return s.intake.Known(id) }

// Take takes in an event. It blocks while there is no room, until ctx ends, and says for how long
// it did. After an error Done is not called; [ErrEnded] is one.
func (s *Stream) Take(ctx context.Context, a Arrival) (waited time.Duration, err error) {
	k, ok := keyOf(a.Event)
	if !ok {
		a.Done(Result{Event: a.Event, Err: errForm})
		return 0, nil
	}
	q := s.queues[classOf(a.Lane)]
	stored, waited, err := s.intake.take(ctx, q, k, a)
	if stored {
		a.Done(Result{Event: a.Event, Verdict: proto.Verdict{ID: a.Event.ID, Kind: a.Event.Kind, Outcome: proto.Duplicate}, Copy: true})
	}
	return waited, err
}

// take puts an arrival into its queue when there is room for it. What it needs may change while it
// waits: less if somebody else brings the event, more if it has ended.
func (i *Intake) take(ctx context.Context, q *queue, k key, a Arrival) (stored bool, waited time.Duration, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var has int64
	for {
		needs := a.size()
		if i.flights.find(k, a.Event) != nil {
			needs = copyRoom
		}
		if more := needs - has; more > 0 && !q.room.tryTake(more) {
			i.mu.Unlock()
			wait, err := q.room.take(ctx, more)
			i.mu.Lock()
			waited += wait
			if err != nil {
				q.room.give(has)
				return false, waited, err
			}
			has = needs
			continue
		}
		stored, err = i.admit(q, k, a, max(has, needs))
		return stored, waited, err
	}
}

// admit puts an arrival for which there is room into its queue, as a flight of its own or as one
// more copy of one. It does neither if the event has been stored since somebody asked for it. The
// lock is held.
func (i *Intake) admit(q *queue, k key, a Arrival, size int64) (stored bool, err error) {
	if i.over {
		q.room.give(size)
		return false, ErrEnded
	}
	f := i.flights.find(k, a.Event)
	if f == nil && i.stored.Has(k.id) {
		q.room.give(size)
		return true, nil
	}
	if f != nil {
		if size > copyRoom {
			q.room.give(size - copyRoom)
		}
		f.waiters = append(f.waiters, waiter{done: a.Done, queue: q, size: copyRoom / 2})
		size = copyRoom / 2
		i.o.Metrics.copied()
	} else {
		first := unchecked
		if i.o.Stored != nil {
			first = unasked
		}
		f = &flight{stage: first, key: k, event: a.Event, raw: a.Raw, signed: i.signed.Has(k), waiters: []waiter{{done: a.Done, queue: q}}}
		i.flights.add(f)
	}
	q.entries = append(q.entries, entry{flight: f, lane: a.Lane, source: a.Source, size: size})
	switch f.stage {
	case unasked:
		i.asks[q.class].add(f)
	case unchecked:
		i.lines.of[q.class].push(q)
		i.lines.wake.Signal()
	}
	i.drainLater(q)
	return false, nil
}

// work checks one flight after the other.
func (i *Intake) work() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.over {
		f := i.lines.next()
		if f == nil {
			i.lines.wake.Wait()
			continue
		}
		f.stage = checking
		i.mu.Unlock()
		// Workers never wait while there is something to check: without this, whoever else has
		// something to do waits until the scheduler cuts in, after 10 ms.
		runtime.Gosched()
		err := i.check(f)
		i.mu.Lock()
		if err != nil {
			i.mu.Unlock()
			i.end(f, Result{Err: err})
			i.mu.Lock()
			continue
		}
		f.stage = checked
		i.moved(f)
	}
}

// check looks whether an event is genuine.
func (i *Intake) check(f *flight) error {
	if !genuine.HasID(f.event) {
		i.o.Metrics.checked("id")
		return errID
	}
	if f.signed {
		return nil
	}
	if err := i.o.CheckSignature(f.event); err != nil {
		i.o.Metrics.checked("signature")
		return err
	}
	i.o.Metrics.checked("genuine")
	return nil
}

// moved goes on with the queues at whose head a flight may stand. The lock is held.
func (i *Intake) moved(f *flight) {
	for _, w := range f.waiters {
		i.drainLater(w.queue)
	}
}

// drainLater goes on with a queue if its head can be handed on. The lock is held.
func (i *Intake) drainLater(q *queue) {
	if q.draining || i.over {
		return
	}
	if q.passOver() == offer {
		q.draining = true
		i.draining.Go(func() { i.drain(q) })
	}
}

// drain offers what is at the head of a queue, as far as it has been checked.
func (i *Intake) drain(q *queue) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.over && q.passOver() == offer {
		i.offer(q)
		q.pop()
	}
	q.draining = false
}

// offer puts the event at the head of a queue to ingest. The lock is held, but not while it blocks
// because too many candidates wait.
func (i *Intake) offer(q *queue) {
	e := q.entries[0]
	f := e.flight
	f.stage, f.urgent = offering, f.urgent || q.class == live
	c := candidates.Candidate{Event: f.event, Raw: f.raw, Lane: e.lane, Source: e.source, Relay: q.relay, Done: func(v proto.Verdict, err error) {
		i.end(f, Result{Verdict: v, Err: err})
	}}
	i.mu.Unlock()
	err := i.o.Offerer.Offer(i.life, c)
	if err != nil {
		i.end(f, Result{Err: err})
	}
	i.mu.Lock()
	if f.stage == offering {
		f.stage = offered
	}
	i.moved(f)
}

// end tells everybody who has brought an event how it ended. Only the first end counts.
func (i *Intake) end(f *flight, r Result) {
	i.mu.Lock()
	if f.stage == ended {
		i.mu.Unlock()
		return
	}
	i.flights.remove(f)
	waiters, verified := f.waiters, f.stage >= checked
	r.Event = f.event
	f.stage, f.waiters, f.event, f.raw = ended, nil, nil, nil
	switch {
	case r.Err != nil:
	case r.Verdict.Outcome == proto.Accepted:
		i.stored.Add(f.key.id)
	case verified:
		i.signed.Add(f.key)
	}
	for _, w := range waiters {
		w.queue.room.give(w.size)
		i.drainLater(w.queue)
	}
	i.mu.Unlock()
	for n, w := range waiters {
		r.Copy = n > 0
		w.done(r)
	}
}
