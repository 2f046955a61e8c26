package session

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
)

// perReq is how many live filters one subscription carries: many relays take no more.
const perReq = 10

// maxReopen is how often a live subscription that the relay closed is opened again on one connection.
const maxReopen = 5

func (s *Session) name(prefix string) string {
	s.nextID++
	return prefix + strconv.Itoa(s.nextID)
}

// open puts a REQ to the relay.
func (s *Session) open(ctx context.Context, sub *subscription) (*subscription, error) {
	s.subs[sub.id] = sub
	return sub, s.Asker.Req(ctx, sub.id, sub.filters)
}

// close takes a REQ back.
func (s *Session) close(ctx context.Context, id string) error {
	delete(s.subs, id)
	return s.Asker.Unsubscribe(ctx, id)
}

// openLive subscribes to what comes from now on.
func (s *Session) openLive(ctx context.Context, filters []nostr.Filter, first bool) error {
	for chunk := range slices.Chunk(layers.Live(filters), perReq) {
		if _, err := s.open(ctx, &subscription{id: s.name("l"), filters: chunk, first: first}); err != nil {
			return err
		}
	}
	return nil
}

// reopen subscribes again where the relay closed a live subscription.
func (s *Session) reopen(ctx context.Context) error {
	for _, sub := range s.subs {
		if !sub.shut {
			continue
		}
		sub.shut = false
		if err := s.Asker.Req(ctx, sub.id, sub.filters); err != nil {
			return err
		}
	}
	return nil
}

// liveFilters counts the live filters of layers 2 and 3.
func (s *Session) liveFilters() int {
	n := 0
	for _, sub := range s.subs {
		if sub.task == nil && !sub.first {
			n += len(sub.filters)
		}
	}
	return n
}

// consolidate replaces many live filters by few full ones. It waits for pending batches first, and says whether it is done.
func (s *Session) consolidate(ctx context.Context, now time.Time) (bool, error) {
	if len(s.batches) > 0 {
		if s.consolidateBy.IsZero() {
			s.consolidateBy = now.Add(s.Rules.ConsolidateWait)
		}
		if now.Before(s.consolidateBy) {
			return false, nil
		}
		s.Log.Info("consolidating while batches are pending; they will come again", "batches", len(s.batches))
	}
	s.consolidateBy = time.Time{}
	var old []string
	for id, sub := range s.subs {
		if sub.task != nil || !sub.first {
			old = append(old, id)
		}
	}
	// The new ones are opened before the old ones are closed, so that nothing falls in between.
	if err := s.openLive(ctx, layers.TwoAndThree(items.Union(s.confirmed, s.failed)), false); err != nil {
		return false, err
	}
	for _, id := range old {
		if err := s.close(ctx, id); err != nil {
			return false, err
		}
	}
	s.dropBatches()
	return true, nil
}
