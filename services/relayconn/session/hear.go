package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/netguard"
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
		s.notTaken(m.Reason, "a message that cannot be used")
		return s.chargeUseless(ctx)
	}
	if s.open[m.Sub] != nil && (m.Kind == wire.Closed || m.Kind == wire.NegErr) {
		why := wire.ReadRefusal(m.Reason)
		if why.Quiet {
			s.quieten(now, m.Reason)
		}
		s.authNeeded = s.authNeeded || why.Proof
	}
	switch a := s.open[m.Sub].(type) {
	case *search:
		switch m.Kind {
		case wire.NegMsg:
			s.rec.answer(ctx, a, m, now)
		case wire.NegErr, wire.Closed:
			s.rec.refused(a, m.Reason, now)
		}
	case asking:
		switch m.Kind {
		case wire.Closed:
			delete(s.open, m.Sub)
			s.refused(a, wire.ReadRefusal(m.Reason), m.Reason, now)
		case wire.EOSE:
			s.answered = true
			s.heard(a, now)
			a.req().ended = true
			t, past := a.(*task)
			switch {
			case past && s.grace > 0:
				t.endAt = now.Add(s.grace)
				return nil
			case past:
				s.ended(t, now)
				return nil
			}
		}
	default: // it is about no request that is open
		switch m.Kind {
		case wire.Notice:
			if !s.rec.notice(m.Reason, now) {
				s.notice(m.Reason, now)
			}
		case wire.Auth:
			s.challenge = m.Reason
		}
	}
	return s.chargeUseless(ctx)
}

// heard notes an answer to a request, which is open therefore.
func (s *Session) heard(a asked, now time.Time) {
	r := a.req()
	r.heard, r.doubted = now, time.Time{}
	if r.answered {
		return
	}
	r.answered = true
	standing := 0
	for _, o := range s.open {
		if _, is := o.(asking); is && o.req().answered {
			standing++
		}
	}
	s.limits.Stood(standing)
}

// hearEvent takes in an event, if it was asked for and is not known.
func (s *Session) hearEvent(ctx context.Context, m wire.Message, now time.Time) error {
	a, ok := s.open[m.Sub].(asking)
	if !ok {
		return s.hearLate(ctx, m, now)
	}
	s.heard(a, now)
	if !a.Matches(m.Event) {
		return s.chargeUnasked(fmt.Sprintf("event %.64q does not match subscription %s", m.Event.ID, m.Sub))
	}
	lane := proto.LaneSyncHistoric // also of what a relay sends that does not heed limit 0
	e := ending{why: cause{source: proto.SourceLive}, came: now, waiting: &s.unjudged}
	switch a := a.(type) {
	case *live:
		if e.live = a; a.ended {
			lane = proto.LaneSyncLive
		}
	case *task:
		if a.batch.cause.source == proto.SourceDaily {
			lane = proto.LaneSyncDaily
		}
		e.batch, e.why, e.waiting = a.batch, a.batch.cause, &a.batch.waiting
		fresh, enough := a.Saw(m.Event)
		if fresh && a.fetches {
			a.batch.took(m.Event)
		}
		if enough {
			s.ended(a, now)
		}
		// It came with the page before, or was found where the relay was asked for everything.
		if !fresh || a.fetches && !asksFor(a.batch.groups, m.Event) {
			return s.chargeUseless(ctx)
		}
	}
	switch known := s.Intake.Known(m.Event.ID); {
	case known && e.live != nil:
		return s.chargeUseless(ctx)
	case known: // of the past that we expect, and it is asked for only so far
		return nil
	case e.waiting.Add(1) == 1 && e.live != nil:
		s.unjudgedAt = now
	}
	waited, err := s.Intake.Take(ctx, intake.Arrival{
		Event: m.Event, Lane: lane, Source: e.why.source, Came: now,
		Done: func(r intake.Result) { e.Result = r; s.judged(e) },
	})
	if waited {
		s.resumed = time.Now()
	}
	return err
}

// chargeUseless notes a message that brought nothing. A relay that floods us with them is read more
// slowly, at its own cost: what it owes us does not get more time.
func (s *Session) chargeUseless(ctx context.Context) error { return slowDown(ctx, s.useless) }

func slowDown(ctx context.Context, limiter *rate.Limiter) error {
	wait := limiter.Reserve().Delay()
	if wait == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
	}
	return nil
}

// notTaken counts what the relay sent and ingest does not get.
func (s *Session) notTaken(reason, what string) {
	s.warn("not taken: "+reason, "something that the relay sent is left out", "reason", reason, "what", what)
	s.Observer.NotTaken(reason)
}

// chargeUnasked counts what the relay sent by itself.
func (s *Session) chargeUnasked(what string) error {
	s.notTaken("not asked for", what)
	if s.unasked++; s.unasked > maxUnasked {
		return &netguard.ProtocolError{Err: fmt.Errorf("%d events that were not asked for, the last: %s", s.unasked, what)}
	}
	return nil
}

// chargeForged notes an event with a wrong id or signature. Its relay is read more slowly, and is
// not excluded for it: one stranger could hide a whole relay that does not verify.
func (s *Session) chargeForged(ctx context.Context, what string) error {
	s.notTaken("not genuine", what)
	err := slowDown(ctx, s.forged)
	s.resumed = time.Now() // it was we who did not read
	return err
}

// quieten asks nothing more for a while: twice as long each time in a row, up to an hour. What the
// relay says during a pause is about what was asked before it.
func (s *Session) quieten(now time.Time, why string) {
	s.quiet = s.Pauses.Begin(now, s.Rules.Cooldown)
	s.warn("quiet", "the relay wants quiet", "reason", why, "until", s.quiet)
}

// Pauses are the times for which a relay wanted quiet, over all sessions with it.
type Pauses struct {
	until time.Time
	last  time.Duration
}

// longestPause is the longest pause; calmAfter a pause without another one, the next is the first
// again.
const longestPause, calmAfter = time.Hour, 5 * time.Minute

// Begin begins a pause, of which the first lasts as long as given, and returns its end.
func (p *Pauses) Begin(now time.Time, first time.Duration) time.Time {
	switch {
	case now.Before(p.until):
		return p.until
	case now.Sub(p.until) >= calmAfter:
		p.last = first
	default:
		p.last = min(2*p.last, longestPause)
	}
	p.until = now.Add(p.last)
	return p.until
}

// ending is how an event ended that came for a batch or live.
type ending struct {
	intake.Result
	why     cause
	batch   *batch
	live    *live
	came    time.Time
	waiting *atomic.Int64 // events of the batch, or live ones, without a verdict
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
		s.Observer.Judged(e.Event, e.why.source, e.Event.CreatedAt.Time().Before(e.why.liveUntil), e.Verdict)
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

// hearEnds takes in how events ended: the forged ones count against the relay, what was lost is
// asked for again, and after one that is over the relay's budget the past waits.
func (s *Session) hearEnds(ctx context.Context, now time.Time) error {
	s.ends.mu.Lock()
	list := s.ends.list
	s.ends.list = nil
	s.ends.mu.Unlock()
	for _, e := range list {
		var err error
		lost, full := false, (*candidates.Later)(nil)
		switch {
		case e.Err == nil:
			err = s.chargeUseless(ctx)
		case errors.Is(e.Err, intake.ErrForged):
			err = s.chargeForged(ctx, fmt.Sprintf("event %.64q: %v", e.Event.ID, e.Err))
		case errors.Is(e.Err, nats.ErrMaxPayload): // it will never fit, so there is nothing to wait for
			s.notTaken(wire.TooLarge, "event "+e.Event.ID)
		case errors.As(e.Err, &full) && strings.HasPrefix(e.Verdict.Message, "rate-limited: this "+limit.Author+" "):
			// The past does not wait for it, or one author could stop every relay. The daily sync
			// brings the event.
		default:
			lost = true
		}
		if err != nil {
			return err
		}
		if lost && full != nil && full.Until.After(now) {
			s.warn("budget", "what the relay brings is not taken today, or the service is full; the past is asked for later", "from", full.Until)
			s.hold = later(s.hold, earlier(full.Until, now.Add(24*time.Hour)))
		}
		if l := e.live; lost && l != nil { // missing like those that did not come
			s.warn("unjudged", "events that came live had no verdict; they are asked for again", "since", e.came)
			if l.missing = earlier(l.missing, e.came); !slices.Contains(s.lives, l) {
				s.makeUp(l)
			}
		}
		if b := e.batch; lost && b != nil {
			s.warn("lost", "historic sync is incomplete; it is tried again", "reason", "events without a verdict")
			b.again = true
		}
		e.waiting.Add(-1)
	}
	return nil
}

// authenticate answers the relay's challenge (NIP-42) once a connection, if the relay has refused
// something without.
func (s *Session) authenticate() error {
	challenge := s.challenge
	if !s.authNeeded || s.authSent || challenge == "" || s.Authenticate == nil {
		return nil
	}
	s.authSent = true
	if err := s.Authenticate(challenge); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("authenticate to the relay: %w", err)
	}
	return nil
}
