// Package session runs NIP-01 and NIP-77 on one relay connection (docs/architecture.md, How things
// flow). It works out what must be asked for, asks for it live and of the past, and hands on what
// comes to be verified and offered (package intake). One goroutine owns a session; it is told of
// messages, of what is wanted and of verdicts, and never waits for anything but room for what came.
//
// Its parts, each of which knows those below it only:
//
//	Session   routes messages and verdicts, and plans what is new (the three-way diff)
//	live      subscriptions, and since when events are missing on each
//	history   batches of the past, each in an explicit state; it has a reconciler for NIP-77
//	governor  what the relay allows: limits, pauses, refusals, authentication
//
// A batch of the past is reconciled by NIP-77 where something of it is known and the relay is able
// to; everything else is asked for by REQ, page by page. What another connection of the worker is
// walking through is left to it, and reconciled afterwards.
package session

import (
	"context"
	"log/slog"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
)

// Asker puts requests to the relay; *wire.Conn is one. If it cannot, the messages end.
type Asker interface {
	Req(sub string, filters []nostr.Filter)
	Unsubscribe(sub string)
	// NegOpen, NegMsg and NegClose are for sessions of NIP-77.
	NegOpen(sub string, filter nostr.Filter, message []byte)
	NegMsg(sub string, message []byte)
	NegClose(sub string)
}

// Intake verifies events and offers them to ingest; *intake.Stream is one.
type Intake interface {
	// Known reports whether an event is stored, so that it need not be taken in.
	Known(id string) bool
	// Take takes in an event. It waits for nothing but room, and says whether it did.
	Take(ctx context.Context, a intake.Arrival) (waited bool, err error)
}

// Rules are the numbers that a session keeps to. None has a default, and none but the last two may
// be 0.
type Rules struct {
	PageLimit       int           // most events of a page, for each filter of a REQ
	AtOnce          int           // most historic subscriptions that are open at once
	MaxFilters      int           // most live filters of layers 2 and 3; more are consolidated
	Calm            time.Duration // syncing becomes connected when nothing was pending for so long
	Silence         time.Duration // a subscription without an answer for so long has failed
	ConsolidateWait time.Duration // consolidation waits at most so long for pending batches
	Cooldown        time.Duration // nothing is asked for so long after the relay wanted quiet
	// Apart is how long after one another walks through the past begin. The next pages of a walk that
	// is under way are asked for as soon as there is room.
	Apart time.Duration
	// SilentLook is how often it is looked whether a live subscription has fallen silent; 0: never.
	SilentLook time.Duration
}

// Mark names what was wanted at a time: the repositories up to a sequence of GRASP_TARGETS, with
// the root events up to a sequence of the log, and the events below these (layer 4) up to another.
// The zero value is nothing.
type Mark struct{ Target, Log, Replies uint64 }

// MarkAt names what is wanted up to a sequence of GRASP_TARGETS and one of the log.
func MarkAt(target, log uint64) Mark { return Mark{Target: target, Log: log, Replies: log} }

// above is the mark for all but layer 4, of which no more is confirmed than it was at the mark before,
// and nothing if there are other repositories: what lies below theirs may be as old.
func (m Mark) above(before Mark) Mark {
	m.Replies = before.Replies
	if m.Target != before.Target {
		m.Replies = 0
	}
	return m
}

// Wanted is what should be asked beyond layer 1, and its name.
type Wanted struct {
	Items Set
	Mark  Mark
}

// Options are what a session needs. Where nothing else is said, a field must be set.
type Options struct {
	Rules  Rules
	Wanted func() Wanted // what should be asked for now
	Asker  Asker
	Intake Intake
	// Negentropy is what the relay is asked by NIP-77 with; nil: it is asked by REQ alone.
	Negentropy *Negentropy
	Observer   Observer
	// Document gives what the relay tells about itself, at most once; nil: it tells nothing.
	Document <-chan wire.Stated
	// Warned is of which causes the operator has been warned. It goes from one session with the
	// relay to the next, and only one session may have it at a time.
	Warned map[string]bool
	// Pauses goes from one session to the next in the same way.
	Pauses *Pauses
	// Reminders goes from one session to the next in the same way; nil: it begins here.
	Reminders *Reminders
	// ByID gives ids of events that the relay should be asked for at once; nil: none are.
	ByID <-chan []string
	// Authenticate answers the relay's challenge (NIP-42); fs.ErrNotExist: there is no key to do so.
	// Nil: it is not answered.
	Authenticate func(challenge string) error
	Log          *slog.Logger
}

// Start says how a session begins.
type Start struct {
	// Since is what a quick reconnect asks the past from; nil: a fresh start.
	Since     *nostr.Timestamp
	Live      time.Time     // until when the connection before held: older events should have come then
	Confirmed Set           // of a quick reconnect
	Doubtful  Set           // of these; all of it is asked for again, without hurry
	Mark      Mark          // of what was wanted then, as in Status
	Delay     time.Duration // holds back historic sync
	OnlyByID  bool          // nothing is asked for but what ByID gives
	// NoLayer1: of layer 1 nothing is asked for. OnlyPast: nor does anything come live; what is wanted
	// at the start is asked for once.
	NoLayer1, OnlyPast bool
}

// Session routes what the relay says to its parts, and plans what is asked for. Run makes the
// parts.
type Session struct {
	Options
	governor *governor
	live     *live
	history  *history

	wanted Wanted
	due    work // what the diff found and could not be asked for yet
	dayDue bool // so could a daily start
	fresh  bool // what the diff finds next is all of a fresh start
	first  bool // layer 1 is asked for
	past   bool // only the past is
	days   int  // daily starts that were made

	consolidateBy time.Time // consolidation waits for batches until then; zero: none waits
	quietSince    time.Time // no batch has been pending since; zero: one is
	status        Status

	ends ends
}

// seldom is how often it is looked what has become due while events come.
const seldom = time.Millisecond

// New makes a session; Run begins it.
func New(o Options) *Session {
	if o.Reminders == nil {
		o.Reminders = &Reminders{}
	}
	return &Session{Options: o, ends: ends{changed: make(chan struct{}, 1)}, wanted: Wanted{Items: Set{First: true}}}
}

// Confirmed is what was asked for and came. Call it after Run has returned.
func (s *Session) Confirmed() Set { return s.history.confirmed }

// Doubtful is what of it was confirmed so shortly before the end that the relay may have sent more:
// an EOSE is no proof. Call it when Run has returned.
func (s *Session) Doubtful() Set { return s.history.doubtful(time.Now()) }

// Run talks until ctx or the messages end. What is wanted is looked up whenever changed says so. A
// value on daily begins a fresh start without a disconnect.
func (s *Session) Run(ctx context.Context, start Start, messages <-chan wire.Message, changed <-chan struct{},
	daily <-chan time.Time) error {
	s.governor = newGovernor(&s.Options)
	s.history = newHistory(&s.Options, s.governor)
	s.live = &live{Options: &s.Options, governor: s.governor, history: s.history}
	defer s.history.release()
	s.history.pause(time.Now().Add(start.Delay))
	s.begin(start)
	wake := time.NewTimer(0)
	defer wake.Stop()
	looked, lately := time.Time{}, false
	var err error
	for err == nil && ctx.Err() == nil {
		now := time.Now()
		if lately && now.Sub(looked) < seldom {
			wake.Reset(seldom)
		} else if err = s.pump(ctx, now); err != nil {
			continue
		} else {
			looked = now
			wake.Reset(time.Until(s.next(now))) // what becomes due while pump works is due then
		}
		lately = false
		select {
		case <-ctx.Done():
		case m, open := <-messages:
			if !open {
				return nil
			}
			lately = m.Kind == wire.Event
			err = s.hear(ctx, m)
		case <-changed:
			s.want(s.Wanted())
		case <-daily:
			s.dayDue = true
		case ids := <-s.ByID:
			s.history.hearByID(ids)
		case d := <-s.Document:
			s.governor.limits.Said(d)
		case r := <-s.history.reconciler.results:
			s.history.reconciler.told(ctx, r, time.Now())
		case <-s.ends.changed:
			err = s.hearEnds(ctx, time.Now())
		case <-wake.C:
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// startup is the cause of a fresh start, and of what is asked for the first time.
var startup = cause{source: proto.SourceStartup}

// begin opens layer 1, and with a quick reconnect what was confirmed before.
func (s *Session) begin(start Start) {
	if start.OnlyByID {
		return
	}
	now := time.Now()
	s.first, s.past = !start.NoLayer1 && !start.OnlyPast, start.OnlyPast
	s.wanted.Items.First, s.history.wanted.First = s.first, s.first
	s.fresh = start.Since == nil
	came, certain := start.Confirmed, Set{}
	if came.First = came.First && s.first; !s.fresh {
		certain = Diff(came, start.Doubtful, Set{})
		s.history.confirm(certain)
		if s.history.lookAtDoubtful(Only(came, start.Doubtful), now); start.Doubtful.Empty() {
			s.status.Confirmed = start.Mark
		}
	}
	s.openFirst(startup, now)
	if !came.Empty() {
		s.live.open(s.live.wanted(), time.Time{}, now)
		why := cause{source: proto.SourceReconnect, liveUntil: start.Live}
		s.history.add(work{groups: Groups(came.Above()), cause: why, since: start.Since}) // of layer 4 there is no hurry
		s.history.lookForLate(certain, why, *start.Since, now)
	}
	if start.OnlyPast {
		s.want(s.Wanted())
	}
	s.report(Syncing)
}

// openFirst opens layer 1, and asks for its past if that is not confirmed.
func (s *Session) openFirst(why cause, now time.Time) {
	layer1 := Set{First: true}
	if !s.first {
		return
	}
	groups := Groups(layer1)
	s.live.open(layer1, time.Time{}, now)
	if s.history.missing().First {
		s.history.add(work{items: layer1, groups: groups, cause: why, reconcile: s.fresh})
	}
}

// restart is the daily fresh start: everything is asked for again on the connection that stands.
func (s *Session) restart(now time.Time) {
	s.dayDue, s.fresh = false, true
	s.days++
	s.history.forget()
	s.live.replace(true)
	s.consolidateBy, s.status.Confirmed = time.Time{}, Mark{}
	daily := cause{source: proto.SourceDaily, liveUntil: now}
	s.openFirst(daily, now)
	s.plan(daily)
	s.request(now)
}

// pump does what has become due, and reports the state. It is called after every message, so it
// looks at what is open and not at everything that is wanted.
func (s *Session) pump(ctx context.Context, now time.Time) error {
	if s.dayDue && !s.governor.paused(now) {
		s.restart(now)
	}
	if err := s.governor.authenticate(); err != nil {
		return err
	}
	// First what makes room at the relay. The past before what is new: where there is always
	// something new, the past would never come. At last the past of what is new, because nothing
	// may come that would bring us here again.
	s.expire(now)
	s.live.tend(now)
	s.history.tend(now)
	s.askPast(ctx, now)
	s.addNew(now)
	s.askPast(ctx, now)
	s.report(s.connection(now))
	return nil
}

// askPast asks for the past, unless something is being opened that must be live before.
func (s *Session) askPast(ctx context.Context, now time.Time) {
	if s.live.allOpen() {
		s.history.askMore(ctx, now)
	}
}

// next is when something becomes due by itself.
func (s *Session) next(now time.Time) time.Time {
	if s.history.mustTend() {
		return now
	}
	next := now.Add(time.Hour)
	due := func(times ...time.Time) {
		for _, t := range times {
			if t.After(now) && t.Before(next) {
				next = t
			}
		}
	}
	s.history.next(due)
	s.live.next(due)
	due(s.governor.pausedUntil, s.consolidateBy, s.quietUntil())
	for _, a := range s.governor.open {
		due(s.governor.deadline(a))
		if t, is := a.(*task); is {
			due(t.endAt)
		}
	}
	return next
}

// warn tells the operator of what this relay does once for each cause, not for each time.
func (o *Options) warn(cause, message string, args ...any) {
	level := slog.LevelWarn
	if o.Warned[cause] {
		level = slog.LevelDebug
	}
	o.Warned[cause] = true
	o.Log.Log(context.Background(), level, message, args...)
}
