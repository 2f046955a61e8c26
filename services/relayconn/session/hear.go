package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/limit"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
)

// hear takes in one message of the relay.
func (s *Session) hear(ctx context.Context, m wire.Message) error {
	now := time.Now()
	switch m.Kind {
	case wire.Event:
		return s.hearEvent(ctx, m, now)
	case wire.Dropped:
		s.governor.notTaken(m.Reason, "a message that cannot be used")
		return s.governor.chargeUseless(ctx)
	}
	item := s.governor.open[m.Sub]
	if item != nil && (m.Kind == wire.Closed || m.Kind == wire.NegErr) {
		why := wire.ReadRefusal(m.Reason)
		if why.Quiet {
			s.governor.pause(now, m.Reason)
		}
		s.governor.authNeeded = s.governor.authNeeded || why.Proof
	}
	switch a := item.(type) {
	case *search:
		switch m.Kind {
		case wire.NegMsg:
			s.history.reconciler.answer(ctx, a, m, now)
		case wire.NegErr, wire.Closed:
			s.history.reconciler.refused(a, m.Reason, now)
		}
	case openREQ:
		switch m.Kind {
		case wire.Closed:
			delete(s.governor.open, m.Sub)
			s.follow(a, s.governor.refused(a, wire.ReadRefusal(m.Reason), m.Reason, now), now)
		case wire.EOSE:
			s.governor.answered = true
			s.governor.heard(a, now)
			a.req().ended = true
			if t, past := a.(*task); past {
				s.history.heardEOSE(t, now)
				return nil
			}
		}
	default: // it is about no request that is open
		switch m.Kind {
		case wire.Notice:
			s.hearNotice(m.Reason, now)
		case wire.Auth:
			s.governor.challenge = m.Reason
		}
	}
	return s.governor.chargeUseless(ctx)
}

// hearNotice takes in a NOTICE, which may refuse a session of NIP-77 or a REQ.
func (s *Session) hearNotice(text string, now time.Time) {
	if s.history.reconciler.notice(text, now) {
		return
	}
	blamed, why, doubtful := s.governor.blame(text, now)
	if doubtful != nil {
		s.history.takeBack(doubtful)
	}
	if blamed != nil {
		s.governor.stop(blamed)
		s.follow(blamed, s.governor.refused(blamed, why, text, now), now)
	}
}

// follow acts on what the governor has decided about a REQ, which is not open any more. A request
// that was refused for want of room is asked again when one that is open has ended. If the past has
// none, some of what is live ends.
func (s *Session) follow(a openREQ, d decision, now time.Time) {
	switch a := a.(type) {
	case *subscription:
		s.live.refused(a, d, now)
	case *task:
		_, past := s.governor.count()
		if d.action == askWithRoom && (past > 0 || s.live.makeRoom(now)) {
			d.at = now
		}
		s.history.refused(a, d, past > 0, now)
	}
	if d.needRoom {
		s.live.makeRoom(now)
	}
}

// expire gives up what the relay does not answer, or not to its end.
func (s *Session) expire(now time.Time) {
	for _, item := range s.governor.overdue(now) {
		if !s.governor.isOpen(item) { // the end of another has ended it
			continue
		}
		switch a := item.(type) {
		case *search:
			s.history.reconciler.silent(a, now)
		case openREQ:
			s.follow(a, s.governor.unanswered(a, now), now)
		}
	}
}

// hearEvent takes in an event, if it was asked for and is not known.
func (s *Session) hearEvent(ctx context.Context, m wire.Message, now time.Time) error {
	a, ok := s.governor.open[m.Sub].(openREQ)
	if !ok {
		if e, takes := s.history.takesLate(m, now); takes {
			return s.history.takeLate(ctx, e, m, now, s.judged)
		}
		return s.governor.chargeUseless(ctx)
	}
	s.governor.heard(a, now)
	if !a.Matches(m.Event) {
		return s.governor.chargeUnasked(fmt.Sprintf("event %.64q does not match subscription %s", m.Event.ID, m.Sub))
	}
	lane := proto.LaneSyncHistoric // also of what a relay sends that does not heed limit 0
	e := ending{why: cause{source: proto.SourceLive}, came: now, waiting: &s.live.unjudged}
	switch a := a.(type) {
	case *subscription:
		if e.live = a; a.ended {
			lane = proto.LaneSyncLive
		}
	case *task:
		switch {
		case a.batch.byID: // they do not wait behind history
			lane = proto.LaneSyncLive
		case a.batch.cause.source == proto.SourceDaily:
			lane = proto.LaneSyncDaily
		}
		e.batch, e.why, e.waiting = a.batch, a.batch.cause, &a.batch.waiting
		fresh := s.history.saw(a, m.Event, now)
		e.probed = a.probes
		// It came with the page before, or was found where the relay was asked for everything.
		if !fresh || !a.brings(m.Event) {
			return s.governor.chargeUseless(ctx)
		}
	}
	switch known := s.Intake.Known(m.Event.ID); {
	case known && e.live != nil:
		return s.governor.chargeUseless(ctx)
	case known: // of the past that we expect, and it is asked for only so far
		return nil
	case e.waiting.Add(1) == 1 && e.live != nil:
		s.live.unjudgedAt = now
	}
	waited, err := s.Intake.Take(ctx, intake.Arrival{
		Event: m.Event, Lane: lane, Source: e.why.source, Came: now,
		Done: func(r intake.Result) { e.Result = r; s.judged(e) },
	})
	if waited {
		s.governor.resumed = time.Now()
	}
	return err
}

// ending is how an event ended that came for a batch or live.
type ending struct {
	intake.Result
	why     cause
	batch   *batch
	live    *subscription
	came    time.Time
	waiting *atomic.Int64 // events of the batch, or live ones, without a verdict
	probed  bool          // it was found where it was looked whether NIP-77 has hidden something
}

// ends are the endings that the session has not looked at; others bring them.
type ends struct {
	changed chan struct{} // of capacity 1: has something to receive when nothing waits any more too
	mu      sync.Mutex
	list    []ending // without a verdict, or of a live event that was known
}

// judged hears how an event ended, on any goroutine.
func (s *Session) judged(e ending) {
	if e.Err == nil && !e.Known && e.Verdict.Outcome == proto.Rejected {
		s.Observer.NotTaken("rejected")
	}
	if e.Err == nil && !e.Known && (e.Verdict.Outcome == proto.Accepted || e.Verdict.Outcome == proto.HeldBack) {
		if e.probed {
			e.batch.hidden.Store(true)
		}
		gap := e.Event.CreatedAt.Time().Before(e.why.liveUntil)
		if gap && e.batch != nil {
			e.batch.gap.Store(true)
		}
		s.Observer.Judged(e.Event, e.why.source, gap, e.Verdict)
	}
	if e.Err != nil || e.Known && e.live != nil {
		s.ends.mu.Lock()
		s.ends.list = append(s.ends.list, e)
		s.ends.mu.Unlock()
	} else if e.waiting.Add(-1) > 0 {
		return
	}
	select {
	case s.ends.changed <- struct{}{}:
	default:
	}
}

// hearEnds takes in how events ended.
func (s *Session) hearEnds(ctx context.Context, now time.Time) error {
	s.ends.mu.Lock()
	list := s.ends.list
	s.ends.list = nil
	s.ends.mu.Unlock()
	for _, e := range list {
		if err := s.hearEnd(ctx, e, now); err != nil {
			return err
		}
		e.waiting.Add(-1)
	}
	return nil
}

// hearEnd takes in that an event has no verdict, or was known: a forged one counts against the
// relay, a lost one is asked for again, and after one that is over the relay's budget the past
// waits.
func (s *Session) hearEnd(ctx context.Context, e ending, now time.Time) error {
	full := (*candidates.Later)(nil)
	switch {
	case e.Err == nil:
		return s.governor.chargeUseless(ctx)
	case errors.Is(e.Err, intake.ErrForged):
		return s.governor.chargeForged(ctx, fmt.Sprintf("event %.64q: %v", e.Event.ID, e.Err))
	case errors.Is(e.Err, nats.ErrMaxPayload): // it will never fit, so there is nothing to wait for
		s.governor.notTaken(wire.TooLarge, "event "+e.Event.ID)
		return nil
	case errors.As(e.Err, &full) && strings.HasPrefix(e.Verdict.Message, proto.MessageBudget+limit.Author+" "):
		// The past does not wait for it, or one author could stop every relay. The daily sync
		// brings the event.
		return nil
	case full != nil && !e.Verdict.TakesNoMore() && s.Reminders.Add(e.Event.ID, full.Until, now):
		return nil
	}
	if full != nil && e.Verdict.TakesNoMore() && full.Until.After(now) {
		s.history.warn("budget",
			"what the relay brings is not taken today, or the service is full; the past is asked for later", "from", full.Until)
		s.history.pause(earlier(full.Until, now.Add(24*time.Hour)))
	}
	if e.live != nil {
		s.live.lost(e.live, e.came)
		s.Reminders.Add(e.Event.ID, now.Add(retryFirst), now) // it may have been made long before it came
	}
	if e.batch != nil {
		s.history.lost(e.batch, e.Event.ID)
	}
	return nil
}
