// Package backfill asks a relay for the past on one connection: which batches of items are under
// way, what of them waits for room at the relay, and what has come (spec/sync.md, Historic sync).
package backfill

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
	"tendril.dev/services/relayconn/ledger"
	"tendril.dev/services/relayconn/moment"
	"tendril.dev/services/relayconn/pages"
)

const (
	// maxTries is how often a page is asked for when the relay wants quiet or fewer subscriptions.
	maxTries = 3
	// firstAtOnce is how many requests are open at once at first. With each answer it is one more,
	// until the relay refuses one.
	firstAtOnce = 4
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
	PageLimit int                        // of a filter
	AtOnce    int                        // most requests open at once
	Live      func() int                 // counts the live subscriptions that are open
	Silence   time.Duration              // a request on which the relay is silent for so long has failed
	Hold      time.Time                  // nothing is asked before
	Name      func(prefix string) string // makes a new name
	Warn      Warn
}

// Backfill is the historic sync of one connection. It belongs to one goroutine.
type Backfill struct {
	o         Options
	open      map[string]*Request
	atOnce    int  // most of them, as far as is known
	full      bool // the relay has refused more
	starved   bool // the relay has refused the only one
	single    bool // the relay takes no REQ of several filters
	turns     int
	batches   []*batch
	queue     []*task   // not asked yet
	hold      time.Time // nothing is asked before
	fewer     time.Time // when the relay said last that we have too many subscriptions
	confirmed items.Set
	wanted    items.Set
	shows     pages.Shows // how much the relay has shown at once of one of several filters
}

// New returns a backfill of which confirmed has come on connections before.
func New(o Options, confirmed items.Set) *Backfill {
	return &Backfill{o: o, open: map[string]*Request{}, atOnce: min(o.AtOnce, firstAtOnce), hold: o.Hold, confirmed: confirmed}
}

// Add begins with some work, as soon as there is room.
func (b *Backfill) Add(w Work) {
	next := &batch{items: w.Items, cause: w.Cause}
	b.batches = append(b.batches, next)
	for _, filters := range layers.Groups(w.Filters) {
		for _, some := range b.together(filters) {
			b.begin(next, b.walk(some, w.Since))
		}
	}
}

// begin adds a way to a batch; it is asked for as soon as there is room.
func (b *Backfill) begin(batch *batch, way Way) {
	t := &task{batch: batch, way: way}
	batch.tasks = append(batch.tasks, t)
	batch.running++
	b.queue = append(b.queue, t)
}

// together cuts the filters of a group into those that go in one REQ: all of them, or each alone
// where the relay does not take them together.
func (b *Backfill) together(filters []nostr.Filter) [][]nostr.Filter {
	size := 0
	for _, f := range filters {
		size += layers.Bytes(f)
	}
	if !b.single && b.o.Allowance.Together(size) {
		return [][]nostr.Filter{filters}
	}
	return slices.Collect(slices.Chunk(filters, 1))
}

// walk pages back through the past of filters that go in one REQ.
func (b *Backfill) walk(filters []nostr.Filter, since *nostr.Timestamp) Way {
	filters = slices.Clone(filters)
	for i := range filters {
		filters[i].Since = since
	}
	var shows *pages.Shows
	if len(filters) > 1 {
		shows = &b.shows
	}
	return walk{pages.New(filters, b.o.Allowance.Page(b.o.PageLimit), shows)}
}

// Restart forgets all work and what has come of it.
func (b *Backfill) Restart(ctx context.Context) error {
	for _, r := range b.open {
		if err := b.stop(ctx, r); err != nil {
			return err
		}
	}
	b.batches, b.queue = nil, nil
	b.confirmed = items.Set{}
	return nil
}

// Want says what is wanted now. Of the rest nothing is confirmed, and what of it has failed is not
// tried again.
func (b *Backfill) Want(wanted items.Set) {
	b.wanted = wanted
	b.confirmed = items.Only(b.confirmed, wanted)
	b.batches = slices.DeleteFunc(b.batches, func(batch *batch) bool {
		return batch.found() && !batch.retryAt.IsZero() && items.Only(batch.items, wanted).Empty()
	})
}

// Confirmed is what was asked for and came.
func (b *Backfill) Confirmed() items.Set { return b.confirmed }

// Asked is what was asked for and is not confirmed: it is pending or has failed.
func (b *Backfill) Asked() (asked items.Set) {
	for _, batch := range b.batches {
		asked = items.Union(asked, batch.items)
	}
	return asked
}

// Complete reports whether all items that were asked for have come.
func (b *Backfill) Complete() bool { return !slices.ContainsFunc(b.batches, (*batch).found) }

// ConfirmWanted notes that all that is wanted is confirmed. That it is the same is known already,
// but so it is in memory once.
func (b *Backfill) ConfirmWanted() { b.confirmed = b.wanted }

// CaughtUp reports whether what a start asks for has come.
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

// Judging reports whether events that had no verdict are being asked for again.
func (b *Backfill) Judging() bool {
	return slices.ContainsFunc(b.batches, func(batch *batch) bool { return batch.cause.Unjudged })
}

// Working reports whether anything is pending.
func (b *Backfill) Working() bool { return slices.ContainsFunc(b.batches, (*batch).pending) }

// Incomplete reports whether a batch has failed and has not come to its end since.
func (b *Backfill) Incomplete() bool {
	return slices.ContainsFunc(b.batches, func(batch *batch) bool { return !batch.pending() })
}

// Open counts the requests that are open at the relay.
func (b *Backfill) Open() int { return len(b.open) }

// Find returns the open request of that name; nil: there is none.
func (b *Backfill) Find(name string) *Request { return b.open[name] }

// Pending reports whether batches that the diff has found are pending.
func (b *Backfill) Pending() bool {
	return slices.ContainsFunc(b.batches, func(batch *batch) bool { return batch.found() && batch.pending() })
}

// Interrupt takes the open requests for what the diff has found back. They are asked again before
// all others, each from the page where it stood.
func (b *Backfill) Interrupt(ctx context.Context) error {
	open := slices.SortedFunc(maps.Values(b.open), func(x, y *Request) int { return y.turn - x.turn })
	for _, r := range open {
		if r.task.batch.found() {
			if err := b.stop(ctx, r); err != nil {
				return err
			}
			r.task.tries-- // this was no try
			b.again(r.task)
		}
	}
	return nil
}

// Due does what has become due: ends requests on which the relay has fallen silent, ends batches
// that have come to their end, and tries those again that have waited long enough since they
// failed.
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
	b.batches = slices.DeleteFunc(b.batches, func(batch *batch) bool { return b.settle(batch, now) })
	for _, batch := range b.batches {
		if !batch.retryAt.IsZero() && !now.Before(batch.retryAt) {
			b.tryAgain(batch)
		}
	}
	return nil
}

// Next is when something becomes due by itself after now; zero: nothing does.
func (b *Backfill) Next(now time.Time) time.Time {
	next := moment.NextAfter(now, b.hold)
	for _, r := range b.open {
		next = moment.Earlier(next, moment.NextAfter(now, b.patience(r)))
	}
	for _, batch := range b.batches {
		next = moment.Earlier(next, moment.NextAfter(now, batch.retryAt))
	}
	return next
}

// Unread keeps a time in which nothing was read from counting as the relay's silence.
func (b *Backfill) Unread(d time.Duration) {
	for _, r := range b.open {
		r.asked, r.heard = r.asked.Add(d), r.heard.Add(d)
	}
}

// settle ends a batch whose tasks have ended and whose events have their verdicts, and reports
// whether it has come to its end. If a task has failed, or a verdict was lost, it is to be tried
// again.
func (b *Backfill) settle(batch *batch, now time.Time) (done bool) {
	if batch.running > 0 || !batch.retryAt.IsZero() {
		return false
	}
	settled, lost := b.o.Ledger.Settled(&batch.Account)
	if !settled {
		return false
	}
	if lost {
		b.o.Warn("lost", "historic sync is incomplete; it is tried again", "reason", "events without a verdict")
		for _, t := range batch.tasks {
			t.failed = true
			t.way.Restart() // nobody knows which of them brought what was lost
		}
	}
	if slices.ContainsFunc(batch.tasks, func(t *task) bool { return t.failed }) {
		batch.tryAgainAfter(now)
		return false
	}
	b.confirmed = items.Union(b.confirmed, items.Only(batch.items, b.wanted))
	return true
}

// tryAgain begins once more with the tasks of a batch that failed, each from where it stood.
func (b *Backfill) tryAgain(batch *batch) {
	batch.retryAt = time.Time{}
	for _, t := range batch.tasks {
		if t.failed {
			t.failed, t.tries = false, 0
			t.way.Again()
			b.queue = append(b.queue, t)
			batch.running++
		}
	}
}
