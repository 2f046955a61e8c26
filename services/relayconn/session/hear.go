package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/candidates"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/wire"
)

// hear takes in one message of the relay.
func (s *Session) hear(ctx context.Context, m wire.Message) error {
	now := time.Now()
	if m.Kind == wire.Notice {
		s.Log.Debug("notice", "text", m.Reason)
		switch {
		case wantsQuiet(m.Reason):
			s.quieten(now, m.Reason)
		case wantsFewer(m.Reason):
			s.tooMany(m.Reason, now)
		}
		return s.nothing(ctx)
	}
	sub := cmp.Or(s.live[m.Sub], s.past[m.Sub], s.leaving[m.Sub], s.left[m.Sub])
	if sub == nil {
		return s.nothing(ctx) // closed by us while the message was on its way
	}
	sub.heard = now
	switch {
	case m.Kind == wire.Event:
		return s.event(ctx, sub, m)
	case m.Kind == wire.EOSE && sub.task != nil:
		return s.pageEnded(ctx, sub)
	case m.Kind == wire.EOSE && s.opening[sub.id] != nil:
		s.opened(sub)
	case m.Kind == wire.Closed:
		s.closedByRelay(sub, m.Reason, now)
	}
	return s.nothing(ctx)
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

// closedByRelay: a historic page is lost unless it was only too early; a live subscription is opened again after a pause.
func (s *Session) closedByRelay(sub *subscription, reason string, now time.Time) {
	if wantsQuiet(reason) {
		s.quieten(now, reason)
	}
	if strings.HasPrefix(reason, "auth-required:") {
		s.warn("auth", "the relay asks for authentication (NIP-42), which we do not do: what it keeps for those who do does not come", "reason", reason)
	}
	refused := s.opening[sub.id] != nil
	switch {
	case sub.task != nil:
		delete(s.past, sub.id)
		s.retry(sub, "closed by the relay: "+reason)
	case !sub.reopenAt.IsZero(): // it is closed already
	case refused && !wantsQuiet(reason) && wantsSmaller(reason) && len(sub.filters) > 1:
		s.split(sub, reason, now)
	case s.live[sub.id] != nil:
		s.liveClosed(sub, reason, refused && (wantsQuiet(reason) || wantsFewer(reason)), now)
	case s.leaving[sub.id] != nil: // before those that replace it are open
		delete(s.leaving, sub.id)
		sub.shutAt = now
		s.makeUp(sub)
	}
}

// tooMany: where a relay has too many of our subscriptions, its notice does not say which one it did not take, and it may even have answered for that
// (strfry sends EOSE before it looks). It is most likely the one that was asked for last.
func (s *Session) tooMany(reason string, now time.Time) {
	var last *subscription
	for _, sub := range s.live {
		if sub.reopenAt.IsZero() && now.Before(sub.asked.Add(s.Rules.Silence)) && (last == nil || sub.turn > last.turn) {
			last = sub
		}
	}
	if last != nil {
		s.liveClosed(last, reason, true, now)
	}
}

// liveClosed plans to open a live subscription again. That is not done for ever, unless the relay did not take it only because it was too early.
func (s *Session) liveClosed(sub *subscription, reason string, early bool, now time.Time) {
	s.warn("closed", "the relay closed a live subscription", "reason", reason)
	delete(s.opening, sub.id)
	if !early {
		sub.shuts++
	}
	sub.shutAt = earlier(sub.shutAt, now)
	if sub.shuts > maxReopen {
		s.warn("kept closed", "the relay keeps closing a live subscription; it stays closed", "reason", reason)
		s.incomplete, s.gaveUp = true, earlier(s.gaveUp, sub.shutAt)
		s.forget(sub)
		return
	}
	s.shut[sub.id], sub.reopenAt = sub, now.Add(s.Rules.Cooldown)
}

// quieten asks nothing more for a while.
func (s *Session) quieten(now time.Time, why string) {
	s.warn("quiet", "the relay wants quiet", "reason", why, "for", s.Rules.Cooldown)
	s.limited = now.Add(s.Rules.Cooldown)
}

// wantsQuiet reports whether a relay says that we ask too much. NIP-01 has a prefix for it; many relays have words of their own.
func wantsQuiet(text string) bool {
	return says(text, "rate-limit", "rate limit", "too many requests", "too fast", "slow down")
}

// wantsFewer reports whether a relay says that we have too many subscriptions open.
func wantsFewer(text string) bool { return says(text, "too many concurrent", "too many subscriptions") }

// wantsSmaller reports whether a relay says that one subscription asks for too much.
func wantsSmaller(text string) bool { return says(text, "filter", "too large", "too big") }

func says(text string, phrases ...string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(phrases, func(phrase string) bool { return strings.Contains(text, phrase) })
}

// event takes in an event, if it is what it says and was asked for.
func (s *Session) event(ctx context.Context, sub *subscription, m wire.Message) error {
	ev := m.Event
	if !sub.matches(ev) {
		return s.odd(fmt.Sprintf("event %.64q does not match subscription %s", ev.ID, sub.id))
	}
	why := live
	var a *account
	if sub.task != nil {
		why, a = sub.task.batch.cause, &sub.task.batch.account
		fresh, err := sub.task.walk.Saw(ev)
		if err != nil {
			s.fail(sub.task, err.Error())
			return s.stop(ctx, sub)
		}
		if !fresh {
			return s.nothing(ctx) // it came with the page before
		}
	}
	if s.Known(ev.ID) {
		return s.nothing(ctx)
	}
	if !ev.CheckID() {
		return s.odd(fmt.Sprintf("event %.64q has another id", ev.ID))
	}
	if !s.ledger.depart(ev.ID, a) {
		return s.nothing(ctx)
	}
	if ok, err := ev.CheckSignature(); !ok || err != nil {
		s.ledger.arrive(ev.ID, nil)
		return s.odd(fmt.Sprintf("event %.64q has a wrong signature", ev.ID))
	}
	return s.offer(ctx, ev, why)
}

// live is why an event comes that was not asked for by the past.
var live = cause{source: proto.SourceLive, lane: proto.LaneSyncLive}

// offer puts an event to ingest. It blocks while too many candidates wait, which slows the relay down.
func (s *Session) offer(ctx context.Context, ev *nostr.Event, why cause) error {
	began := time.Now()
	err := s.Offerer.Offer(ctx, candidates.Candidate{
		Event: ev, Lane: why.lane, Source: why.source, Relay: s.Relay,
		Done: func(v proto.Verdict, err error) {
			if err == nil && (v.Outcome == proto.Accepted || v.Outcome == proto.HeldBack) {
				s.Observer.Judged(ev, why.source, why.gap(ev), v)
			}
			if errors.Is(err, nats.ErrMaxPayload) {
				err = nil // it will never fit, so there is nothing to wait for
			}
			s.ledger.arrive(ev.ID, err)
		},
	})
	s.waited(time.Since(began))
	return err
}

// matches reports whether an event is what a subscription asked for.
func (sub *subscription) matches(ev *nostr.Event) bool {
	if sub.task != nil {
		return sub.task.walk.Matches(ev)
	}
	for _, f := range sub.filters {
		if f.Matches(ev) {
			return true
		}
	}
	return false
}
