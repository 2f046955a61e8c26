package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/candidates"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/backfill"
	"tendril.dev/services/relayconn/live"
	"tendril.dev/services/relayconn/wire"
)

// hear takes in one message of the relay.
func (s *Session) hear(ctx context.Context, m wire.Message) error {
	now := time.Now()
	if ours, err := s.past.Hear(ctx, m, now); ours || err != nil {
		if m.Kind == wire.Closed || m.Kind == wire.NegErr {
			s.complained(m.Reason, now)
		}
		return errors.Join(err, s.nothing(ctx))
	}
	if m.Kind == wire.Notice {
		s.Log.Debug("notice", "text", m.Reason)
		switch {
		case allowance.WantsQuiet(m.Reason):
			s.quieten(now, m.Reason)
		case allowance.WantsFewer(m.Reason):
			elsewhere, err := s.live.TooMany(ctx, m.Reason, now)
			if err != nil {
				return err
			}
			if elsewhere {
				s.allowance.Refused(s.live.Count() + s.past.Open())
			}
			if err := s.past.TooMany(ctx, m.Reason, elsewhere, now); err != nil {
				return err
			}
		case allowance.WantsSmaller(m.Reason):
			if !s.live.TooLarge(m.Reason, now) {
				if err := s.past.TooLarge(ctx, m.Reason); err != nil {
					return err
				}
			}
		}
		return s.nothing(ctx)
	}
	sub, request := s.live.Find(m.Sub), s.past.Find(m.Sub)
	if sub == nil && request == nil {
		return s.nothing(ctx) // closed by us while the message was on its way
	}
	if m.Kind == wire.Closed {
		s.complained(m.Reason, now)
	}
	if request != nil {
		return s.hearPast(ctx, request, m, now)
	}
	switch m.Kind {
	case wire.Event:
		return s.hearLive(ctx, sub, m)
	case wire.EOSE:
		s.live.Answered(sub)
		s.allowance.Stood(s.live.Standing())
	case wire.Closed:
		if s.live.Closed(sub, m.Reason, now); allowance.WantsFewer(m.Reason) {
			s.allowance.Refused(s.live.Count() + s.past.Open())
		}
	}
	return s.nothing(ctx)
}

// hearPast takes in a message that answers a historic request.
func (s *Session) hearPast(ctx context.Context, r *backfill.Request, m wire.Message, now time.Time) error {
	r.Heard(now)
	switch m.Kind {
	case wire.Event:
		if !r.Matches(m.Event) {
			return s.unasked(m)
		}
		if fresh, err := s.past.Saw(ctx, r, m.Event); err != nil || !fresh {
			return errors.Join(err, s.nothing(ctx)) // it came with the page before
		}
		return s.event(ctx, m.Event, r.Cause(), func() bool { return s.ledger.Depart(m.Event.ID, r.Account()) })
	case wire.EOSE:
		return s.past.Ended(ctx, r)
	case wire.Closed:
		s.past.Closed(r, m.Reason, now)
	}
	return s.nothing(ctx)
}

// fromLive is why an event comes that was not asked for by the past.
var fromLive = backfill.Cause{Source: proto.SourceLive, Lane: proto.LaneSyncLive}

// hearLive takes in a live event.
func (s *Session) hearLive(ctx context.Context, sub *live.Subscription, m wire.Message) error {
	if !sub.Matches(m.Event) {
		return s.unasked(m)
	}
	return s.event(ctx, m.Event, fromLive, func() bool { return s.ledger.DepartLive(m.Event.ID, sub.Filters(), time.Now()) })
}

// unasked counts an event that does not match what was asked for.
func (s *Session) unasked(m wire.Message) error {
	return s.odd(fmt.Sprintf("event %.64q does not match subscription %s", m.Event.ID, m.Sub))
}

// nothing notes a message that brought nothing. A relay that floods us with them is read more slowly, at its own cost: what it owes us does not get
// more time.
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
func (s *Session) complained(reason string, now time.Time) {
	if allowance.WantsQuiet(reason) {
		s.quieten(now, reason)
	}
	if strings.HasPrefix(reason, "auth-required:") {
		s.warn("auth", "the relay asks for authentication (NIP-42), which we do not do: what it keeps for those who do does not come", "reason", reason)
	}
}

// quieten asks nothing more for a while.
func (s *Session) quieten(now time.Time, why string) {
	s.warn("quiet", "the relay wants quiet", "reason", why, "for", s.Rules.Cooldown)
	s.allowance.Quieten(now)
}

// event takes in an event that was asked for, if it is what it says. depart notes it in the ledger,
// and reports whether it is not on its way already.
func (s *Session) event(ctx context.Context, ev *nostr.Event, why backfill.Cause, depart func() (first bool)) error {
	if s.Known(ev.ID) {
		if why.Source == proto.SourceLive {
			return s.nothing(ctx)
		}
		return nil // as is to be expected of the past, which is asked for only so far
	}
	if !ev.CheckID() {
		return s.odd(fmt.Sprintf("event %.64q has another id", ev.ID))
	}
	if !depart() {
		return s.nothing(ctx)
	}
	if ok, err := ev.CheckSignature(); !ok || err != nil {
		s.ledger.Arrive(ev.ID, nil)
		return s.odd(fmt.Sprintf("event %.64q has a wrong signature", ev.ID))
	}
	return s.offer(ctx, ev, why)
}

// offer puts an event to ingest. It blocks while too many candidates wait, which slows the relay down.
func (s *Session) offer(ctx context.Context, ev *nostr.Event, why backfill.Cause) error {
	began := time.Now()
	err := s.Offerer.Offer(ctx, candidates.Candidate{
		Event: ev, Lane: why.Lane, Source: why.Source, Relay: s.Relay,
		Done: func(v proto.Verdict, err error) {
			if err == nil && (v.Outcome == proto.Accepted || v.Outcome == proto.HeldBack) {
				s.Observer.Judged(ev, why.Source, why.Gap(ev), v)
			}
			if errors.Is(err, nats.ErrMaxPayload) {
				err = nil // it will never fit, so there is nothing to wait for
			}
			s.ledger.Arrive(ev.ID, err)
		},
	})
	// While nothing is read the relay is not silent.
	unread := time.Since(began)
	s.live.Unread(unread)
	s.past.Unread(unread)
	return err
}
