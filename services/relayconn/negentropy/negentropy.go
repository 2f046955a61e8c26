// Package negentropy finds out by NIP-77 which events of a relay are missing here, on one
// connection: which filters are reconciled now, what was said last in each session, what the relay
// means by what it answers, and when REQ has to do instead (docs/architecture.md, Reconciliation).
//
// What to say is worked out by ingest, which knows what is accepted, held and rejected. Every
// message says by itself what is still in question; so a session that the relay has forgotten is
// opened again with the message that was said last, and nothing is lost.
package negentropy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/query"
	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/moment"
)

const (
	// AtOnce is how many sessions are open at once, unless the relay takes fewer. strfry takes 20,
	// our own 32.
	AtOnce = 8
	// Silence is how long a relay may take to answer.
	Silence = 10 * time.Second
	// drip is how much longer one session may be left without an answer while the relay answers
	// others, as a factor.
	drip = 6
	// serviceTime is how long ingest may take to answer.
	serviceTime = 20 * time.Second
	// mostFailures is how often in a row ingest is asked in vain, each time after a wait twice as
	// long, before filters are asked for by REQ.
	mostFailures = 3
	// roomWait is how long a session waits that found no room for the relay's message.
	roomWait = time.Second
)

// Relay is the other side; *wire.Conn is one.
type Relay interface {
	NegOpen(ctx context.Context, sub string, filter nostr.Filter, message []byte) error
	NegMsg(ctx context.Context, sub string, message []byte) error
	NegClose(ctx context.Context, sub string) error
}

// Service works out what to say; query.Reconciler is one.
type Service interface {
	Begin(ctx context.Context, session query.Reconciliation) (first []byte, known uint64, err error)
	Continue(ctx context.Context, session query.Reconciliation, answer []byte) (query.Step, error)
}

// Options are what the sessions of a connection need.
type Options struct {
	Relay     Relay
	Service   Service
	Allowance *allowance.Allowance
	Room      *Room
	Seq       func() uint64              // of the log: what is known to be accepted
	Full      func() bool                // with events to fetch: nothing more is to be found
	Name      func(prefix string) string // makes a new name
	Warn      func(cause, message string, args ...any)
}

// Set is the sessions of one connection. It belongs to one goroutine.
type Set struct {
	o        Options
	queue    []*search // that wait for their turn
	active   []*search // at most twice as many as may be open at once
	open     map[string]*search
	results  chan Result
	atOnce   int // as many as the relay takes, as far as is known
	turns    int
	refusals int       // in a row that the relay takes no session though none is open
	crowded  time.Time // when a NOTICE said last that a session was one too many
	hold     time.Time // nothing is said before
	failures int       // of ingest, in a row
	heard    time.Time // when the relay answered last in any session
	spoken   bool      // it has
	off      bool      // it does not reconcile
}

// Result is an answer of ingest.
type Result struct {
	search *search
	back   func()
	known  uint64
	step   query.Step
	err    error
	first  bool
}

// New returns a set without sessions.
func New(o Options) *Set {
	return &Set{o: o, open: map[string]*search{}, results: make(chan Result), atOnce: AtOnce}
}

// Results is where ingest's answers come, to be handed to [Set.Answered].
func (s *Set) Results() <-chan Result { return s.results }

// Able reports whether the relay reconciles, as far as is known.
func (s *Set) Able() bool { return !s.off }

// Hungry reports whether filters should be added. It is no harm if more are; but they are in memory
// while they wait.
func (s *Set) Hungry() bool { return len(s.queue) < s.atOnce }

// Add has a filter reconciled, as soon as there is room.
func (s *Set) Add(f nostr.Filter, owner Owner) {
	s.queue = append(s.queue, newSearch(f, owner, s.o.Seq()))
}

// Count returns how many sessions are open at the relay.
func (s *Set) Count() int { return len(s.open) }

// Idle reports whether nothing is being reconciled.
func (s *Set) Idle() bool { return len(s.queue)+len(s.active) == 0 }

// Restart forgets all searches without a word to their owners.
func (s *Set) Restart(ctx context.Context) error {
	searches := slices.Concat(s.active, s.queue)
	s.queue, s.active = nil, nil
	for _, x := range searches {
		x.ended = true
		if err := s.close(ctx, x); err != nil {
			return err
		}
	}
	return nil
}

// Ask says what can be said.
func (s *Set) Ask(ctx context.Context, now time.Time) error {
	if s.Idle() || now.Before(s.hold) {
		return nil
	}
	for len(s.queue) > 0 && len(s.active) < 2*s.atOnce && !s.o.Full() {
		s.active = append(s.active, s.queue[0])
		s.queue = slices.Delete(s.queue, 0, 1)
	}
	for n, x := range s.active {
		switch {
		case x.state == waiting:
			s.begin(ctx, x)
		case x.state != ready || s.o.Full() || x.id == "" && len(s.open) >= s.atOnce:
		case !s.spoken && n > 0: // many relays do not reconcile, so one session is tried first
		default:
			if err := s.say(ctx, x, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// say says what must be said, in a session that is open or in a new one.
func (s *Set) say(ctx context.Context, x *search, now time.Time) error {
	x.state, x.asked = said, now
	x.wide.spend(x.message)
	if x.id != "" {
		return s.o.Relay.NegMsg(ctx, x.id, x.message)
	}
	s.turns++
	x.opened++
	x.id, x.turn = s.o.Name("n"), s.turns
	s.open[x.id] = x
	return s.o.Relay.NegOpen(ctx, x.id, x.pieces.next().of(x.filter), x.message)
}

// close closes the session of a search at the relay.
func (s *Set) close(ctx context.Context, x *search) error {
	id := s.lost(x)
	if id == "" {
		return nil
	}
	return s.o.Relay.NegClose(ctx, id)
}

// lost notes that the session of a search is not open any more, and returns its name.
func (s *Set) lost(x *search) (id string) {
	id, x.id = x.id, ""
	delete(s.open, id)
	return id
}

// begin asks ingest for the first message of a session.
func (s *Set) begin(ctx context.Context, x *search) {
	x.state = asking
	session := x.session()
	s.ask(ctx, Result{search: x, first: true}, func(ctx context.Context, r *Result) {
		r.step.Message, r.known, r.err = s.o.Service.Begin(ctx, session)
	})
}

// ask asks ingest, while others go on.
func (s *Set) ask(ctx context.Context, r Result, ask func(context.Context, *Result)) {
	go func() {
		s.o.Room.ask(ctx, func() {
			limited, cancel := context.WithTimeout(ctx, serviceTime)
			defer cancel()
			ask(limited, &r)
		})
		if r.back != nil {
			r.back()
		}
		select {
		case s.results <- r:
		case <-ctx.Done():
		}
	}()
}

// Answered takes in an answer of ingest.
func (s *Set) Answered(ctx context.Context, r Result, now time.Time) error {
	x := r.search
	switch {
	case x.ended:
		return nil
	case errors.Is(r.err, query.ErrTooMany):
		return s.smaller(ctx, x, now)
	case errors.Is(r.err, query.ErrRefused) && r.first:
		return s.giveUp(ctx, x) // the filter is too large for the bus
	case errors.Is(r.err, query.ErrRefused):
		return s.unable(ctx, "its message breaks the rules of the protocol: "+r.err.Error())
	case r.err != nil:
		return s.failed(ctx, x, r.err, now)
	}
	s.failures = 0
	if r.first {
		x.wide.begin(r.known)
	}
	if r.first && r.known == 0 {
		x.owner.Ask(x.pieces.next())
		return s.pieceDone(ctx, x)
	}
	if len(r.step.Missing) > 0 {
		x.took(x.owner.Missing(r.step.Missing))
	}
	x.wide.took(r.step.Alone, len(r.step.Missing))
	x.state, x.message = ready, r.step.Message
	switch {
	case x.wide.beyond():
		return s.giveUp(ctx, x)
	case len(x.message) == 0:
		return s.pieceDone(ctx, x)
	case x.endless():
		return s.cannot(ctx, x, "a session with it does not come to an end")
	}
	return nil
}

// failed notes that ingest has not answered. That is not the relay's fault: the session is opened
// again later, or the rest is asked for by REQ, which waits for ingest in its own way.
func (s *Set) failed(ctx context.Context, x *search, err error, now time.Time) error {
	s.o.Warn("reconcile", "ingest does not say what is known here", "error", err)
	if !now.Before(s.hold) { // several that fail together are one failure
		if s.failures >= mostFailures {
			return s.giveUp(ctx, x)
		}
		s.hold = now.Add(time.Second << s.failures)
		s.failures++
	}
	x.state = waiting
	if x.message != nil {
		x.state = ready
	}
	return s.close(ctx, x)
}

// pieceDone goes on with the next piece of time, or ends the search.
func (s *Set) pieceDone(ctx context.Context, x *search) error {
	if err := s.close(ctx, x); err != nil {
		return err
	}
	if x.pieceDone() {
		return nil
	}
	s.end(x)
	return nil
}

func (s *Set) end(x *search) {
	x.ended = true
	s.active = slices.DeleteFunc(s.active, func(o *search) bool { return o == x })
	x.owner.Settled()
}

// giveUp has the rest of a search asked for by REQ.
func (s *Set) giveUp(ctx context.Context, x *search) error {
	if err := s.close(ctx, x); err != nil {
		return err
	}
	x.owner.Ask(x.pieces.rest())
	s.end(x)
	return nil
}

// smaller goes on with half of the time, because too many events match the filter.
func (s *Set) smaller(ctx context.Context, x *search, now time.Time) error {
	if x.wide != nil {
		return s.cannot(ctx, x, "")
	}
	halves, ok := x.pieces.split(nostr.Timestamp(now.Unix()))
	if !ok && x.answers == 0 {
		return s.unable(ctx, "it takes no filter, however short the time")
	}
	if !ok {
		s.o.Warn("too many to reconcile", "the relay reconciles too few events at once; what is left is asked for by REQ")
		return s.giveUp(ctx, x)
	}
	x.pieces = halves
	x.afresh()
	return s.close(ctx, x)
}

// cannot notes that a session has failed, by which the relay shows that it does not reconcile,
// unless it is one about everything.
func (s *Set) cannot(ctx context.Context, x *search, why string) error {
	if x.wide != nil {
		x.wide.refused = true
		return s.giveUp(ctx, x)
	}
	return s.unable(ctx, why)
}

// unable notes that the relay does not reconcile. All is asked for by REQ from now on.
func (s *Set) unable(ctx context.Context, why string) error {
	s.off = true
	s.o.Warn("unable", "the relay does not reconcile (NIP-77); REQ is used", "reason", cut(why))
	searches := slices.Concat(s.active, s.queue)
	s.queue = nil
	for _, x := range searches {
		if err := s.giveUp(ctx, x); err != nil {
			return err
		}
	}
	return nil
}

// Lacks notes that the relay says of itself that it does not reconcile. What it has shown counts
// for more.
func (s *Set) Lacks(ctx context.Context) error {
	if s.spoken || s.off {
		return nil
	}
	return s.unable(ctx, "its information document does not name NIP-77")
}

// cut bounds what is logged of a relay's words.
func cut(s string) string { return s[:min(len(s), 300)] }

// Due gives up what the relay does not answer.
func (s *Set) Due(ctx context.Context, now time.Time) error {
	for _, x := range s.active {
		if x.state != said || now.Before(s.patience(x)) {
			continue
		}
		excused := s.o.Allowance.QuietAfter(x.asked) || s.crowded.After(x.asked)
		if !excused || x.endless() {
			return s.cannot(ctx, x, "it does not answer")
		}
		x.state = ready // it was one too many, or came too early
		if err := s.close(ctx, x); err != nil {
			return err
		}
	}
	return nil
}

// patience is when a session is given up.
func (s *Set) patience(x *search) time.Time {
	heard := x.asked
	if s.heard.After(heard) {
		heard = s.heard
	}
	return moment.Earlier(heard.Add(Silence), x.asked.Add(drip*Silence))
}

// Next is when something becomes due by itself after now; zero: nothing does.
func (s *Set) Next(now time.Time) (next time.Time) {
	if s.Idle() {
		return next
	}
	next = moment.NextAfter(now, s.hold)
	for _, x := range s.active {
		if x.state == said {
			next = moment.Earlier(next, moment.NextAfter(now, s.patience(x)))
		}
	}
	return next
}

// Unread keeps a time in which nothing was read from counting as the relay's silence.
func (s *Set) Unread(d time.Duration) {
	for _, x := range s.active {
		x.asked = x.asked.Add(d)
	}
	s.heard = s.heard.Add(d)
}
