package session

import (
	"context"
	"strconv"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
)

const (
	// perReq is how many live filters one subscription carries, and bytesPerReq about how long a REQ may become: many relays take no more.
	perReq      = 10
	bytesPerReq = 64 << 10
	// maxReopen is how often a live subscription that the relay closed is opened again on one connection.
	maxReopen = 5
)

func (s *Session) name(prefix string) string {
	s.nextID++
	return prefix + strconv.Itoa(s.nextID)
}

// openLive subscribes to what comes from now on. Filters of layers 2 and 3 go to the newest subscription while it has room, so that many small
// additions do not become many subscriptions, of which relays allow few.
func (s *Session) openLive(ctx context.Context, filters []nostr.Filter, first bool) error {
	filters = layers.Live(filters)
	if sub := s.newest; !first && sub != nil && sub.reopenAt.IsZero() {
		if n := fits(sub.filters, filters); n > 0 {
			sub.filters, filters = append(sub.filters[:len(sub.filters):len(sub.filters)], filters[:n]...), filters[n:]
			if err := s.Asker.Req(ctx, sub.id, sub.filters); err != nil {
				return err
			}
		}
	}
	for len(filters) > 0 {
		n := max(1, fits(nil, filters))
		sub := &subscription{id: s.name("l"), filters: filters[:n:n], first: first}
		filters = filters[n:]
		s.live[sub.id] = sub
		if !first {
			s.newest = sub
		}
		if err := s.Asker.Req(ctx, sub.id, sub.filters); err != nil {
			return err
		}
	}
	return nil
}

// fits is how many more filters a subscription takes.
func fits(have, more []nostr.Filter) int {
	size := 0
	for _, f := range have {
		size += layers.Bytes(f)
	}
	for n, f := range more {
		if size += layers.Bytes(f); size > bytesPerReq || len(have)+n == perReq {
			return n
		}
	}
	return len(more)
}

// shutMargin is how much earlier than the CLOSED what was missed is asked for: clocks differ, and events come late.
const shutMargin = time.Minute

// reopen subscribes again where the relay closed a live subscription a while ago, and asks for what has come since then.
func (s *Session) reopen(ctx context.Context, now time.Time) error {
	if now.Before(s.limited) {
		return nil
	}
	for _, sub := range s.live {
		if sub.reopenAt.IsZero() || now.Before(sub.reopenAt) {
			continue
		}
		sub.reopenAt = time.Time{}
		if err := s.Asker.Req(ctx, sub.id, layers.Since(sub.filters, sub.shutAt.Add(-shutMargin))); err != nil {
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

// consolidate replaces many live filters by few full ones. It waits for pending batches first, and says whether it is done. What a start asks for
// goes on meanwhile: its filters are not replaced, and the diff would not bring it back.
func (s *Session) consolidate(ctx context.Context, now time.Time) (bool, error) {
	if s.pending() {
		if s.consolidateBy.IsZero() {
			s.consolidateBy = now.Add(s.Rules.ConsolidateWait)
		}
		if now.Before(s.consolidateBy) {
			return false, nil
		}
		s.Log.Info("consolidating while historic sync is pending; it will come again", "batches", len(s.batches))
	}
	s.consolidateBy = time.Time{}
	var old []string
	clear(s.left)
	for id, sub := range s.live {
		if !sub.first {
			old = append(old, id)
			delete(s.live, id)
			s.left[id] = sub // its events may be on their way, and until the relay has read all this they come for no other
		}
	}
	s.newest = nil
	// The new ones are opened before the old ones are closed, so that nothing falls in between.
	if err := s.openLive(ctx, layers.TwoAndThree(items.Union(s.confirmed, s.failed)), false); err != nil {
		return false, err
	}
	for _, id := range old {
		if err := s.Asker.Unsubscribe(ctx, id); err != nil {
			return false, err
		}
	}
	if err := s.dropPending(ctx); err != nil {
		return false, err
	}
	s.plan(s.due.cause)
	return true, nil
}
