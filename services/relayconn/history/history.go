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
	"slices"
	"time"

	"tendril.dev/lib/nostr"
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

const (
	// longestWait is how long a batch is left to another connection at most, and lookAgain how often
	// it is looked whether that has ended.
	longestWait, lookAgain = time.Minute, 250 * time.Millisecond
)

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
	asked     *Set      // what these ask for together; nil: not known since they changed last
	queue     []*task   // not asked yet
	hold      time.Time // nothing is asked before
	confirmed Set
	wanted    Set
	rec       *reconciler // nil: the relay is not asked by NIP-77
	wantedIDs int         // events that wait to be fetched by id
	spent     bool        // a batch may have ended, though nothing has come
}

// New returns a history of which confirmed has come on connections before.
func New(o Options, confirmed Set) *History {
	h := &History{o: o, open: map[string]*Request{}, atOnce: min(o.AtOnce, firstAtOnce), hold: o.Hold, confirmed: confirmed}
	if o.Negentropy != nil {
		h.rec = newReconciler(h, o.Negentropy)
	}
	return h
}

// Add begins with some work, as soon as there is room. What another connection of the worker is
// walking through waits for that.
func (h *History) Add(w Work) {
	b, now := &batch{work: w}, time.Now()
	var rest Set
	if h.reconciles() && h.rec.Walks != nil && b.found() {
		if b.lead, b.work.Items, rest = h.rec.Walks.Take(w.Items, now); !rest.Empty() {
			b.work.Filters = FiltersOf(b.work.Items)
			late := Work{Items: rest, Filters: FiltersOf(rest), Cause: w.Cause, Reconcile: true}
			h.batches = append(h.batches, &batch{work: late, waitBy: now.Add(longestWait)})
		}
	}
	if h.asked = nil; b.found() || rest.Empty() {
		h.batches = append(h.batches, b)
		h.start(b)
	}
	h.spent = true
}

// reconciles reports whether the relay may be asked by NIP-77.
func (h *History) reconciles() bool { return h.rec != nil && !h.rec.off }

// start chooses the way of all groups of filters of a batch.
func (h *History) start(b *batch) {
	groups := Groups(b.work.Filters)
	worth := b.work.Reconcile || b.again || size(groups) >= worthEverything
	if h.reconciles() && b.work.Since == nil && !b.byREQ && worth {
		h.rec.add(b, groups)
	} else {
		for _, group := range groups {
			h.walk(b, group)
		}
	}
	b.again, b.byREQ, h.spent = false, false, true
}

// walk has filters asked for by REQ.
func (h *History) walk(b *batch, filters []nostr.Filter) {
	filters = slices.Clone(filters)
	for i := range filters {
		filters[i].Since = b.work.Since
	}
	for _, some := range h.together(filters) {
		h.begin(b, NewWalk(some, h.o.Limits.Page(h.o.PageLimit)))
	}
}

// begin adds a way to a batch; it is asked for as soon as there is room.
func (h *History) begin(b *batch, w *Walk) {
	t := &task{batch: b, way: w}
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
			bytes += Bytes(f)
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
	h.batches, h.asked, h.queue, h.wantedIDs, h.confirmed = nil, nil, nil, 0, Set{}
	if h.rec == nil {
		return nil
	}
	return h.rec.restart(ctx)
}

// Release lets other connections ask for what is being asked for on this one, which has ended.
func (h *History) Release() {
	for _, b := range h.batches {
		b.release(false)
	}
}

// Want says what is wanted now. Of the rest nothing is confirmed, and what of it is not under way
// is not tried again.
func (h *History) Want(wanted Set) {
	h.wanted = wanted
	h.confirmed = Only(h.confirmed, wanted)
	h.drop(func(b *batch) bool { return b.found() && b.idle() && Only(b.work.Items, wanted).Empty() })
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
	for {
		r := h.latest(func(r *Request) bool { return r.task.batch.found() })
		if r == nil {
			return nil
		}
		if err := h.takeBack(ctx, r); err != nil {
			return err
		}
	}
}

// Due does what has become due: ends requests on which the relay has fallen silent, ends batches
// that have come to their end, and begins with those that have waited long enough.
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
		switch {
		case !b.retryAt.IsZero() && !now.Before(b.retryAt):
			h.tryAgain(b)
		case !b.waitBy.IsZero() && (!now.Before(b.waitBy) || !h.rec.Walks.Busy(b.work.Items, now)):
			b.waitBy = time.Time{}
			h.start(b)
		}
	}
	return nil
}

// Next is when something becomes due by itself after now; zero: nothing does.
func (h *History) Next(now time.Time) time.Time {
	next := NextAfter(now, h.hold)
	if h.spent {
		next = now
	}
	if h.rec != nil {
		next = Earlier(next, h.rec.next(now))
	}
	for _, r := range h.open {
		next = Earlier(next, NextAfter(now, h.patience(r)))
	}
	for _, b := range h.batches {
		if next = Earlier(next, NextAfter(now, b.retryAt)); !b.waitBy.IsZero() {
			next = Earlier(next, now.Add(lookAgain))
		}
	}
	return next
}

// Unread keeps a time in which nothing was read from counting as the relay's silence.
func (h *History) Unread(d time.Duration) {
	for _, r := range h.open {
		r.asked, r.heard = r.asked.Add(d), r.heard.Add(d)
		if !r.doubted.IsZero() {
			r.doubted = r.doubted.Add(d)
		}
		r.task.batch.lead.Heard(time.Now())
	}
	if h.rec != nil {
		h.rec.unread(d)
	}
}

// Confirmed is what was asked for and came.
func (h *History) Confirmed() Set { return h.confirmed }

// ConfirmWanted notes that all that is wanted is confirmed. That it is the same is known already,
// but so it is in memory once.
func (h *History) ConfirmWanted() { h.confirmed = h.wanted }

// Asked is what was asked for and is not confirmed: it is pending or has failed. It may be called
// with every message that comes.
func (h *History) Asked() Set {
	if h.asked == nil {
		var asked Set
		for _, b := range h.batches {
			asked = Union(asked, b.work.Items)
		}
		h.asked = &asked
	}
	return *h.asked
}

// Standing is how the batches stand.
type Standing struct {
	Working  bool      // a batch is under way for the first time
	Pending  bool      // one that the diff has found is
	Failed   bool      // a batch has failed and has not come to its end since
	Complete bool      // all items that were asked for have come
	CaughtUp bool      // what a start asks for has come
	Judging  bool      // events that had no verdict are being asked for again
	MakingUp int       // how often the past is being asked for instead of what did not come live
	Missing  time.Time // since when that is so; zero: it is not
}

// Standing is how the batches stand.
func (h *History) Standing() Standing {
	s := Standing{Complete: true, CaughtUp: true}
	for _, b := range h.batches {
		first, cause := b.failures == 0, b.work.Cause
		s.Working, s.Failed = s.Working || first, s.Failed || !first
		if b.found() {
			s.Complete, s.Pending = false, s.Pending || first
		} else {
			s.CaughtUp = false
		}
		s.Judging = s.Judging || cause.Unjudged
		if !cause.Missing.IsZero() {
			s.MakingUp++
			s.Missing = Earlier(s.Missing, cause.Missing)
		}
	}
	return s
}

// MakingUpFor reports whether the past is being asked for instead of a live subscription.
func (h *History) MakingUpFor(sub string) bool {
	return slices.ContainsFunc(h.batches, func(b *batch) bool { return b.work.For == sub })
}

// settle ends a batch whose tasks have ended and whose events have their verdicts, and reports
// whether it has come to its end. If a task has failed, or a verdict was lost, it must be tried
// again.
func (h *History) settle(b *batch, now time.Time) (done bool) {
	if b.running > 0 || len(b.ids) > 0 || b.idle() {
		return false
	}
	settled, lost := h.o.Inflight.Settled(&b.Account)
	if !settled {
		return false
	}
	if lost {
		h.o.Warn("lost", "historic sync is incomplete; it is tried again", "reason", "events without a verdict")
	}
	b.again = b.again || lost
	if b.again || b.byREQ || slices.ContainsFunc(b.tasks, func(t *task) bool { return t.failed }) {
		b.tryAgainAfter(now)
		return false
	}
	b.release(true)
	h.confirmed = Union(h.confirmed, Only(b.work.Items, h.wanted))
	return true
}

// tryAgain begins once more with the tasks of a batch that failed, each from where it stood. Where
// events were lost, or the relay did not deliver what it had named, all of it is asked for again.
func (h *History) tryAgain(b *batch) {
	b.retryAt = time.Time{}
	if b.again || b.byREQ {
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
