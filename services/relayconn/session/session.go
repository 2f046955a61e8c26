// Package session is what is said on one connection to a relay (docs/architecture.md, How things
// flow). It works out what must be asked for, has it asked live (package live) and of the past
// (package backfill), and hands on to be verified and offered what comes (package intake). One
// goroutine owns a session; it is told of messages, of what is wanted and of verdicts, and never
// waits for anything but room for what came.
package session

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
)

// Asker puts requests to the relay; *wire.Conn is one.
type Asker interface {
	Req(ctx context.Context, sub string, filters []nostr.Filter) error
	Unsubscribe(ctx context.Context, sub string) error
}

// Intake verifies events and offers them to ingest; *intake.Stream is one.
type Intake interface {
	// Known reports whether an event is stored, so that it need not be taken in.
	Known(id string) bool
	// Take takes in an event. It waits for nothing but room, and says how long that took.
	Take(ctx context.Context, a intake.Arrival) (waited time.Duration, err error)
}

// Rules are the numbers that a session keeps to, all of them settings.
type Rules struct {
	PageLimit       int           // of a historic REQ
	AtOnce          int           // historic subscriptions open at once at most
	MaxFilters      int           // more live filters than this are consolidated
	Settle          time.Duration // syncing becomes connected when nothing was pending for so long
	Silence         time.Duration // a historic subscription that is silent for so long has failed
	ConsolidateWait time.Duration // consolidation waits so long for pending batches
	Cooldown        time.Duration // quiet after the relay told us that we ask too much
}

// Wanted is what should be asked beyond layer 1, and the revision of the target that says so.
type Wanted struct {
	Items    history.Set
	Revision uint64
}

// Options are what a session needs.
type Options struct {
	Relay  string // normalised URL
	Rules  Rules
	Asker  Asker
	Intake Intake
	// Negentropy is what the relay is asked by NIP-77 with; nil: it is not.
	Negentropy *history.Negentropy
	Observer   Observer
	Document   <-chan wire.Document // what the relay tells about itself, once; nil: nothing
	// Warned is of which causes the operator has been warned. It goes from one session with the
	// relay to the next, and only one session may have it at a time; nil: of none.
	Warned map[string]bool
	// Authenticate answers the relay's challenge (NIP-42); fs.ErrNotExist: there is no key to do so.
	// Nil: it is not answered.
	Authenticate func(ctx context.Context, challenge string) error
	Log          *slog.Logger
}

// Start says how a session begins.
type Start struct {
	// Since is what a quick reconnect asks the past from; nil: a fresh start.
	Since     *nostr.Timestamp
	Whole     bool          // layer 1 is asked for without Since all the same, because an earlier start was cut off
	Live      time.Time     // until when the connection before held: older events should have come then
	Confirmed history.Set   // of a quick reconnect
	Revision  uint64        // of the target that says so, as in Status
	Delay     time.Duration // holds back historic sync
}

// Session is the state of one connection.
type Session struct {
	Options
	limits   *wire.Limits
	inflight *history.Inflight
	live     *liveSet
	past     *history.History
	nextID   int

	wanted Wanted
	due    plan // what the diff found and could not be asked for yet
	dayDue bool // so could a daily start
	fresh  bool // what the diff finds next is all of a fresh start
	days   int  // daily starts that were made

	consolidateBy time.Time // consolidation waits for batches until then; zero: none waits
	quietSince    time.Time // no batch has been pending since; zero: one is
	status        Status

	auth     auth
	answered bool // the relay has sent an EOSE

	waited  bool        // the last event waited for room
	forged  chan string // events that were found not to be genuine and have not been counted
	invalid int
	useless *rate.Limiter
	later   atomic.Int64 // when the relay may bring more, in seconds since 1970; 0: now
	idle    atomic.Int64 // live events that turned out to be known
}

const (
	// maxInvalid is how many events with a wrong id or signature, or that nobody asked for, a relay
	// may send on one connection.
	maxInvalid = 100
	// maxMakeUps is how often the past may be under way at once instead of what did not come live,
	// beside twice for each live subscription. With more, the connection ends: the next one asks
	// for all of it together.
	maxMakeUps = 64
	// uselessRate and uselessBurst bound how many messages a second are taken that bring nothing:
	// with more, the relay is read more slowly.
	uselessRate, uselessBurst = 5000, 20_000
)

// New makes a session; Run begins it.
func New(o Options) *Session {
	if o.Warned == nil {
		o.Warned = map[string]bool{}
	}
	return &Session{Options: o, useless: rate.NewLimiter(uselessRate, uselessBurst), forged: make(chan string, maxInvalid+1)}
}

// Confirmed is what was asked for and came. Call it after Run has returned.
func (s *Session) Confirmed() history.Set { return s.past.Confirmed() }

// Run talks until ctx or the messages end. A value on daily begins a fresh start without a
// disconnect.
func (s *Session) Run(ctx context.Context, start Start, messages <-chan wire.Message, wanted <-chan Wanted, daily <-chan time.Time) error {
	s.prepare(start)
	defer s.past.Release()
	if err := s.begin(ctx, start); err != nil {
		return ignoreEnd(ctx, err)
	}
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		now := time.Now()
		if err := s.pump(ctx, now); err != nil {
			return ignoreEnd(ctx, err)
		}
		wake.Reset(time.Until(s.next(now))) // what becomes due while pump works is due then
		var err error
		select {
		case <-ctx.Done():
			return nil
		case m, open := <-messages:
			if !open {
				return nil
			}
			err = s.hearAll(ctx, m, messages)
		case w := <-wanted:
			s.want(w)
		case <-daily:
			s.dayDue = true
		case d := <-s.Document:
			s.limits.Said(d.Limits)
			if !d.Supports(77) {
				err = s.past.Lacks(ctx)
			}
		case r := <-s.past.Results():
			err = s.past.Told(ctx, r, time.Now())
		case <-s.inflight.Changed:
			err = s.hearEnds()
		case <-wake.C:
		}
		if err != nil {
			return ignoreEnd(ctx, err)
		}
	}
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// prepare puts the parts together.
func (s *Session) prepare(start Start) {
	s.limits, s.inflight = wire.NewLimits(s.Rules.Cooldown), history.NewInflight()
	s.live = newLive(liveOptions{
		Asker: s.Asker, Limits: s.limits, Silence: s.Rules.Silence, Name: s.name, Missed: s.makeUp, Warn: s.warn,
		MakingUp: func(sub string) bool { return s.past.MakingUpFor(sub) },
		Past:     func() int { return s.past.Open() },
	})
	confirmed := history.Set{}
	if start.Since != nil {
		confirmed, s.status.Confirmed = start.Confirmed, start.Revision
	}
	s.past = history.New(history.Options{
		Asker: s.Asker, Limits: s.limits, Inflight: s.inflight, PageLimit: s.Rules.PageLimit, AtOnce: s.Rules.AtOnce, Live: s.live.Count, Silence: s.Rules.Silence,
		Hold: time.Now().Add(start.Delay), Name: s.name, Warn: s.warn,
		Negentropy: s.Negentropy,
	}, confirmed)
}

// name makes a name for a subscription.
func (s *Session) name(prefix string) string {
	s.nextID++
	return prefix + strconv.Itoa(s.nextID)
}

// startup is the cause of a fresh start, and of whatever is asked for the first time.
var startup = history.Cause{Source: proto.SourceStartup, Lane: proto.LaneSyncHistoric}

// begin opens layer 1, and with a quick reconnect what was confirmed before.
func (s *Session) begin(ctx context.Context, start Start) error {
	back := history.Cause{Source: proto.SourceReconnect, Lane: proto.LaneSyncHistoric, LiveUntil: start.Live}
	if err := s.live.Open(ctx, history.Layer1(), true); err != nil {
		return err
	}
	s.fresh = start.Since == nil
	if s.fresh || start.Whole {
		s.past.Add(history.Work{Filters: history.Layer1(), Cause: startup, Reconcile: s.fresh})
	} else {
		s.past.Add(history.Work{Filters: history.Layer1(), Cause: back, Since: start.Since})
	}
	if confirmed := s.past.Confirmed(); !confirmed.Empty() {
		filters := history.FiltersOf(confirmed)
		if err := s.live.Open(ctx, filters, false); err != nil {
			return err
		}
		s.past.Add(history.Work{Filters: filters, Cause: back, Since: start.Since})
	}
	s.report(Syncing)
	return nil
}

// restart is the daily fresh start: everything is asked for anew on the connection that stands.
func (s *Session) restart(ctx context.Context, now time.Time) error {
	s.dayDue = false
	s.days++
	if err := s.past.Restart(ctx); err != nil {
		return err
	}
	s.consolidateBy, s.status.Confirmed = time.Time{}, 0
	s.inflight.TakeUnjudged() // all is asked for
	s.live.Retire(true)
	daily := history.Cause{Source: proto.SourceDaily, Lane: proto.LaneSyncDaily, LiveUntil: now}
	if err := s.live.Open(ctx, history.Layer1(), true); err != nil {
		return err
	}
	s.past.Add(history.Work{Filters: history.Layer1(), Cause: daily, Reconcile: true})
	s.fresh = true
	s.plan(daily)
	return s.request(ctx, nil)
}

// pump does what has become due, and reports the state. It is called after every message, so it
// looks at what is open and not at everything that is wanted.
func (s *Session) pump(ctx context.Context, now time.Time) error {
	if s.dayDue && !s.limits.Quiet(now) {
		if err := s.restart(ctx, now); err != nil {
			return err
		}
	}
	// First what makes room at the relay. The past before what is new: where there is always
	// something new, the past would never come.
	if err := s.live.Due(ctx, now); err != nil {
		return err
	}
	if s.past.Starved() {
		made, err := s.live.MakeRoom(ctx, now)
		if err != nil {
			return err
		}
		if made {
			s.past.Relieve(now)
		}
	}
	if err := s.past.Due(ctx, now); err != nil {
		return err
	}
	s.askUnjudged()
	if owed := s.past.Standing().MakingUp; owed > maxMakeUps+2*s.live.Len() {
		return fmt.Errorf("%d times a subscription that the relay does not keep open was replaced by a question for past events, and the answer does not come", owed)
	}
	if s.mayAsk(now) {
		if err := s.past.Ask(ctx, now); err != nil {
			return err
		}
	}
	added, err := s.add(ctx, now)
	if err != nil {
		return err
	}
	if added && s.mayAsk(now) { // nothing may come that would bring us here again
		if err := s.past.Ask(ctx, now); err != nil {
			return err
		}
	}
	s.report(s.connection(now))
	return nil
}

// next is when something becomes due by itself.
func (s *Session) next(now time.Time) time.Time {
	next := now.Add(time.Hour)
	for _, at := range []time.Time{s.live.Next(now), s.past.Next(now), history.NextAfter(now, s.limits.Until(), s.consolidateBy, s.settledAt())} {
		next = history.Earlier(next, at)
	}
	return next
}

// warn tells the operator of what this relay does once for each cause, not for each time.
func (s *Session) warn(cause, message string, args ...any) {
	level := slog.LevelWarn
	if s.Warned[cause] {
		level = slog.LevelDebug
	}
	s.Warned[cause] = true
	s.Log.Log(context.Background(), level, message, args...)
}

// odd counts what a relay should not have sent.
func (s *Session) odd(what string) error {
	s.warn("odd", "the relay sends what it should not", "what", what)
	if s.invalid++; s.invalid > maxInvalid {
		return &netguard.ProtocolError{Err: fmt.Errorf("%d events that it should not have sent, the last: %s", s.invalid, what)}
	}
	return nil
}
