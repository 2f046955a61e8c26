package session

import (
	"context"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
)

// missedMargin is how much earlier than it went missing the past is asked for: clocks differ, and
// events come late.
const missedMargin = 15 * time.Minute

// plan is what to ask for beyond layer 1, and why.
type plan struct {
	items   history.Set
	filters []nostr.Filter
	cause   history.Cause
}

// makeUp plans to ask for what did not come live.
func (s *Session) makeUp(m missed) {
	why := history.Cause{Source: proto.SourceReconnect, Lane: proto.LaneSyncHistoric, Missing: m.Since}
	if m.Held {
		why.LiveUntil = m.Since
	}
	s.past.Add(history.Work{Filters: m.Filters, Cause: why, Since: missedSince(m.Since), For: m.Sub})
}

// askUnjudged plans to ask again for what came live and never got a verdict. While that is under
// way, what else has none waits: where ingest stands still, it would only be asked for in vain.
func (s *Session) askUnjudged() {
	if s.past.Standing().Judging {
		return
	}
	for _, u := range s.inflight.TakeUnjudged() {
		s.warn("unjudged", "events that came live had no verdict; they are asked for again", "since", u.Since)
		why := history.Cause{Source: proto.SourceReconnect, Lane: proto.LaneSyncHistoric, Missing: u.Since, Unjudged: true}
		s.past.Add(history.Work{Filters: history.Stored(u.Filters), Cause: why, Since: missedSince(u.Since)})
	}
}

// missedSince is from when to ask for what is missing since t.
func missedSince(t time.Time) *nostr.Timestamp {
	since := nostr.Timestamp(t.Add(-missedMargin).Unix())
	return &since
}

// want takes in what the target says now.
func (s *Session) want(w Wanted) {
	s.wanted = w
	s.past.Want(w.Items)
	s.plan(startup)
}

// plan works out what is wanted and was not asked for yet: the three-way diff, with which
// everything beyond layer 1 begins.
func (s *Session) plan(why history.Cause) {
	fresh := history.Diff(s.wanted.Items, s.past.Asked(), s.past.Confirmed())
	s.due = plan{items: fresh, filters: history.FiltersOf(fresh), cause: why}
}

// add asks for what was planned, as soon as the relay and consolidation allow it, and reports
// whether it did.
func (s *Session) add(ctx context.Context, now time.Time) (added bool, err error) {
	if s.due.items.Empty() {
		s.consolidateBy = time.Time{}
		return false, nil
	}
	if !s.mayAsk(now) || s.waits(now) {
		return false, nil
	}
	if !s.crowded() {
		return true, s.request(ctx, nil)
	}
	if !s.mayConsolidate(now) {
		return false, nil
	}
	fewer, err := s.consolidate(ctx)
	if err != nil {
		return false, err
	}
	return true, s.request(ctx, fewer)
}

// request asks for what was planned, live and historic, and for what else must be live.
func (s *Session) request(ctx context.Context, also []nostr.Filter) error {
	p := s.due
	s.due = plan{}
	if err := s.past.Yield(ctx, s.live.Count()+s.live.Pieces(slices.Concat(also, p.filters))); err != nil {
		return err
	}
	if err := s.live.Open(ctx, slices.Concat(also, p.filters), false); err != nil {
		return err
	}
	if !p.items.Empty() {
		// Of what is found later, one by one, hardly anything is known.
		s.past.Add(history.Work{Items: p.items, Filters: p.filters, Cause: p.cause, Reconcile: s.fresh})
		s.fresh = false
	}
	return nil
}

// mayAsk reports whether something new may be asked for.
func (s *Session) mayAsk(now time.Time) bool { return s.live.Settled() && !s.limits.Quiet(now) }
