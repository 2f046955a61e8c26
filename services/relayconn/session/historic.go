package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/pages"
)

// batch is the historic sync of some items: confirmed together when all of its tasks have ended and everything that came has a verdict.
type batch struct {
	account
	items  items.Set
	tasks  int // not ended
	failed bool
}

// task is the past of one filter.
type task struct {
	batch *batch
	walk  *pages.Walk
	tries int // of the current page
}

// maxTries is how often a page is asked for when the relay wants quiet.
const maxTries = 3

// enqueue plans the historic sync of items by their filters.
func (s *Session) enqueue(what items.Set, filters []nostr.Filter, since *nostr.Timestamp) {
	b := &batch{items: what, tasks: len(filters)}
	s.batches = append(s.batches, b)
	for _, f := range filters {
		f.Since = since
		s.queue = append(s.queue, &task{batch: b, walk: pages.New(f, s.Rules.PageLimit)})
	}
}

// ask puts as many of the planned requests to the relay as may be open at once.
func (s *Session) ask(ctx context.Context, now time.Time) error {
	if now.Before(s.hold) || now.Before(s.limited) {
		return nil
	}
	if err := s.reopen(ctx); err != nil {
		return err
	}
	for open := s.openTasks(); open < s.Rules.AtOnce && len(s.queue) > 0; open++ {
		t := s.queue[0]
		s.queue = s.queue[1:]
		t.tries++
		if _, err := s.open(ctx, &subscription{id: s.name("h"), filters: []nostr.Filter{t.walk.Filter()}, task: t, heard: now}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) openTasks() int {
	n := 0
	for _, sub := range s.subs {
		if sub.task != nil {
			n++
		}
	}
	return n
}

// pageEnded goes on to the next page, or ends the task.
func (s *Session) pageEnded(ctx context.Context, sub *subscription) error {
	if err := s.close(ctx, sub.id); err != nil {
		return err
	}
	t := sub.task
	more, err := t.walk.Ended()
	switch {
	case err != nil:
		s.fail(t, err.Error())
	case more:
		t.tries = 0
		s.queue = slices.Insert(s.queue, 0, t)
	default:
		for _, second := range t.walk.Gaps {
			s.Log.Warn("the relay has more events in one second than it shows", "second", second.Time().UTC())
		}
		t.batch.tasks--
	}
	return nil
}

// fail ends a task that did not bring everything; the rest of its batch goes on, because what it brings is worth having.
func (s *Session) fail(t *task, why string) {
	if !t.batch.failed {
		s.Log.Warn("historic sync is incomplete", "reason", why)
	}
	t.batch.failed = true
	t.batch.tasks--
}

// expire ends subscriptions on which the relay has fallen silent. A page that it could not serve because it wanted quiet is asked for again.
func (s *Session) expire(ctx context.Context, now time.Time) error {
	for _, sub := range s.subs {
		if sub.task == nil || now.Sub(sub.heard) < s.Rules.Silence {
			continue
		}
		if err := s.close(ctx, sub.id); err != nil {
			return err
		}
		s.retry(sub, fmt.Sprintf("no answer in %v", s.Rules.Silence))
	}
	return nil
}

// retry asks for a page again if the relay has wanted quiet since it was asked, and otherwise gives it up.
func (s *Session) retry(sub *subscription, why string) {
	t := sub.task
	if s.limited.After(sub.heard) && t.tries < maxTries {
		t.walk.Again()
		s.queue = slices.Insert(s.queue, 0, t)
		return
	}
	s.fail(t, why)
}

// settleBatches moves the items of batches that have ended to where they belong.
func (s *Session) settleBatches() {
	s.batches = slices.DeleteFunc(s.batches, func(b *batch) bool {
		settled, lost := s.ledger.settled(&b.account)
		switch {
		case b.tasks > 0 || !settled:
			return false
		case b.failed || lost:
			s.incomplete = true
			s.failed = items.Union(s.failed, items.Only(b.items, s.wanted.Items))
			if lost {
				s.Log.Warn("historic sync is incomplete", "reason", "events without a verdict")
			}
		default:
			s.confirmed = items.Union(s.confirmed, items.Only(b.items, s.wanted.Items))
		}
		return true
	})
}

// dropBatches forgets everything that is pending; what is still wanted comes again by the diff.
func (s *Session) dropBatches() { s.batches, s.queue = nil, nil }
