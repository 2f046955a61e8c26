// Package intake takes in the events that relays bring, for all connections of a process: each
// event is verified once and offered to ingest once, however many relays bring it, and all who have
// brought it hear its verdict. What is stored already is neither.
//
// What one connection brings stands in its own two queues, live and past, each of which one
// goroutine works off in order: is it known, is it genuine, offer. Live events do not wait for the
// past. All that waits is bounded in bytes: where there is no room, who brings more waits, and
// reads nothing from its relay meanwhile.
package intake

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// ErrEnded: the intake's Run has ended. An event that was on its way then may have been decided or
// not.
var ErrEnded = errors.New("the intake has ended")

const (
	// recentIDs is how many ids of stored events are remembered: relays that have the same bring it
	// at about the same time, not at the very same.
	recentIDs = 1 << 15
	// liveRoom and pastRoom are the bytes, as they lie in memory, that all connections may have
	// taken in together and not handed on; streamRoom is what one connection may have of either. A
	// larger event waits until it is alone.
	liveRoom, pastRoom, streamRoom = 4 << 20, 8 << 20, 2 << 20
	// copyRoom is about what an event takes that another connection has brought before.
	copyRoom = 1024
	// perBatch is how many events of a connection are prepared together, and asksAtOnce how many
	// questions what is stored are under way at once.
	perBatch, asksAtOnce = 256, 4
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
	// Stored is asked about many events at once. Nil: nothing is asked.
	Stored Store
	// CheckSignature is [CheckSignature] if nil. It is asked only when the id is right.
	CheckSignature func(*nostr.Event) error
	// Workers is how many events are verified at once; 0: as many as run goroutines at once, but
	// for one, and two at least.
	Workers int
	Metrics prometheus.Registerer // nil: what is counted is not shown
}

// Arrival is an event that has come from a relay.
type Arrival struct {
	Event  *nostr.Event // not verified; not to be changed any more
	Lane   proto.Lane
	Source proto.Source
	// Done is called once, unless the arrival was not taken, from any goroutine. It must not block,
	// nor keep Event alive: others may have brought the same.
	Done func(Result)
}

// Result is how an event ended.
type Result struct {
	// Event is the event as it was brought first. Who waits for the end need not keep a copy.
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

// class tells live events from those of the past.
type class int

const (
	live class = iota
	past
	classes
)

// pending is an event that is on its way: from when the first connection brings it until its
// verdict.
type pending struct {
	key     key
	event   *nostr.Event
	checked sync.Once
	forged  error // valid after checked
	stored  bool  // which another process has said
	asked   bool
	// offered and urgent: a connection offers it, or has; as live.
	offered, urgent, ended bool
	waiters                []func(Result)
}

// entry is an event in a queue. The same pending may stand in those of several connections.
type entry struct {
	*pending
	release func() // gives the room back
	lane    proto.Lane
	source  proto.Source
}

// queue is what one connection has brought of one class and was not handed on.
type queue struct {
	relay   string
	class   class
	entries []entry // in the order in which they came
	working bool    // a goroutine works them off
}

// Intake is safe for concurrent use.
type Intake struct {
	o       Options
	room    [classes]*limit.Fair
	asks    [classes]chan struct{}
	workers chan struct{}
	begun   chan struct{}
	life    context.Context // of what is being offered
	cut     context.CancelFunc

	mu      sync.Mutex
	over    bool
	pending map[key]*pending
	stored  recent
	working sync.WaitGroup

	verified      *prometheus.CounterVec
	copies, known prometheus.Counter
}

// New makes an intake. What is brought before Run waits for it.
func New(o Options) *Intake {
	if o.CheckSignature == nil {
		o.CheckSignature = CheckSignature
	}
	if o.Workers == 0 {
		o.Workers = max(2, runtime.GOMAXPROCS(0)-1)
	}
	i := &Intake{
		o: o, room: [classes]*limit.Fair{live: limit.NewFair(liveRoom, streamRoom), past: limit.NewFair(pastRoom, streamRoom)},
		workers: make(chan struct{}, o.Workers), begun: make(chan struct{}), pending: map[key]*pending{},
	}
	metrics, opts := promauto.With(o.Metrics), func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: "ngit_sync_" + name, Help: help}
	}
	i.verified = metrics.NewCounterVec(opts("events_verified_total", "Events from relays that were verified, and how: genuine, or with a wrong id or signature."), []string{"result"})
	i.copies = metrics.NewCounter(opts("event_copies_total", "Events from relays that were on their way from another relay already, and were not verified and offered again."))
	i.known = metrics.NewCounter(opts("events_known_total", "Events from relays that were found to be accepted already; they were not verified and offered again."))
	for c := range i.asks {
		i.asks[c] = make(chan struct{}, asksAtOnce)
	}
	i.life, i.cut = context.WithCancel(context.Background())
	return i
}

// Run verifies and offers until ctx ends. Then what is on its way ends with [ErrEnded], unless it
// has been offered: of that the offerer's end is heard. It runs once.
func (i *Intake) Run(ctx context.Context) error {
	close(i.begun)
	<-ctx.Done()
	i.mu.Lock()
	i.over = true
	i.mu.Unlock()
	i.cut()
	i.working.Wait()
	i.mu.Lock()
	var left []*pending
	for _, f := range i.pending {
		if !f.offered {
			left = append(left, f)
		}
	}
	i.mu.Unlock()
	for _, f := range left {
		i.end(f, Result{Err: ErrEnded})
	}
	return nil
}

// Known reports whether it was found lately that the event of that id (64 hex digits) is stored, so
// that it need not be taken in.
func (i *Intake) Known(id string) bool {
	var bin [32]byte
	if !nostr.ReadHex(bin[:], id) {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.stored.has(bin)
}

// Stream is what one connection to a relay brings. One goroutine at a time may use it; what it has
// brought goes on when the connection has ended.
type Stream struct {
	intake *Intake
	queues [classes]*queue
}

// Open makes a stream for a connection to a relay, which is named by its normalised URL.
func (i *Intake) Open(relay string) *Stream {
	return &Stream{i, [classes]*queue{{relay: relay, class: live}, {relay: relay, class: past}}}
}

// Known is that of the intake.
func (s *Stream) Known(id string) bool { return s.intake.Known(id) }

// Take takes in an event. It blocks while there is no room, until ctx ends, and says whether
// it did. After an error Done is not called; [ErrEnded] is one.
func (s *Stream) Take(ctx context.Context, a Arrival) (waited bool, err error) {
	i := s.intake
	k, err := keyOf(a.Event)
	if err != nil {
		i.verified.WithLabelValues("id").Inc()
		a.Done(Result{Event: a.Event, Err: err})
		return false, nil
	}
	q := s.queues[past]
	if a.Lane == proto.LaneSyncLive {
		q = s.queues[live]
	}
	size := min(nostr.Memory(a.Event), streamRoom)
	i.mu.Lock()
	if i.pending[k] != nil {
		size = copyRoom
	}
	i.mu.Unlock()
	release, err := i.room[q.class].Try(q.relay, size)
	if err != nil {
		waited = true
		release, err = i.room[q.class].AcquireN(ctx, q.relay, size)
	}
	if err != nil {
		return waited, err
	}
	stored, err := i.admit(k, a, q, release)
	if err != nil || stored {
		release()
	}
	if stored {
		a.Done(Result{Event: a.Event, Verdict: proto.Verdict{ID: a.Event.ID, Kind: a.Event.Kind, Outcome: proto.Duplicate}, Copy: true})
	}
	return waited, err
}

// admit puts an arrival for which there is room into its queue, as a pending of its own or as one
// more copy of one. It does neither if the event has been stored meanwhile.
func (i *Intake) admit(k key, a Arrival, q *queue, release func()) (stored bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := i.pending[k]
	switch {
	case i.over:
		return false, ErrEnded
	case f != nil:
		i.copies.Inc()
	case i.stored.has(k.id):
		return true, nil
	default:
		f = &pending{key: k, event: a.Event}
		i.pending[k] = f
	}
	f.waiters = append(f.waiters, a.Done)
	q.entries = append(q.entries, entry{pending: f, release: release, lane: a.Lane, source: a.Source})
	if !q.working {
		q.working = true
		i.working.Go(func() { i.work(q) })
	}
	return false, nil
}

// work works off a queue until nothing is left.
func (i *Intake) work(q *queue) {
	select {
	case <-i.begun:
	case <-i.life.Done():
	}
	for {
		i.mu.Lock()
		batch := q.entries[:min(len(q.entries), perBatch)]
		if q.entries = q.entries[len(batch):]; len(batch) == 0 {
			q.working, q.entries = false, nil
			i.mu.Unlock()
			return
		}
		i.mu.Unlock()
		i.prepare(q.class, batch)
		for n, e := range batch {
			i.offer(q, e)
			e.release()
			batch[n] = entry{} // which others wait behind
		}
	}
}

// prepare finds out of some events whether they are stored and whether they are genuine. Those of
// the past are verified by a few workers of the process, and live ones where they are.
func (i *Intake) prepare(c class, entries []entry) {
	if i.o.Stored != nil {
		i.ask(c, entries)
	}
	if c == live {
		for _, e := range entries {
			i.check(e.pending)
		}
		return
	}
	var work sync.WaitGroup
	var next atomic.Int64
	for range min(len(entries), cap(i.workers)) {
		work.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(entries)); n = next.Add(1) - 1 {
				i.workers <- struct{}{}
				i.check(entries[n].pending)
				<-i.workers
				// Without this, who else has something to do waits until the scheduler cuts in,
				// after 10 ms.
				runtime.Gosched()
			}
		})
	}
	work.Wait()
}

// check verifies an event once that is not stored.
func (i *Intake) check(f *pending) {
	f.checked.Do(func() {
		i.mu.Lock()
		stored := f.stored
		i.mu.Unlock()
		if !stored && i.life.Err() == nil {
			f.forged = i.verify(f)
		}
	})
}

// ask asks which events are stored. Where there is no answer, ingest says what is stored.
func (i *Intake) ask(c class, entries []entry) {
	var unasked []*pending
	var ids [][32]byte
	i.asks[c] <- struct{}{}
	defer func() { <-i.asks[c] }()
	i.mu.Lock()
	for _, e := range entries {
		if !e.asked {
			e.asked = true
			unasked, ids = append(unasked, e.pending), append(ids, e.key.id)
		}
	}
	i.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	has, err := i.o.Stored.Has(i.life, ids)
	if err != nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for n, f := range unasked {
		if f.stored = has[n]; has[n] {
			i.stored.add(f.key.id)
			i.known.Inc()
		}
	}
}

// verify looks whether an event whose id is right is its author's.
func (i *Intake) verify(f *pending) error {
	if err := i.o.CheckSignature(f.event); err != nil {
		i.verified.WithLabelValues("signature").Inc()
		return err
	}
	i.verified.WithLabelValues("genuine").Inc()
	return nil
}

// offer hands on an event, unless another connection has.
func (i *Intake) offer(q *queue, e entry) {
	f := e.pending
	i.mu.Lock()
	again := f.offered && (q.class != live || f.urgent)
	if f.ended || again || i.over {
		i.mu.Unlock()
		return
	}
	stored := f.stored
	if f.forged == nil && !stored {
		f.offered, f.urgent = true, f.urgent || q.class == live
	}
	i.mu.Unlock()
	switch {
	case stored:
		i.end(f, Result{Verdict: proto.Verdict{ID: f.event.ID, Kind: f.event.Kind, Outcome: proto.Duplicate}, Known: true})
	case f.forged != nil:
		i.end(f, Result{Err: f.forged})
	default:
		err := i.o.Offerer.Offer(i.life, candidates.Candidate{
			Event: f.event, Lane: e.lane, Source: e.source, Relay: q.relay,
			Done: func(v proto.Verdict, err error) { i.end(f, Result{Verdict: v, Err: err}) },
		})
		if err != nil {
			i.end(f, Result{Err: err})
		}
	}
}

// end tells all who have brought an event how it ended. Only the first end counts.
func (i *Intake) end(f *pending, r Result) {
	i.mu.Lock()
	if f.ended {
		i.mu.Unlock()
		return
	}
	f.ended = true
	delete(i.pending, f.key)
	waiters := f.waiters
	f.waiters, r.Event = nil, f.event
	if r.Err == nil && r.Verdict.Outcome == proto.Accepted {
		i.stored.add(f.key.id)
	}
	i.mu.Unlock()
	for n, done := range waiters {
		r.Copy = n > 0
		done(r)
	}
}

// recent remembers the last ids that were added, at least half of recentIDs and at most all of
// them.
type recent struct{ young, old map[[32]byte]struct{} }

func (s *recent) add(id [32]byte) {
	if s.has(id) {
		return
	}
	if s.young == nil || len(s.young) >= recentIDs/2 {
		s.young, s.old = map[[32]byte]struct{}{}, s.young
	}
	s.young[id] = struct{}{}
}

func (s *recent) has(id [32]byte) bool {
	_, young := s.young[id]
	_, old := s.old[id]
	return young || old
}
