package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/limit"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
)

// atOnce is how many messages are heard before what has become due is done.
const atOnce = 64

// hearAll takes in a message of the relay, and those that are there already, unless one of them had
// to wait.
func (s *Session) hearAll(ctx context.Context, m wire.Message, more <-chan wire.Message) error {
	for n := 1; ; n++ {
		if err := s.hear(ctx, m); err != nil || n == atOnce || s.waited {
			s.waited = false
			return err
		}
		var open bool
		select {
		case m, open = <-more:
			if !open {
				return nil // which is found again
			}
		default:
			return nil
		}
	}
}

// hear takes in one message of the relay.
func (s *Session) hear(ctx context.Context, m wire.Message) error {
	m.Heard()
	now := time.Now()
	if ours, err := s.past.Hear(ctx, m, now); ours || err != nil {
		if m.Kind == wire.Closed || m.Kind == wire.NegErr {
			err = errors.Join(err, s.complained(ctx, m.Reason, now))
		}
		return errors.Join(err, s.nothing(ctx))
	}
	if m.Kind == wire.Notice {
		s.Log.Debug("notice", "text", m.Reason)
		switch {
		case wire.WantsQuiet(m.Reason):
			s.quieten(now, m.Reason)
		case wire.WantsFewer(m.Reason):
			elsewhere, err := s.live.TooMany(ctx, m.Reason, now)
			if err != nil {
				return err
			}
			if elsewhere {
				s.limits.Refused(s.live.Count() + s.past.Open())
			}
			if err := s.past.TooMany(ctx, m.Reason, elsewhere, now); err != nil {
				return err
			}
		case wire.WantsSmaller(m.Reason):
			elsewhere := s.live.TooLarge(m.Reason, now)
			if err := s.past.TooLarge(ctx, m.Reason, elsewhere, now); err != nil {
				return err
			}
		default:
			s.live.Doubt(now)
			s.past.Doubt(now, false)
		}
		return s.nothing(ctx)
	}
	if m.Kind == wire.Auth {
		s.auth.challenge = m.Reason
		return errors.Join(s.prove(ctx), s.nothing(ctx))
	}
	sub, request := s.live.Find(m.Sub), s.past.Find(m.Sub)
	if sub == nil && request == nil {
		return s.nothing(ctx) // closed by us while the message was on its way
	}
	switch m.Kind {
	case wire.Closed:
		if err := s.complained(ctx, m.Reason, now); err != nil {
			return err
		}
	case wire.EOSE:
		s.answered = true
	}
	if request != nil {
		return s.hearPast(ctx, request, m, now)
	}
	switch m.Kind {
	case wire.Event:
		s.live.Answered(sub)
		return s.hearLive(ctx, sub, m)
	case wire.EOSE:
		s.live.Answered(sub)
		s.limits.Stood(s.live.Standing())
	case wire.Closed:
		if s.live.Closed(sub, m.Reason, now); wire.WantsFewer(m.Reason) {
			s.limits.Refused(s.live.Count() + s.past.Open())
		}
	}
	return s.nothing(ctx)
}

// hearPast takes in a message that answers a historic request.
func (s *Session) hearPast(ctx context.Context, r *history.Request, m wire.Message, now time.Time) error {
	r.Heard(now)
	switch m.Kind {
	case wire.Event:
		if !r.Matches(m.Event) {
			return s.unasked(m)
		}
		if fresh, err := s.past.Saw(ctx, r, m.Event); err != nil || !fresh {
			return errors.Join(err, s.nothing(ctx)) // it came with the page before
		}
		return s.event(ctx, m, r.Cause(m.Event), func() history.Owed { return s.inflight.Past(r.Account()) })
	case wire.EOSE:
		return s.past.Ended(ctx, r)
	case wire.Closed:
		s.past.Closed(r, m.Reason, now)
	}
	return s.nothing(ctx)
}

// fromLive is why an event comes that was not asked for by the past.
var fromLive = history.Cause{Source: proto.SourceLive, Lane: proto.LaneSyncLive}

// hearLive takes in a live event.
func (s *Session) hearLive(ctx context.Context, sub *subscription, m wire.Message) error {
	if !sub.Matches(m.Event) {
		return s.unasked(m)
	}
	return s.event(ctx, m, fromLive, func() history.Owed { return s.inflight.Live(sub.Filters(), time.Now()) })
}

// unasked counts an event that does not match what was asked for.
func (s *Session) unasked(m wire.Message) error {
	return s.odd(fmt.Sprintf("event %.64q does not match subscription %s", m.Event.ID, m.Sub))
}

// nothing notes a message that brought nothing. A relay that floods us with them is read more
// slowly, at its own cost: what it owes us does not get more time.
func (s *Session) nothing(ctx context.Context) error {
	reservation := s.useless.Reserve()
	wait := reservation.Delay()
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

// complained takes in why the relay closed a subscription, whichever.
func (s *Session) complained(ctx context.Context, reason string, now time.Time) error {
	if wire.WantsQuiet(reason) {
		s.quieten(now, reason)
	}
	if wire.WantsProof(reason) {
		return s.unproved(ctx, reason, now)
	}
	return nil
}

// quieten asks nothing more for a while.
func (s *Session) quieten(now time.Time, why string) {
	s.warn("quiet", "the relay wants quiet", "reason", why, "for", s.Rules.Cooldown)
	s.limits.Quieten(now)
}

// event takes in an event that was asked for, unless it is known. What is known costs nothing where
// it is to be expected: of the past, which is asked for only so far.
func (s *Session) event(ctx context.Context, m wire.Message, why history.Cause, depart func() history.Owed) error {
	if s.Intake.Known(m.Event.ID) {
		if why.Source == proto.SourceLive {
			return s.nothing(ctx)
		}
		return nil
	}
	owed := depart()
	waited, err := s.Intake.Take(ctx, intake.Arrival{
		Event: m.Event, Raw: m.Raw, Lane: why.Lane, Source: why.Source, Done: func(r intake.Result) { s.ended(why, owed, r) },
	})
	if s.waited = waited > 0; s.waited {
		// While nothing is read the relay is not silent.
		s.live.Unread(waited)
		s.past.Unread(waited)
	}
	// What came live and turned out to be known since brought nothing.
	for range s.idle.Swap(0) {
		err = errors.Join(err, s.nothing(ctx))
	}
	return err
}

// ended hears how an event ended, on whatever goroutine.
func (s *Session) ended(why history.Cause, owed history.Owed, r intake.Result) {
	ev, err := r.Event, r.Err
	var later *candidates.Later
	switch {
	case errors.Is(err, intake.ErrForged):
		select {
		case s.forged <- fmt.Sprintf("event %.64q: %v", ev.ID, err):
		default: // there are enough of them
		}
		s.inflight.Wake()
		err = nil // it is of no use to anybody
	case errors.Is(err, nats.ErrMaxPayload):
		err = nil // it will never fit, so there is nothing to wait for
	case r.Known || err == nil && r.Copy:
		if why.Source == proto.SourceLive {
			s.idle.Add(1)
		}
	case errors.As(err, &later) && strings.HasPrefix(r.Verdict.Message, "rate-limited: this "+limit.Author+" "):
		err = nil // it comes with a daily sync; else one author would stop every relay
	case errors.As(err, &later): // it is asked for again then
		s.later.Store(later.Until.Unix())
	case err == nil && (r.Verdict.Outcome == proto.Accepted || r.Verdict.Outcome == proto.HeldBack):
		s.Observer.Judged(ev, why.Source, why.Gap(ev), r.Verdict)
	}
	s.inflight.Arrive(owed, err)
}

// hearEnds takes in that events have ended: the forged ones count against the relay, and one that
// is over its budget is read later.
func (s *Session) hearEnds() error {
	if at := s.later.Swap(0); at > 0 {
		until := time.Unix(at, 0)
		s.warn("budget", "what the relay brings is not taken today, or the service is full; the past is asked for later", "from", until)
		s.past.Hold(until)
	}
	for {
		select {
		case what := <-s.forged:
			if err := s.odd(what); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}
