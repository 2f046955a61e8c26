// Package intake takes in the events that relays bring, for all connections of a process: each
// event is verified once and offered to ingest once, however many relays bring it, and all who have
// brought it hear its verdict. What is stored already is neither. It does not know what was asked
// for: that is package session.
//
// Live events have a queue and a goroutine of their own, so that they do not wait for the past. All
// that waits is bounded in bytes: where there is no room, a connection that brings more waits, and
// reads nothing from its relay meanwhile.
package intake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

var (
	// ErrEnded is the error of Take after the end of Run, and of what was not offered by then: ingest
	// does not have the event by this intake.
	ErrEnded = errors.New("the intake has ended")
	// ErrForged is wrapped by the errors of an event whose id or signature is not right. It was not
	// offered. The relay has not checked it, or has made it up.
	ErrForged = errors.New("not a genuine event")

	errForm      = fmt.Errorf("%w: its id, public key or signature is not lower-case hex of the right length", ErrForged)
	errID        = fmt.Errorf("%w: it has another id", ErrForged)
	errSignature = fmt.Errorf("%w: its signature is wrong", ErrForged)
)

const (
	// recentIDs is how many ids of stored events are remembered, and recentFor for how long: relays
	// that have the same bring it at about the same time, not at the very same. What has left the log
	// since can come again after that.
	recentIDs, recentFor = 1 << 15, 5 * time.Minute
	// liveRoom and pastRoom are the bytes, as they lie in memory, that all connections may have
	// taken in together and not handed on; streamRoom is what one connection may have of either. A
	// larger event waits until it is alone.
	liveRoom, pastRoom, streamRoom = 4 << 20, 8 << 20, 2 << 20
	// leastRoom is what an event counts at least, so that the room bounds how many there are.
	leastRoom = 1 << 10
	// perBatch is how many events are asked about together.
	perBatch = 256
)

// Offerer takes candidates; *candidates.Sender is one.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// Store is asked which events are stored.
type Store interface {
	// Has reports of each id whether an event of it is stored. It asks until it is told, or ctx
	// ends.
	Has(ctx context.Context, ids [][32]byte) ([]bool, error)
}

// Options are what an intake needs.
type Options struct {
	Offerer Offerer
	Stored  Store                   // nil: nothing is asked, and everything is offered
	Signed  func(*nostr.Event) bool // checks a signature whose id is right; nil: nostr.Signed
	// Workers is how many goroutines verify the past; 0: as many as run at once, but for one, and
	// two at least.
	Workers int
	Metrics prometheus.Registerer // nil: what is counted is not shown
	Trace   *obs.Tracer           // nil: nothing is traced
}

// Arrival is an event that has come from a relay.
type Arrival struct {
	Event  *nostr.Event // not verified; not to be changed any more
	Lane   proto.Lane
	Source proto.Source
	Came   time.Time
	// Done is called once, unless the arrival was not taken, from any goroutine. It must not block,
	// nor keep Event alive: others may have brought the same.
	Done func(Result)
}

// Result is how an event ended.
type Result struct {
	// Event is the event as it was brought first. Who waits for the end need not keep a copy.
	Event   *nostr.Event
	Verdict proto.Verdict // none if the event is stored already
	// Known: the event is stored already, or was on its way when it was brought once more. Who
	// brought it first hears the verdict without that.
	Known bool
	// Err says why there is no verdict and will be none; one that wraps [ErrForged]: because the
	// event is not genuine.
	Err error
}

// key is what makes an event and its signature one thing. The signature belongs to it because a
// copy with the right id and a wrong signature must not speak for the good one.
type key struct {
	id  [32]byte
	sig [64]byte
}

// keyOf reads the key of an event whose id is right, so that two with the same key are the same to
// the last byte. The public key is looked at too, because go-nostr writes into an array of 32 bytes
// also what is longer.
func keyOf(ev *nostr.Event) (k key, err error) {
	switch {
	case !nostr.ReadHex(k.id[:], ev.ID) || !nostr.ReadHex(k.sig[:], ev.Sig) || !nostr.IsHex64(ev.PubKey):
		return k, errForm
	case !nostr.HasID(ev):
		return k, errID
	}
	return k, nil
}

// pending is an event that is on its way: from when the first connection brings it until its
// verdict.
type pending struct {
	key     key
	event   *nostr.Event
	offered bool // it is genuine therefore
	urgent  bool // it stands in the queue of live events
	waiters []waiter
}

type waiter struct {
	stream *Stream
	done   func(Result)
}

// entry is an event in a queue.
type entry struct {
	*pending
	relay   string
	lane    proto.Lane
	source  proto.Source
	came    time.Time
	release func() // gives the room back
}

// queue is what was brought and not handed on.
type queue struct {
	room    *limit.Fair
	entries chan entry // has place for all that there is room for
}

func newQueue(room int64) queue {
	return queue{room: limit.NewFair(room, streamRoom), entries: make(chan entry, room/leastRoom)}
}

// Intake is safe for concurrent use.
type Intake struct {
	o          Options
	live, past queue

	mu      sync.Mutex
	over    bool
	pending map[key]*pending
	stored  *lru.Cache[[32]byte, time.Time] // ids, and when each was found

	verified      *prometheus.CounterVec
	copies, known prometheus.Counter
}

// New makes an intake. What is brought before Run waits for it.
func New(o Options) *Intake {
	if o.Signed == nil {
		o.Signed = nostr.Signed
	}
	o.Workers = cmp.Or(o.Workers, max(2, runtime.GOMAXPROCS(0)-1))
	metrics, opts := promauto.With(o.Metrics), func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: "ngit_sync_" + name, Help: help}
	}
	stored, _ := lru.New[[32]byte, time.Time](recentIDs) // it fails for a size below 1 only
	return &Intake{
		stored: stored, o: o, live: newQueue(liveRoom), past: newQueue(pastRoom), pending: map[key]*pending{},
		verified: metrics.NewCounterVec(opts("events_verified_total",
			"Events from relays that were verified, and how: genuine, or with a wrong id or signature."), []string{"result"}),
		copies: metrics.NewCounter(opts("event_copies_total",
			"Events from relays that were on their way from another relay already, and were not verified and offered again.")),
		known: metrics.NewCounter(opts("events_known_total",
			"Events from relays that were found to be accepted already; they were not verified and offered again.")),
	}
}

// Run verifies and offers until ctx ends. Then what is on its way ends with [ErrEnded], unless it
// has been offered: of that the offerer's end is heard. It runs once.
func (i *Intake) Run(ctx context.Context) error {
	var working sync.WaitGroup
	working.Go(func() { i.work(ctx, i.live) })
	for range i.o.Workers {
		working.Go(func() { i.work(ctx, i.past) })
	}
	working.Wait()
	var left []*pending
	i.mu.Lock()
	i.over = true
	for _, p := range i.pending {
		if !p.offered {
			left = append(left, p)
		}
	}
	i.mu.Unlock()
	for _, p := range left {
		i.end(p, Result{Err: ErrEnded})
	}
	return nil
}

// Stream is what one connection to a relay brings.
type Stream struct {
	*Intake
	relay string
}

// Open makes a stream for a connection to a relay, which is named by its normalised URL.
func (i *Intake) Open(relay string) *Stream { return &Stream{i, relay} }

// Known reports whether it was found lately that the event of that id (64 hex digits) is stored, so
// that it need not be taken in.
func (i *Intake) Known(id string) bool {
	var bin [32]byte
	return nostr.ReadHex(bin[:], id) && i.wasStored(bin)
}

func (i *Intake) wasStored(id [32]byte) bool {
	since, _ := i.stored.Peek(id)
	return time.Since(since) < recentFor
}

// Take takes in an event. It blocks while there is no room, until ctx ends, and says whether
// it did. After an error Done is not called; [ErrEnded] is one.
func (s *Stream) Take(ctx context.Context, a Arrival) (waited bool, err error) {
	k, err := keyOf(a.Event)
	if err != nil {
		s.verified.WithLabelValues("id").Inc()
		a.Done(Result{Event: a.Event, Err: err})
		return false, nil
	}
	q, live := s.past, a.Lane == proto.LaneSyncLive
	if live {
		q = s.live
	}
	size := max(leastRoom, min(nostr.Memory(a.Event), streamRoom))
	release, err := q.room.Try(s.relay, size)
	if waited = err != nil; waited {
		if release, err = q.room.AcquireN(ctx, s.relay, size); err != nil {
			return true, err
		}
	}
	queued, ended, err := s.join(k, a, live)
	if queued == nil {
		release()
	} else {
		q.entries <- entry{queued, s.relay, a.Lane, a.Source, a.Came, release}
	}
	if ended {
		a.Done(Result{Event: a.Event, Known: true})
	}
	return waited, err
}

// join has an arrival wait for the end of its event, which must be queued if it is new, or has only
// come as one of the past so far. The arrival ends at once if the event is stored, or if it is live
// and this stream waits already. One of the past hears the verdict: its batch may be another.
func (s *Stream) join(k key, a Arrival, live bool) (queue *pending, ended bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, again := s.pending[k], true
	switch {
	case s.over:
		return nil, false, ErrEnded
	case p == nil && s.wasStored(k.id):
		return nil, true, nil
	case p == nil:
		p, again = &pending{key: k, event: a.Event}, false
		s.pending[k] = p
	default:
		s.copies.Inc()
		ended = live && slices.ContainsFunc(p.waiters, func(w waiter) bool { return w.stream == s })
	}
	if !ended {
		p.waiters = append(p.waiters, waiter{s, a.Done})
	}
	if again && (!live || p.urgent) {
		return nil, ended, nil
	}
	p.urgent = live
	return p, ended, nil
}

// work works off a queue until ctx ends, many events at a time if there are.
func (i *Intake) work(ctx context.Context, q queue) {
	var batch []entry
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-q.entries:
			batch = append(batch[:0], e)
		}
		for len(batch) < perBatch && len(q.entries) > 0 {
			select {
			case e := <-q.entries:
				batch = append(batch, e)
			default: // another worker was faster
			}
		}
		stored := i.ask(ctx, batch)
		for n, e := range batch {
			if ctx.Err() != nil {
				return
			}
			i.decide(ctx, e, stored[n])
			e.release()
			// Without this, others wait until the scheduler cuts in, after 10 ms.
			runtime.Gosched()
		}
		clear(batch)
	}
}

// ask asks which events are stored. Where there is no answer, ingest says so later.
func (i *Intake) ask(ctx context.Context, batch []entry) []bool {
	if i.o.Stored != nil {
		ids := make([][32]byte, len(batch))
		for n, e := range batch {
			ids[n] = e.key.id
		}
		if stored, err := i.o.Stored.Has(ctx, ids); err == nil {
			return stored
		}
	}
	return make([]bool, len(batch))
}

// decide ends an event that is stored or forged, and offers it otherwise. One that also came live
// is offered a second time if its offer as one of the past may still wait.
func (i *Intake) decide(ctx context.Context, e entry, stored bool) {
	p := e.pending
	i.mu.Lock()
	ended, offered := i.pending[p.key] != p, p.offered
	i.mu.Unlock()
	switch {
	case ended || offered && e.lane != proto.LaneSyncLive:
		return
	case stored:
		i.known.Inc()
		i.end(p, Result{Known: true})
		return
	case offered:
	case !i.o.Signed(p.event):
		i.verified.WithLabelValues("signature").Inc()
		i.end(p, Result{Err: errSignature})
		return
	default:
		i.verified.WithLabelValues("genuine").Inc()
	}
	i.mu.Lock()
	p.offered = true
	i.mu.Unlock()
	err := i.o.Offerer.Offer(ctx, candidates.Candidate{
		Event: p.event, Lane: e.lane, Source: e.source, Relay: e.relay, Trace: i.o.Trace.Span("", "receive", p.event, e.came,
			"relay", e.relay),
		Done: func(v proto.Verdict, err error) { i.end(p, Result{Verdict: v, Err: err}) },
	})
	if err != nil {
		i.end(p, Result{Err: err})
	}
}

// end tells all who have brought an event how it ended. Only the first end counts.
func (i *Intake) end(p *pending, r Result) {
	i.mu.Lock()
	if i.pending[p.key] != p {
		i.mu.Unlock()
		return
	}
	delete(i.pending, p.key)
	if r.Known || r.Err == nil && r.Verdict.Outcome == proto.Accepted {
		i.stored.Add(p.key.id, time.Now())
	}
	i.mu.Unlock()
	r.Event = p.event
	for n, w := range p.waiters { // to which no goroutine appends any more
		r.Known = r.Known || n > 0 && r.Err == nil
		w.done(r)
	}
}
