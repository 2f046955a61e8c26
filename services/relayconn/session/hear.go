package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/wire"
)

// hear takes in one message of the relay.
func (s *Session) hear(ctx context.Context, m wire.Message) error {
	now := time.Now()
	if m.Kind == wire.Notice {
		s.Log.Debug("notice", "text", m.Reason)
		if wantsQuiet(m.Reason) {
			s.quieten(now, m.Reason)
		}
		return nil
	}
	sub := s.subs[m.Sub]
	if sub == nil {
		return nil // closed by us while the message was on its way
	}
	if sub.task != nil {
		sub.heard = now
	}
	switch m.Kind {
	case wire.Event:
		return s.event(ctx, sub, m)
	case wire.EOSE:
		if sub.task != nil {
			return s.pageEnded(ctx, sub)
		}
	case wire.Closed:
		s.closedByRelay(sub, m.Reason, now)
	}
	return nil
}

// closedByRelay: a historic page is lost unless it was only too early; a live subscription is opened again after a pause.
func (s *Session) closedByRelay(sub *subscription, reason string, now time.Time) {
	quiet := wantsQuiet(reason)
	if quiet {
		s.quieten(now, reason)
	}
	if sub.task != nil {
		delete(s.subs, sub.id)
		s.retry(sub, "closed by the relay: "+reason)
		return
	}
	if sub.shuts++; sub.shuts > maxReopen {
		s.Log.Warn("the relay keeps closing a live subscription; it stays closed", "reason", reason)
		s.incomplete = true
		delete(s.subs, sub.id)
		return
	}
	if !quiet {
		s.Log.Warn("the relay closed a live subscription", "reason", reason)
		s.quieten(now, reason)
	}
	sub.shut = true
}

// quieten asks nothing more for a while.
func (s *Session) quieten(now time.Time, why string) {
	if !now.Before(s.limited) {
		s.Log.Warn("the relay wants quiet", "reason", why, "for", s.Rules.Cooldown)
	}
	s.limited = now.Add(s.Rules.Cooldown)
}

// wantsQuiet reports whether a relay says that we ask too much. NIP-01 has a prefix for it; many relays have words of their own.
func wantsQuiet(text string) bool {
	text = strings.ToLower(text)
	for _, phrase := range []string{"rate-limit", "rate limit", "too many requests", "too fast", "slow down"} {
		if strings.Contains(text, phrase) {
			return true
		}
	}
	return false
}

// event offers what came to ingest, if it is what it says and was asked for. It blocks while too many candidates wait, which slows the relay down.
func (s *Session) event(ctx context.Context, sub *subscription, m wire.Message) error {
	ev := m.Event
	if !sub.matches(m) {
		return s.odd(fmt.Sprintf("event %.64q does not match subscription %s", ev.ID, sub.id))
	}
	source, lane := proto.SourceLive, proto.LaneSyncLive
	var a *account
	if sub.task != nil {
		source, lane, a = s.source, s.lane, &sub.task.batch.account
		if err := sub.task.walk.Saw(ev); err != nil {
			if err := s.close(ctx, sub.id); err != nil {
				return err
			}
			s.fail(sub.task, err.Error())
			return nil
		}
	}
	if s.Known(ev.ID) {
		return nil
	}
	if !ev.CheckID() {
		return s.odd(fmt.Sprintf("event %.64q has another id", ev.ID))
	}
	if !s.ledger.depart(ev.ID, a) {
		return nil
	}
	if ok, err := ev.CheckSignature(); !ok || err != nil {
		s.ledger.arrive(ev.ID, nil)
		return s.odd(fmt.Sprintf("event %.64q has a wrong signature", ev.ID))
	}
	began := time.Now()
	err := s.Offerer.Offer(ctx, candidates.Candidate{
		Event: ev, Lane: lane, Source: source, Relay: s.Relay,
		Done: func(v proto.Verdict, err error) {
			if err == nil && (v.Outcome == proto.Accepted || v.Outcome == proto.HeldBack) {
				s.Observer.Judged(ev, source, v)
			}
			s.ledger.arrive(ev.ID, err)
		},
	})
	// While we waited for room nothing was read; that is not the relay's silence.
	waited := time.Since(began)
	for _, other := range s.subs {
		if other.task != nil {
			other.heard = other.heard.Add(waited)
		}
	}
	return err
}

// matches reports whether an event is what a subscription asked for.
func (sub *subscription) matches(m wire.Message) bool {
	if sub.task != nil {
		return sub.task.walk.Matches(m.Event)
	}
	for _, f := range sub.filters {
		if f.Matches(m.Event) {
			return true
		}
	}
	return false
}
