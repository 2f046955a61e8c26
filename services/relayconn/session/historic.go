package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/pages"
)

// cause is why the past is asked for.
type cause struct {
	source proto.Source
	lane   proto.Lane
	// liveUntil: events made before should have come live; zero: none should.
	liveUntil time.Time
	// missing: since when events have not come live because the relay closed a subscription; zero: not because of that.
	missing time.Time
}

// startup is the cause of a fresh start, and of whatever is asked for the first time.
var startup = cause{source: proto.SourceStartup, lane: proto.LaneSyncHistoric}

// gap reports whether an event that comes now should have come live before.
func (c cause) gap(ev *nostr.Event) bool { return ev.CreatedAt.Time().Before(c.liveUntil) }

// batch is the historic sync of some items: confirmed together when all of its tasks have ended and everything that came has a verdict. One
// without items is what a start asks for whatever the target says.
type batch struct {
	account
	items  items.Set
	cause  cause
	tasks  int // not ended
	failed bool
}

// task is the past of one filter.
type task struct {
	batch *batch
	walk  *pages.Walk
	tries int // of the current page
}

const (
	// maxTries is how often a page is asked for when the relay wants quiet.
	maxTries = 3
	// slowest is how long a page may take, as a factor of how long a relay may be silent.
	slowest = 20
)

// enqueue plans the historic sync of items by their filters.
func (s *Session) enqueue(p plan, since *nostr.Timestamp) {
	b := &batch{items: p.items, cause: p.cause, tasks: len(p.filters)}
	s.batches = append(s.batches, b)
	for _, f := range p.filters {
		f.Since = since
		s.queue = append(s.queue, &task{batch: b, walk: pages.New(f, s.Rules.PageLimit)})
	}
}

// ask puts as many of the planned requests to the relay as may be open at once.
func (s *Session) ask(ctx context.Context, now time.Time) error {
	if now.Before(s.hold) || !s.mayAsk(now) {
		return nil
	}
	for len(s.past) < s.Rules.AtOnce && len(s.queue) > 0 {
		t := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1) // which lets go of the task
		t.tries++
		sub := &subscription{id: s.name("h"), filters: []nostr.Filter{t.walk.Filter()}, task: t, asked: now, heard: now}
		s.past[sub.id] = sub
		if err := s.Asker.Req(ctx, sub.id, sub.filters); err != nil {
			return err
		}
	}
	return nil
}

// stop takes a historic REQ back.
func (s *Session) stop(ctx context.Context, sub *subscription) error {
	delete(s.past, sub.id)
	return s.Asker.Unsubscribe(ctx, sub.id)
}

// pageEnded goes on to the next page, or ends the task.
func (s *Session) pageEnded(ctx context.Context, sub *subscription) error {
	if err := s.stop(ctx, sub); err != nil {
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
			s.warn("crowded second", "the relay has more events in one second than it shows", "second", second.Time().UTC())
		}
		t.batch.tasks--
	}
	return nil
}

// fail ends a task that did not bring everything; the rest of its batch goes on, because what it brings is worth having.
func (s *Session) fail(t *task, why string) {
	s.warn("incomplete", "historic sync is incomplete", "reason", why)
	t.batch.failed = true
	t.batch.tasks--
}

// patience is when a historic subscription is given up: the relay is silent, or drips.
func (s *Session) patience(sub *subscription) time.Time {
	silent, slow := sub.heard.Add(s.Rules.Silence), sub.asked.Add(slowest*s.Rules.Silence)
	if slow.Before(silent) {
		return slow
	}
	return silent
}

// expire ends subscriptions on which the relay has fallen silent. A page that it could not serve because it wanted quiet is asked for again.
func (s *Session) expire(ctx context.Context, now time.Time) error {
	s.expireOpening(now)
	for _, sub := range s.past {
		if now.Before(s.patience(sub)) {
			continue
		}
		if err := s.stop(ctx, sub); err != nil {
			return err
		}
		s.retry(sub, fmt.Sprintf("no end of the answer after %v", now.Sub(sub.asked)))
	}
	return nil
}

// expireOpening waits no longer for the relay's answer to live subscriptions. They may well be open, unless the relay wanted quiet instead.
func (s *Session) expireOpening(now time.Time) {
	for _, sub := range s.opening {
		switch {
		case now.Before(sub.asked.Add(s.Rules.Silence)):
		case s.limited.After(sub.asked):
			s.liveClosed(sub, "it wanted quiet instead", true, sub.asked)
		default:
			s.warn("unanswered", "the relay does not answer a live subscription with EOSE", "for", s.Rules.Silence)
			s.opened(sub)
		}
	}
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

// waited keeps the time in which nothing was read from counting as the relay's silence.
func (s *Session) waited(d time.Duration) {
	for _, subs := range []map[string]*subscription{s.past, s.opening} {
		for _, sub := range subs {
			sub.asked, sub.heard = sub.asked.Add(d), sub.heard.Add(d)
		}
	}
}

// settleBatches moves the items of batches that have ended to where they belong.
func (s *Session) settleBatches() {
	s.batches = slices.DeleteFunc(s.batches, func(b *batch) bool {
		if b.tasks > 0 {
			return false
		}
		settled, lost := s.ledger.settled(&b.account)
		switch {
		case !settled:
			return false
		case b.failed || lost:
			s.incomplete = true
			s.failed = items.Union(s.failed, items.Only(b.items, s.wanted.Items))
			if lost {
				s.warn("lost", "historic sync is incomplete", "reason", "events without a verdict")
			}
		default:
			s.confirmed = items.Union(s.confirmed, items.Only(b.items, s.wanted.Items))
		}
		return true
	})
}

// pending reports whether batches that the diff has found have not ended.
func (s *Session) pending() bool {
	return slices.ContainsFunc(s.batches, func(b *batch) bool { return !b.items.Empty() })
}

// dropPending forgets the batches that the diff has found; what of them is still wanted comes again by the diff.
func (s *Session) dropPending(ctx context.Context) error {
	dropped := func(b *batch) bool { return !b.items.Empty() }
	s.batches = slices.DeleteFunc(s.batches, dropped)
	s.queue = slices.DeleteFunc(s.queue, func(t *task) bool { return dropped(t.batch) })
	for _, sub := range s.past {
		if dropped(sub.task.batch) {
			if err := s.stop(ctx, sub); err != nil {
				return err
			}
		}
	}
	return nil
}
