package session

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
)

const (
	// filtersPerReq is how many live filters one subscription carries, and bytesPerReq about how long a REQ may become: many relays take no more.
	filtersPerReq = 10
	bytesPerReq   = 64 << 10
	// maxReopen is how often a live subscription that the relay closed is opened again on one connection.
	maxReopen = 5
)

func (s *Session) name(prefix string) string {
	s.nextID++
	return prefix + strconv.Itoa(s.nextID)
}

// openLive subscribes to what comes from now on. Filters of layers 2 and 3 go together with those of the newest subscription while it has room, so
// that many small additions do not become many subscriptions, of which relays allow few. That is a new subscription too: where a REQ replaces
// another, nobody knows what the relay does first.
func (s *Session) openLive(ctx context.Context, filters []nostr.Filter, first bool) error {
	filters = layers.Live(filters)
	if newest := s.newest; !first && newest != nil && s.shut[newest.id] == nil && s.fits(newest.filters, filters) > 0 {
		filters = slices.Concat(newest.filters, filters)
		s.leave(newest)
	}
	for len(filters) > 0 {
		n := max(1, s.fits(nil, filters))
		sub := &subscription{id: s.name("l"), filters: filters[:n:n], first: first}
		filters = filters[n:]
		s.live[sub.id] = sub
		if !first {
			s.newest = sub
		}
		if err := s.open(ctx, sub, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// open asks for a live subscription.
func (s *Session) open(ctx context.Context, sub *subscription, now time.Time) error {
	s.turns++
	sub.asked, sub.turn, sub.reopenAt = now, s.turns, time.Time{}
	s.opening[sub.id] = sub
	return s.Asker.Req(ctx, sub.id, sub.filters)
}

// opened notes that a live subscription is open, and asks for what came while it was not.
func (s *Session) opened(sub *subscription) {
	delete(s.opening, sub.id)
	delete(s.shut, sub.id)
	s.makeUp(sub)
	sub.held = true
}

// shutMargin is how much earlier than the CLOSED what was missed is asked for: clocks differ, and events come late.
const shutMargin = 15 * time.Minute

// makeUp plans to ask for what came since the relay closed a live subscription, if it did.
func (s *Session) makeUp(sub *subscription) {
	if sub.shutAt.IsZero() {
		return
	}
	since := nostr.Timestamp(sub.shutAt.Add(-shutMargin).Unix())
	why := cause{source: proto.SourceReconnect, lane: proto.LaneSyncHistoric, missing: sub.shutAt}
	if sub.held {
		why.liveUntil = sub.shutAt
	}
	sub.shutAt = time.Time{}
	s.enqueue(plan{filters: layers.Stored(sub.filters), cause: why}, &since)
}

// split asks in smaller pieces for what is too much in one subscription for the relay, which gets no larger ones from now on.
func (s *Session) split(sub *subscription, reason string, now time.Time) {
	s.perReq = max(1, len(sub.filters)/2)
	s.warn("split", "the relay takes no subscription as large as this; they are made smaller", "reason", reason, "filters", s.perReq)
	s.forget(sub)
	for filters := range slices.Chunk(sub.filters, s.perReq) {
		part := &subscription{id: s.name("l"), filters: filters, first: sub.first, held: sub.held, shutAt: earlier(sub.shutAt, now), reopenAt: now}
		s.live[part.id], s.shut[part.id] = part, part
	}
}

// leave lets go of a live subscription because others replace it. It is closed only when the relay has answered for those, so that nothing falls
// in between; where it did not take one, what came since then is made up for.
func (s *Session) leave(sub *subscription) {
	if sub.reopenAt.IsZero() {
		s.leaving[sub.id] = sub
	}
	s.forget(sub)
	s.makeUp(sub)
}

// forget makes a subscription no live one any more.
func (s *Session) forget(sub *subscription) {
	delete(s.live, sub.id)
	delete(s.opening, sub.id)
	delete(s.shut, sub.id)
	if s.newest == sub {
		s.newest = nil
	}
}

// closeLeft closes what was left, if the relay has answered for what replaces it, or is not going to. Events under its names may still be on their way.
func (s *Session) closeLeft(ctx context.Context, now time.Time) error {
	if len(s.leaving) == 0 || !s.mayAsk(now) {
		return nil
	}
	s.left, s.leaving = s.leaving, map[string]*subscription{}
	for id := range s.left {
		if err := s.Asker.Unsubscribe(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// fits is how many more filters a subscription takes.
func (s *Session) fits(have, more []nostr.Filter) int {
	size := 0
	for _, f := range have {
		size += layers.Bytes(f)
	}
	for n, f := range more {
		if size += layers.Bytes(f); size > bytesPerReq || len(have)+n >= s.perReq {
			return n
		}
	}
	return len(more)
}

// reopen subscribes again where the relay closed a live subscription a while ago.
func (s *Session) reopen(ctx context.Context, now time.Time) error {
	if now.Before(s.limited) {
		return nil
	}
	for _, sub := range s.shut {
		if sub.reopenAt.IsZero() || now.Before(sub.reopenAt) {
			continue
		}
		if err := s.open(ctx, sub, now); err != nil {
			return err
		}
	}
	return nil
}

// crowded reports whether the live filters of layers 2 and 3 should be made fewer before those that are due are added. Where even the fewest are
// too many, that is done only when it saves a good part, not with every addition.
func (s *Session) crowded() bool {
	open := 0
	for _, sub := range s.live {
		if !sub.first {
			open += len(sub.filters)
		}
	}
	if open == 0 || open+len(s.due.filters) <= s.Rules.MaxFilters {
		return false
	}
	asked := []items.Set{s.confirmed, s.failed}
	for _, b := range s.batches {
		asked = append(asked, b.items)
	}
	fewest := layers.Fewest(asked...)
	return fewest+len(s.due.filters) <= s.Rules.MaxFilters || open-fewest >= (s.Rules.MaxFilters+3)/4
}

// mayConsolidate reports whether consolidation need not wait for pending batches any more.
func (s *Session) mayConsolidate(now time.Time) bool {
	if s.pending() {
		if s.consolidateBy.IsZero() {
			s.consolidateBy = now.Add(s.Rules.ConsolidateWait)
		}
		if now.Before(s.consolidateBy) {
			return false
		}
		s.Log.Info("consolidating while historic sync is pending; it will come again", "batches", len(s.batches))
	}
	s.consolidateBy = time.Time{}
	return true
}

// consolidate leaves the many live filters of layers 2 and 3, and gives the few full ones that are to replace them. What a start asks for goes on
// meanwhile: its filters are not replaced, and the diff would not bring it back.
func (s *Session) consolidate(ctx context.Context) (fewer []nostr.Filter, err error) {
	if err := s.dropPending(ctx); err != nil {
		return nil, err
	}
	s.plan(s.due.cause)
	for _, sub := range s.live {
		if !sub.first {
			s.leave(sub)
		}
	}
	return layers.TwoAndThree(items.Union(s.confirmed, s.failed)), nil
}
