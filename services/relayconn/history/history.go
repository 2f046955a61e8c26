// Package history asks a relay for the past on one connection: which batches of items are under
// way, what of them waits for room at the relay, and what has come (docs/architecture.md, How
// things flow).
//
// There is one dispatcher. A batch is reconciled by NIP-77 where something of it is known and the
// relay is able to; everything else is asked for by REQ, page by page, and in slices of time where
// the relay takes several requests. What another connection of the worker is walking through is
// left to it, and reconciled afterwards.
package history

import (
	"context"
	"maps"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
	"tendril.dev/services/relayconn/moment"
	"tendril.dev/services/relayconn/wire"
)

// Asker puts requests to the relay.
type Asker interface {
	Req(ctx context.Context, sub string, filters []nostr.Filter) error
	Unsubscribe(ctx context.Context, sub string) error
}

// Warn tells the operator of what a relay does, once for each cause.
type Warn func(cause, message string, args ...any)

// Options are what a history needs.
type Options struct {
	Asker     Asker
	Limits    *wire.Limits
	Inflight  *Inflight
	PageLimit int                        // of a filter
	AtOnce    int                        // most requests open at once
	Live      func() int                 // counts the live subscriptions that are open
	Silence   time.Duration              // a request on which the relay is silent for so long has failed
	Hold      time.Time                  // nothing is asked before
	Name      func(prefix string) string // makes a new name
	Warn      Warn
	// Negentropy is what a relay is asked by NIP-77 with; nil: it is not.
	Negentropy *Negentropy
}

// History is the historic sync of one connection. It belongs to one goroutine.
type History struct {
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
	confirmed items.Set
	wanted    items.Set
	rec       *reconciler // nil: the relay is not asked by NIP-77
	wantedIDs int         // events to be fetched by id
	spent     bool        // a batch may have ended, though nothing has come
}

// New returns a history of which confirmed has come on connections before.
func New(o Options, confirmed items.Set) *History {
	h := &History{o: o, open: map[string]*Request{}, atOnce: min(o.AtOnce, firstAtOnce), hold: o.Hold, confirmed: confirmed}
	if o.Negentropy != nil {
		h.rec = newReconciler(h, o.Negentropy)
	}
	return h
}

// Add begins with some work, as soon as there is room.
func (h *History) Add(w Work) {
	b := &batch{work: w}
	h.batches, h.asked = append(h.batches, b), nil
	h.start(b)
}

// start chooses the way of all groups of filters of a batch.
func (h *History) start(b *batch) {
	groups := layers.Groups(b.work.Filters)
	able := h.rec != nil && !h.rec.off && b.work.Since == nil && !b.byREQ
	switch {
	case able && (b.work.Reconcile || b.lost || size(groups) >= worthEverything):
		h.rec.add(b, groups, false)
	case able && !b.work.Items.Empty():
		for _, group := range groups {
			h.walkShared(b, group)
		}
	default:
		for _, group := range groups {
			h.walkOf(b, group, span{Since: b.work.Since})
		}
	}
	b.lost, b.byREQ = false, false
	h.spent = h.spent || b.running == 0
}

// walkOf has a span of time of a group of filters asked for by REQ.
func (h *History) walkOf(b *batch, group []nostr.Filter, s span) {
	filters := slices.Clone(group)
	for i := range filters {
		filters[i] = s.of(filters[i])
	}
	for _, some := range h.together(filters) {
		h.begin(b, &task{way: h.walk(some)})
	}
}

// begin adds a task to a batch; it is asked for as soon as there is room.
func (h *History) begin(b *batch, t *task) {
	t.batch = b
	b.tasks = append(b.tasks, t)
	b.running++
	h.queue = append(h.queue, t)
}

// together cuts the filters of a group into those that go in one REQ: all of them, or each alone
// where the relay does not take them together.
func (h *History) together(filters []nostr.Filter) [][]nostr.Filter {
	if !h.single && h.o.Limits.Together(size([][]nostr.Filter{filters})) {
		return [][]nostr.Filter{filters}
	}
	return slices.Collect(slices.Chunk(filters, 1))
}

// size is about how many bytes filters take.
func size(groups [][]nostr.Filter) (bytes int) {
	for _, group := range groups {
		for _, f := range group {
			bytes += layers.Bytes(f)
		}
	}
	return bytes
}

// Restart forgets all work and what has come of it.
func (h *History) Restart(ctx context.Context) error {
	for _, r := range h.open {
		if err := h.stop(ctx, r); err != nil {
			return err
		}
	}
	h.Release()
	h.batches, h.asked, h.queue, h.wantedIDs, h.confirmed = nil, nil, nil, 0, items.Set{}
	if h.rec == nil {
		return nil
	}
	return h.rec.restart(ctx)
}

// Release lets other connections ask for what is being asked for on this one, which has ended.
func (h *History) Release() {
	for _, b := range h.batches {
		for _, t := range b.tasks {
			t.lead.End(false, time.Now())
		}
	}
}

// Want says what is wanted now. Of the rest nothing is confirmed, and what of it has failed is not
// tried again.
func (h *History) Want(wanted items.Set) {
	h.wanted = wanted
	h.confirmed = items.Only(h.confirmed, wanted)
	h.drop(func(b *batch) bool {
		return b.found() && !b.retryAt.IsZero() && items.Only(b.work.Items, wanted).Empty()
	})
}

// drop removes those batches for which gone is true, of which nothing is under way.
func (h *History) drop(gone func(*batch) bool) {
	before := len(h.batches)
	if h.batches = slices.DeleteFunc(h.batches, gone); len(h.batches) != before {
		h.asked = nil
	}
}

// Interrupt takes the open requests for what the diff has found back. They are asked again before
// all others, each from the page where it stood.
func (h *History) Interrupt(ctx context.Context) error {
	open := slices.SortedFunc(maps.Values(h.open), func(x, y *Request) int { return y.turn - x.turn })
	for _, r := range open {
		if r.task.batch.found() {
			if err := h.takeBack(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// Due does what has become due: ends requests on which the relay has fallen silent, ends batches
// that have come to their end, and tries those again that have waited long enough since they
// failed.
func (h *History) Due(ctx context.Context, now time.Time) error {
	for _, r := range h.open {
		if !now.Before(h.patience(r)) {
			if err := h.silent(ctx, r, now); err != nil {
				return err
			}
		}
	}
	if h.rec != nil {
		if err := h.rec.due(ctx, now); err != nil {
			return err
		}
	}
	h.spent = false
	h.drop(func(b *batch) bool { return h.settle(b, now) })
	for _, b := range h.batches {
		if !b.retryAt.IsZero() && !now.Before(b.retryAt) {
			h.tryAgain(b)
		}
	}
	return nil
}

// Next is when something becomes due by itself after now; zero: nothing does.
func (h *History) Next(now time.Time) time.Time {
	next := moment.NextAfter(now, h.hold)
	if h.spent {
		next = now
	}
	if h.rec != nil {
		next = moment.Earlier(next, h.rec.next(now))
	}
	for _, r := range h.open {
		next = moment.Earlier(next, moment.NextAfter(now, h.patience(r)))
	}
	for _, b := range h.batches {
		next = moment.Earlier(next, moment.NextAfter(now, b.retryAt))
	}
	return next
}

// Unread keeps a time in which nothing was read from counting as the relay's silence.
func (h *History) Unread(d time.Duration) {
	for _, r := range h.open {
		r.asked, r.heard, r.doubted = r.asked.Add(d), r.heard.Add(d), moment.Shift(r.doubted, d)
		r.task.lead.Heard(time.Now())
	}
	if h.rec != nil {
		h.rec.unread(d)
	}
}

// Confirmed is what was asked for and came.
func (h *History) Confirmed() items.Set { return h.confirmed }

// ConfirmWanted notes that all that is wanted is confirmed. That it is the same is known already,
// but so it is in memory once.
func (h *History) ConfirmWanted() { h.confirmed = h.wanted }

// Asked is what was asked for and is not confirmed: it is pending or has failed. It may be called
// with every message that comes.
func (h *History) Asked() items.Set {
	if h.asked == nil {
		var asked items.Set
		for _, b := range h.batches {
			asked = items.Union(asked, b.work.Items)
		}
		h.asked = &asked
	}
	return *h.asked
}

func (h *History) any(is func(*batch) bool) bool { return slices.ContainsFunc(h.batches, is) }

// Complete reports whether all items that were asked for have come.
func (h *History) Complete() bool { return !h.any((*batch).found) }

// CaughtUp reports whether what a start asks for has come.
func (h *History) CaughtUp() bool { return !h.any(func(b *batch) bool { return !b.found() }) }

// Working reports whether anything is pending.
func (h *History) Working() bool { return h.any((*batch).pending) }

// Pending reports whether batches that the diff has found are pending.
func (h *History) Pending() bool {
	return h.any(func(b *batch) bool { return b.found() && b.pending() })
}

// Incomplete reports whether a batch has failed and has not come to its end since.
func (h *History) Incomplete() bool { return h.any(func(b *batch) bool { return !b.pending() }) }

// Missing is since when events are being made up for; zero: none are.
func (h *History) Missing() (missing time.Time) {
	for _, b := range h.batches {
		missing = moment.Earlier(missing, b.work.Cause.Missing)
	}
	return missing
}

// MakingUp counts how often the past is being asked for instead of what did not come live.
func (h *History) MakingUp() (n int) {
	for _, b := range h.batches {
		if !b.work.Cause.Missing.IsZero() {
			n++
		}
	}
	return n
}

// MakingUpFor reports whether that is so for a live subscription.
func (h *History) MakingUpFor(sub string) bool {
	return sub != "" && h.any(func(b *batch) bool { return b.work.For == sub })
}

// Judging reports whether events that had no verdict are being asked for again.
func (h *History) Judging() bool { return h.any(func(b *batch) bool { return b.work.Cause.Unjudged }) }

// settle ends a batch whose tasks have ended and whose events have their verdicts, and reports
// whether it has come to its end. If a task has failed, or a verdict was lost, it must be tried
// again.
func (h *History) settle(b *batch, now time.Time) (done bool) {
	if b.running > 0 || len(b.ids) > 0 || !b.retryAt.IsZero() {
		return false
	}
	settled, lost := h.o.Inflight.Settled(&b.Account)
	if !settled {
		return false
	}
	if lost {
		h.o.Warn("lost", "historic sync is incomplete; it is tried again", "reason", "events without a verdict")
	}
	b.lost = b.lost || lost
	if b.lost || b.byREQ || slices.ContainsFunc(b.tasks, func(t *task) bool { return t.failed }) {
		b.tryAgainAfter(now)
		return false
	}
	h.confirmed = items.Union(h.confirmed, items.Only(b.work.Items, h.wanted))
	return true
}

// tryAgain begins once more with the tasks of a batch that failed, each from where it stood. Where
// events were lost, or the relay did not deliver what it had named, all of it is asked for again.
func (h *History) tryAgain(b *batch) {
	b.retryAt = time.Time{}
	if b.lost || b.byREQ {
		b.tasks, b.named = nil, nil
		h.start(b)
		return
	}
	for _, t := range b.tasks {
		if t.failed {
			t.failed, t.tries = false, 0
			t.way.Again()
			h.queue = append(h.queue, t)
			b.running++
		}
	}
}

// Lacks notes that the relay says of itself that it does not know NIP-77.
func (h *History) Lacks(ctx context.Context) error {
	if h.rec == nil || h.rec.spoken || h.rec.off {
		return nil
	}
	return h.rec.unable(ctx, "its information document does not name NIP-77")
}

// Results is where ingest's answers come, to be handed to [History.Told]; nil: nothing is asked.
func (h *History) Results() <-chan Result {
	if h.rec == nil {
		return nil
	}
	return h.rec.results
}

// Told takes in an answer of ingest.
func (h *History) Told(ctx context.Context, r Result, now time.Time) error {
	return h.rec.told(ctx, r, now)
}

// Ask puts as many of the requests that wait to the relay as may be open at once.
func (h *History) Ask(ctx context.Context, now time.Time) error {
	if now.Before(h.hold) {
		return nil
	}
	if h.rec != nil {
		if err := h.rec.ask(ctx, now); err != nil {
			return err
		}
	}
	return h.request(ctx, now)
}
