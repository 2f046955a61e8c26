// Package backfill asks a relay for the past on one connection: which batches of items are under
// way, what of them waits for room at the relay, and what has come (docs/architecture.md, How
// things flow).
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
	"tendril.dev/services/relayconn/leads"
	"tendril.dev/services/relayconn/ledger"
	"tendril.dev/services/relayconn/live"
	"tendril.dev/services/relayconn/moment"
	"tendril.dev/services/relayconn/negentropy"
	"tendril.dev/services/relayconn/pages"
	"tendril.dev/services/relayconn/recent"
)

const (
	// maxTries is how often a page is asked for when the relay wants quiet or fewer subscriptions.
	maxTries = 3
	// firstAtOnce is how many requests are open at once at first. With each answer it is one more,
	// until the relay refuses one.
	firstAtOnce = 4
	// slowest is how long a page may take, as a factor of how long a relay may be silent.
	slowest = 20
	// doubtful is how much sooner a request is given up that the relay may have refused, as a
	// divisor of how long a relay may be silent.
	doubtful = 12
	// lookAgain is how often it is looked whether other connections have brought what finds wait
	// for.
	lookAgain = 250 * time.Millisecond
	// yieldWait is how long open requests have to come to their end when their room is needed. What
	// was on its way of one that is taken back comes once more.
	yieldWait = 2 * time.Second
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
	Settle    time.Duration              // when nothing was asked for so long, discovery tells of nothing more
	Hold      time.Time                  // nothing is asked before
	Name      func(prefix string) string // makes a new name
	Warn      Warn
	// Negentropy is what a relay is asked by NIP-77 with; nil: it is not.
	Negentropy *Negentropy
}

// Negentropy is what asking by NIP-77 needs.
type Negentropy struct {
	Relay   negentropy.Relay
	Service negentropy.Service
	Room    *negentropy.Room
	Seq     func() uint64        // of the log: what is known to be accepted
	Known   func(id string) bool // accepted already: need not be fetched
	Leads   *leads.Board         // what all connections of the worker ask for; nil: each asks for itself
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
	asked     *items.Set // what these ask for together; nil: not known since they changed last
	queue     []*task    // not asked yet
	hold      time.Time  // nothing is asked before
	yieldTo   int        // live subscriptions that need room
	yieldBy   time.Time  // when requests are taken back for them; zero: none needs any
	fewer     time.Time  // when a NOTICE said last that we have too many subscriptions
	smaller   time.Time  // when a NOTICE said last that a subscription asks for too much
	confirmed items.Set
	wanted    items.Set
	neg       *negentropy.Set // nil: the relay is not asked by NIP-77
	finds     []*find         // that wait for their turn
	wide      *wide           // the session about everything that is under way; nil: none is
	probed    bool            // there was one
	narrow    bool            // there is to be none any more
	lookAt    time.Time       // when it is looked again whether finds must wait; zero: none waits
	wantedIDs int             // events to be fetched by id
	spent     bool            // a batch may have ended, though nothing has come
	shows     pages.Shows     // how much the relay has shown at once of one of several filters
}

// New returns a backfill of which confirmed has come on connections before.
func New(o Options, confirmed items.Set) *Backfill {
	b := &Backfill{o: o, open: map[string]*Request{}, atOnce: min(o.AtOnce, firstAtOnce), hold: o.Hold, confirmed: confirmed}
	if n := o.Negentropy; n != nil {
		b.neg = negentropy.New(negentropy.Options{
			Relay: n.Relay, Service: n.Service, Room: n.Room, Seq: n.Seq, Allowance: o.Allowance, Name: o.Name, Warn: o.Warn,
			Full: func() bool { return b.wantedIDs >= fullAt },
		})
	}
	return b
}

// Add begins with some work, as soon as there is room.
func (b *Backfill) Add(w Work) {
	next := &batch{items: w.Items, cause: w.Cause, sub: w.For, named: recent.New[[32]byte](mostNamed)}
	b.batches, b.asked = append(b.batches, next), nil
	groups := layers.Groups(w.Filters)
	if b.reconciles(w) {
		b.find(next, negentropy.Units(groups, b.o.Allowance.Bytes()), find{})
		return
	}
	for _, filters := range groups {
		if w.Share && w.Since == nil {
			b.walksShared(next, filters, false)
			continue
		}
		filters = slices.Clone(filters)
		for i := range filters {
			filters[i].Since = w.Since
		}
		b.walks(next, filters, false)
	}
	b.spent = b.spent || next.running == 0
}

// begin adds a task to a batch; it is asked for as soon as there is room.
func (b *Backfill) begin(batch *batch, t *task) {
	t.batch = batch
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

// walks has filters asked for by REQ. found: a find has led to them.
func (b *Backfill) walks(batch *batch, filters []nostr.Filter, found bool) {
	for _, some := range b.together(filters) {
		b.begin(batch, &task{way: b.walk(some), found: found})
	}
}

// walk pages back through the past of filters that go in one REQ.
func (b *Backfill) walk(filters []nostr.Filter) Way {
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
	b.Release()
	for _, batch := range b.batches {
		b.forget(batch)
	}
	b.batches, b.asked, b.queue, b.finds, b.wantedIDs = nil, nil, nil, nil, 0
	b.wide, b.probed, b.narrow, b.lookAt = nil, false, false, time.Time{}
	b.confirmed = items.Set{}
	if b.neg == nil {
		return nil
	}
	return b.neg.Restart(ctx)
}

// Want says what is wanted now. Of the rest nothing is confirmed, and what of it has failed is not
// tried again.
func (b *Backfill) Want(wanted items.Set) {
	b.wanted = wanted
	b.confirmed = items.Only(b.confirmed, wanted)
	b.drop(func(batch *batch) bool {
		gone := batch.found() && !batch.retryAt.IsZero() && items.Only(batch.items, wanted).Empty()
		if gone {
			b.forget(batch)
		}
		return gone
	})
}

// drop removes those batches for which gone is true.
func (b *Backfill) drop(gone func(*batch) bool) {
	before := len(b.batches)
	if b.batches = slices.DeleteFunc(b.batches, gone); len(b.batches) != before {
		b.asked = nil
	}
}

// forget lets go of what a batch is to fetch.
func (b *Backfill) forget(batch *batch) {
	b.wantedIDs -= len(batch.ids)
	batch.ids = nil
	for _, f := range batch.finds {
		f.gone = true
	}
	for _, t := range batch.tasks {
		if f, ok := t.way.(*fetch); ok {
			f.drop()
		}
	}
}

// Confirmed is what was asked for and came.
func (b *Backfill) Confirmed() items.Set { return b.confirmed }

// Asked is what was asked for and is not confirmed: it is pending or has failed. It may be called
// with every message that comes.
func (b *Backfill) Asked() items.Set {
	if b.asked == nil {
		var asked items.Set
		for _, batch := range b.batches {
			asked = items.Union(asked, batch.items)
		}
		b.asked = &asked
	}
	return *b.asked
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
		if r.unclear() && !now.Before(r.doubted.Add(live.Doubtful)) {
			b.o.Warn("unclear", "the relay says something that is not understood, and does not answer; fewer requests are open at once")
			b.o.Allowance.Halve(b.o.Live() + len(b.open) + 1)
			b.atOnce = max(1, (len(b.open)+1)/2)
			b.refused(r, "no answer after a NOTICE", now)
			continue
		}
		if !r.answered { // it may have been one too many, of which the relay says nothing
			b.o.Allowance.Refused(b.o.Live() + len(b.open))
			b.starved = b.starved || len(b.open) == 0
		}
		b.retry(r, fmt.Sprintf("no end of the answer after %v", now.Sub(r.asked)))
	}
	if b.neg != nil {
		if err := b.neg.Due(ctx, now); err != nil {
			return err
		}
	}
	b.spent = false
	b.drop(func(batch *batch) bool { return b.settle(batch, now) })
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
	if b.spent {
		next = now
	}
	if b.neg != nil {
		next = moment.Earlier(next, b.neg.Next(now))
	}
	next = moment.Earlier(next, moment.NextAfter(now, b.lookAt, b.yieldBy))
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
	told := map[*leads.Lead]bool{nil: true}
	for _, r := range b.open {
		r.asked, r.heard = r.asked.Add(d), r.heard.Add(d)
		if !r.doubted.IsZero() {
			r.doubted = r.doubted.Add(d)
		}
		if l := r.task.lead; !told[l] { // several parts have one
			told[l] = true
			l.Unread(d)
		}
	}
	if b.neg != nil {
		b.neg.Unread(d)
	}
}

// settle ends a batch whose tasks have ended and whose events have their verdicts, and reports
// whether it has come to its end. If a task has failed, or a verdict was lost, it must be tried
// again.
func (b *Backfill) settle(batch *batch, now time.Time) (done bool) {
	if batch.running > 0 || len(batch.ids) > 0 || !batch.retryAt.IsZero() {
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
		batch.lost = true
	}
	if lost || slices.ContainsFunc(batch.tasks, func(t *task) bool { return t.failed }) {
		batch.tryAgainAfter(now)
		return false
	}
	b.confirmed = items.Union(b.confirmed, items.Only(batch.items, b.wanted))
	return true
}
