// Package backfill asks a relay for the past on one connection: which batches of items are under
// way, what of them waits for room at the relay, and what has come (spec/sync.md, Historic sync).
package backfill

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/ledger"
	"tendril.dev/services/relayconn/moment"
	"tendril.dev/services/relayconn/pages"
)

const (
	// maxTries is how often a page is asked for when the relay wants quiet.
	maxTries = 3
	// slowest is how long a page may take, as a factor of how long a relay may be silent.
	slowest = 20
)

// Asker puts requests to the relay.
type Asker interface {
	Req(ctx context.Context, sub string, filters []nostr.Filter) error
	Unsubscribe(ctx context.Context, sub string) error
}

// Options are what a backfill needs.
type Options struct {
	Asker     Asker
	Allowance *allowance.Allowance
	Ledger    *ledger.Ledger
	PageLimit int                        // of a REQ
	AtOnce    int                        // requests open at once
	Silence   time.Duration              // a request on which the relay is silent for so long has failed
	Hold      time.Time                  // nothing is asked before
	Name      func(prefix string) string // makes a new name
	Warn      func(cause, message string, args ...any)
}

// Backfill is the historic sync of one connection. It belongs to one goroutine.
type Backfill struct {
	o         Options
	open      map[string]*Request // at most AtOnce
	batches   []*batch
	queue     []*task // not asked yet
	confirmed items.Set
	failed    items.Set
	wanted    items.Set
	anyFailed bool // since the start
}

// New returns a backfill of which confirmed has come on connections before.
func New(o Options, confirmed items.Set) *Backfill {
	return &Backfill{o: o, open: map[string]*Request{}, confirmed: confirmed}
}

// Add begins with some work, as soon as there is room.
func (b *Backfill) Add(w Work) {
	next := &batch{items: w.Items, cause: w.Cause, tasks: len(w.Filters)}
	b.batches = append(b.batches, next)
	for _, f := range w.Filters {
		f.Since = w.Since
		b.queue = append(b.queue, &task{batch: next, walk: pages.New(f, b.o.PageLimit)})
	}
}

// Restart forgets all work and what has come of it.
func (b *Backfill) Restart(ctx context.Context) error {
	for _, r := range b.open {
		if err := b.stop(ctx, r); err != nil {
			return err
		}
	}
	b.batches, b.queue = nil, nil
	b.confirmed, b.failed, b.anyFailed = items.Set{}, items.Set{}, false
	return nil
}

// Want says what is wanted now; of the rest nothing is confirmed.
func (b *Backfill) Want(wanted items.Set) {
	b.wanted = wanted
	b.confirmed, b.failed = items.Only(b.confirmed, wanted), items.Only(b.failed, wanted)
}

// Confirmed is what was asked for and came.
func (b *Backfill) Confirmed() items.Set { return b.confirmed }

// Asked is what was asked for and is not confirmed: it is pending or has failed.
func (b *Backfill) Asked() items.Set {
	asked := b.failed
	for _, batch := range b.batches {
		asked = items.Union(asked, batch.items)
	}
	return asked
}

// Complete reports whether all items that were asked for have come.
func (b *Backfill) Complete() bool { return b.failed.Empty() && !b.Pending() }

// ConfirmWanted notes that all that is wanted is confirmed. That it is the same is known already,
// but so it is in memory once.
func (b *Backfill) ConfirmWanted() { b.confirmed = b.wanted }

// CaughtUp reports whether what a start asks for has come or failed.
func (b *Backfill) CaughtUp() bool {
	return !slices.ContainsFunc(b.batches, func(batch *batch) bool { return !batch.found() })
}

// Missing is since when events are being made up for; zero: none are.
func (b *Backfill) Missing() (missing time.Time) {
	for _, batch := range b.batches {
		missing = moment.Earlier(missing, batch.cause.Missing)
	}
	return missing
}

// Working reports whether anything has not ended.
func (b *Backfill) Working() bool { return len(b.batches) > 0 }

// Incomplete reports whether a batch has failed.
func (b *Backfill) Incomplete() bool { return b.anyFailed }

// Open counts the requests that are open at the relay.
func (b *Backfill) Open() int { return len(b.open) }

// Find returns the open request of that name; nil: there is none.
func (b *Backfill) Find(name string) *Request { return b.open[name] }

// Pending reports whether batches that the diff has found have not ended.
func (b *Backfill) Pending() bool { return slices.ContainsFunc(b.batches, (*batch).found) }

// DropPending forgets the batches that the diff has found; what of them is still wanted comes again
// by the diff.
func (b *Backfill) DropPending(ctx context.Context) error {
	b.batches = slices.DeleteFunc(b.batches, (*batch).found)
	b.queue = slices.DeleteFunc(b.queue, func(t *task) bool { return t.batch.found() })
	for _, r := range b.open {
		if r.task.batch.found() {
			if err := b.stop(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// Due does what has become due: ends requests on which the relay has fallen silent, and batches
// that have come to their end.
func (b *Backfill) Due(ctx context.Context, now time.Time) error {
	for _, r := range b.open {
		if now.Before(b.patience(r)) {
			continue
		}
		if err := b.stop(ctx, r); err != nil {
			return err
		}
		b.retry(r, fmt.Sprintf("no end of the answer after %v", now.Sub(r.asked)))
	}
	b.settle()
	return nil
}

// Ask puts as many of the requests that wait to the relay as may be open at once.
func (b *Backfill) Ask(ctx context.Context, now time.Time) error {
	if now.Before(b.o.Hold) {
		return nil
	}
	for len(b.open) < b.o.AtOnce && len(b.queue) > 0 {
		t := b.queue[0]
		b.queue = slices.Delete(b.queue, 0, 1) // which lets go of the task
		t.tries++
		r := &Request{id: b.o.Name("h"), task: t, asked: now, heard: now}
		b.open[r.id] = r
		if err := b.o.Asker.Req(ctx, r.id, []nostr.Filter{t.walk.Filter()}); err != nil {
			return err
		}
	}
	return nil
}

// Next is when something becomes due by itself after now; zero: nothing does.
func (b *Backfill) Next(now time.Time) time.Time {
	next := moment.NextAfter(now, b.o.Hold)
	for _, r := range b.open {
		next = moment.Earlier(next, moment.NextAfter(now, b.patience(r)))
	}
	return next
}

// patience is when a request is given up: the relay is silent, or drips.
func (b *Backfill) patience(r *Request) time.Time {
	return moment.Earlier(r.heard.Add(b.o.Silence), r.asked.Add(slowest*b.o.Silence))
}

// Unread keeps a time in which nothing was read from counting as the relay's silence.
func (b *Backfill) Unread(d time.Duration) {
	for _, r := range b.open {
		r.asked, r.heard = r.asked.Add(d), r.heard.Add(d)
	}
}

// stop takes a request back.
func (b *Backfill) stop(ctx context.Context, r *Request) error {
	delete(b.open, r.id)
	return b.o.Asker.Unsubscribe(ctx, r.id)
}

// Saw notes an event that a request has brought, and reports whether it is fresh: not the end of
// the page before once more.
func (b *Backfill) Saw(ctx context.Context, r *Request, ev *nostr.Event) (fresh bool, err error) {
	fresh, endless := r.task.walk.Saw(ev)
	if endless != nil {
		b.fail(r.task, endless.Error())
		return false, b.stop(ctx, r)
	}
	return fresh, nil
}

// Ended notes the EOSE of a request: the next page is to be asked for, or the task has ended.
func (b *Backfill) Ended(ctx context.Context, r *Request) error {
	if err := b.stop(ctx, r); err != nil {
		return err
	}
	t := r.task
	more, err := t.walk.Ended()
	switch {
	case err != nil:
		b.fail(t, err.Error())
	case more:
		t.tries = 0
		b.queue = slices.Insert(b.queue, 0, t)
	default:
		for _, second := range t.walk.Gaps {
			b.o.Warn("crowded second", "the relay has more events in one second than it shows", "second", second.Time().UTC())
		}
		t.batch.tasks--
	}
	return nil
}

// Closed notes that the relay has closed a request: the page is lost unless it was only too early.
func (b *Backfill) Closed(r *Request, reason string) {
	delete(b.open, r.id)
	b.retry(r, "closed by the relay: "+reason)
}

// retry asks for a page again if the relay has wanted quiet since it was asked, and otherwise gives
// it up.
func (b *Backfill) retry(r *Request, why string) {
	t := r.task
	if b.o.Allowance.QuietAfter(r.heard) && t.tries < maxTries {
		t.walk.Again()
		b.queue = slices.Insert(b.queue, 0, t)
		return
	}
	b.fail(t, why)
}

// fail ends a task that did not bring everything; the rest of its batch goes on, because what it
// brings is worth having.
func (b *Backfill) fail(t *task, why string) {
	b.o.Warn("incomplete", "historic sync is incomplete", "reason", why)
	t.batch.failed = true
	t.batch.tasks--
}

// settle moves the items of batches that have ended to where they belong.
func (b *Backfill) settle() {
	b.batches = slices.DeleteFunc(b.batches, func(batch *batch) bool {
		if batch.tasks > 0 {
			return false
		}
		settled, lost := b.o.Ledger.Settled(&batch.Account)
		switch {
		case !settled:
			return false
		case batch.failed || lost:
			b.anyFailed = true
			b.failed = items.Union(b.failed, items.Only(batch.items, b.wanted))
			if lost {
				b.o.Warn("lost", "historic sync is incomplete", "reason", "events without a verdict")
			}
		default:
			b.confirmed = items.Union(b.confirmed, items.Only(batch.items, b.wanted))
		}
		return true
	})
}
