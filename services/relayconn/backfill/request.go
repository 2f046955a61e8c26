package backfill

import (
	"context"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/ledger"
	"tendril.dev/services/relayconn/live"
	"tendril.dev/services/relayconn/moment"
)

// Request is a historic REQ that is open at the relay.
type Request struct {
	id       string
	task     *task
	turn     int // counts in the order in which they were asked
	filters  int // in it
	asked    time.Time
	heard    time.Time // last message
	answered bool      // there was a message
	doubted  time.Time // when there was a NOTICE since it was asked that is not understood; zero: there was none
}

// Matches reports whether an event is an answer to what was asked.
func (r *Request) Matches(ev *nostr.Event) bool { return r.task.way.Matches(ev) }

// Cause is why it was asked, as far as an event is concerned that it has brought. One that came
// because the relay was asked for everything, and that no filter asks for, was never to come live.
func (r *Request) Cause(ev *nostr.Event) Cause {
	cause := r.task.batch.cause
	if f, ok := r.task.way.(*fetch); ok && !cause.LiveUntil.IsZero() {
		if by := f.came[ev.ID]; by != nil && by.wide != nil && !by.wide.asksFor(ev) {
			cause.LiveUntil = time.Time{}
		}
	}
	return cause
}

// Account is who waits for the verdicts on what it brings.
func (r *Request) Account() *ledger.Account { return &r.task.batch.Account }

// Heard notes a message of the relay.
func (r *Request) Heard(now time.Time) { r.heard, r.answered = now, true }

// Ask puts as many of the requests that wait to the relay as may be open at once.
func (b *Backfill) Ask(ctx context.Context, now time.Time) error {
	if now.Before(b.hold) {
		return nil
	}
	if err := b.reconcile(ctx, now); err != nil {
		return err
	}
	for len(b.open) < b.room() {
		t := b.next(now)
		if t == nil {
			break
		}
		t.tries++
		b.turns++
		filters := t.way.Filters()
		r := &Request{id: b.o.Name("h"), task: t, turn: b.turns, filters: len(filters), asked: now, heard: now}
		b.open[r.id] = r
		if err := b.o.Asker.Req(ctx, r.id, filters); err != nil {
			return err
		}
	}
	return nil
}

// next takes what must be asked for next; nil: nothing is. What was named is fetched before more
// is found.
func (b *Backfill) next(now time.Time) *task {
	if len(b.queue) == 0 || !isFetch(b.queue[0]) {
		if t := b.fetching(); t != nil {
			return t
		}
	}
	for len(b.queue) > 0 {
		t := b.queue[0]
		b.queue = slices.Delete(b.queue, 0, 1) // which lets go of the task
		if b.share(t, now) {
			return t
		}
	}
	return nil
}

// patience is when a request is given up: the relay is silent, or drips. One that may be what a
// NOTICE has refused is given up early.
func (b *Backfill) patience(r *Request) time.Time {
	end := moment.Earlier(r.heard.Add(b.o.Silence), r.asked.Add(slowest*b.o.Silence))
	if r.unclear() {
		end = moment.Earlier(end, r.doubted.Add(live.Doubtful))
	}
	if b.doubted(r) {
		return moment.Earlier(end, moment.Later(b.fewer, b.smaller).Add(b.o.Silence/doubtful))
	}
	return end
}

// Doubt notes a NOTICE that is not understood: it may be a refusal of what is not answered yet.
func (b *Backfill) Doubt(now time.Time) {
	for _, r := range b.open {
		if r.doubted.IsZero() {
			r.doubted = now
		}
	}
}

// unclear reports whether a NOTICE that is not understood may be a refusal of a request.
func (r *Request) unclear() bool { return !r.answered && !r.doubted.IsZero() }

// doubted reports whether the relay may have refused a request by a NOTICE, which does not say what
// it refuses, so that another request may have been blamed.
func (b *Backfill) doubted(r *Request) bool {
	return !r.answered && (!b.fewer.Before(r.asked) || b.doubtedSize(r))
}

func (b *Backfill) doubtedSize(r *Request) bool {
	return !r.answered && r.filters > 1 && !b.smaller.Before(r.asked)
}

// stop takes a request back.
func (b *Backfill) stop(ctx context.Context, r *Request) error {
	delete(b.open, r.id)
	return b.o.Asker.Unsubscribe(ctx, r.id)
}

// Saw notes an event that a request has brought, and reports whether it is fresh: of the time that
// was asked for, and not the end of the page before once more.
func (b *Backfill) Saw(ctx context.Context, r *Request, ev *nostr.Event) (fresh bool, err error) {
	fresh, enough := r.task.way.Saw(ev)
	r.task.brought = true
	if fresh {
		r.task.came++
	}
	if enough {
		return fresh, b.Ended(ctx, r)
	}
	return fresh, nil
}

// Ended notes the end of an answer, mostly by EOSE: the next one must be asked for, or the task
// has ended.
func (b *Backfill) Ended(ctx context.Context, r *Request) error {
	if err := b.stop(ctx, r); err != nil {
		return err
	}
	t := r.task
	t.tries = 0
	t.answered(b.board())
	b.answered()
	if err := b.overtaken(ctx, r); err != nil {
		return err
	}
	more, err := t.way.Ended()
	switch {
	case err != nil:
		b.fail(t, err.Error())
	case more:
		t.leadHeard(r.heard)
		b.queue = slices.Insert(b.queue, 0, t)
		b.slice(t)
	default:
		t.way.Done(b.o.Warn)
		t.endLead(true, r.heard)
		t.batch.running--
	}
	return nil
}

// slice cuts what is left of a walk into slices of time, where the relay takes more requests than
// there are ways to ask for.
func (b *Backfill) slice(t *task) {
	w, ok := t.way.(walk)
	spare := b.room() - len(b.open) - len(b.queue)
	if !ok || spare <= 0 {
		return
	}
	for _, older := range w.Slice(spare) {
		b.begin(t.batch, t.another(walk{older}))
	}
}

// room is how many requests may be open at once.
func (b *Backfill) room() int {
	return b.o.Allowance.Past(max(b.o.Live(), b.yieldTo), b.atOnce)
}

// Yields reports whether there is room for that many live subscriptions, or it is time to make it
// with [Backfill.Yield]. Until then no more is asked for than leaves room for them, and the
// requests that are open have time to come to their end. None: no room is needed any more.
func (b *Backfill) Yields(live int, now time.Time) bool {
	if live == 0 || len(b.open) <= b.roomBeside(live) {
		b.yieldTo, b.yieldBy = 0, time.Time{}
		return true
	}
	if b.yieldTo = live; b.yieldBy.IsZero() {
		b.yieldBy = now.Add(yieldWait)
	}
	return !now.Before(b.yieldBy)
}

// roomBeside is how many of the open requests may stay open beside that many live subscriptions.
func (b *Backfill) roomBeside(live int) int { return b.o.Allowance.Past(live, max(1, len(b.open))) }

// answered notes that the relay has answered a request, so that it may well take one more at once.
func (b *Backfill) answered() {
	standing := 1 // that one
	for _, r := range b.open {
		if r.answered {
			standing++
		}
	}
	b.o.Allowance.Stood(b.o.Live() + standing)
	if !b.full {
		b.atOnce = min(b.atOnce+1, b.o.AtOnce)
	}
}

// overtaken asks again for what was asked before a request that has its answer, and before a NOTICE
// that there are too many, and has no answer: most likely that NOTICE was for it.
func (b *Backfill) overtaken(ctx context.Context, by *Request) error {
	for _, r := range b.open {
		if r.answered || r.turn > by.turn || b.fewer.Before(r.asked) {
			continue
		}
		if err := b.stop(ctx, r); err != nil {
			return err
		}
		b.again(r.task)
	}
	return nil
}

// Closed notes that the relay has closed a request: the page is lost unless it was only too early,
// too large, or one request too many.
func (b *Backfill) Closed(r *Request, reason string, now time.Time) {
	delete(b.open, r.id)
	switch {
	case allowance.WantsFewer(reason):
		b.refused(r, reason, now)
	case !allowance.WantsQuiet(reason) && allowance.WantsSmaller(reason) && b.apart(r.task, reason):
	default:
		b.retry(r, "closed by the relay: "+reason)
	}
}

// latest is the request that was asked last of those that the relay has not begun to answer; nil:
// there is none.
func (b *Backfill) latest(counts func(*Request) bool) (last *Request) {
	for _, r := range b.open {
		if !r.answered && (last == nil || r.turn > last.turn) && counts(r) {
			last = r
		}
	}
	return last
}

// TooLarge notes a NOTICE that a request asks for too much. It does not say which one. elsewhere is
// true if it has been taken for one that is not of these; else it was most likely the last one of
// several filters.
func (b *Backfill) TooLarge(ctx context.Context, reason string, elsewhere bool, now time.Time) error {
	b.smaller = now
	last := b.latest(func(r *Request) bool { return r.filters > 1 })
	if elsewhere || last == nil {
		return nil
	}
	if err := b.stop(ctx, last); err != nil {
		return err
	}
	b.apart(last.task, reason)
	return nil
}

// apart asks for one filter at a time where the relay does not take several in one REQ, and from
// now on. It reports whether there were several.
func (b *Backfill) apart(t *task, reason string) bool {
	w, ok := t.way.(walk)
	if !ok {
		return false
	}
	parts := w.Apart()
	if len(parts) < 2 {
		return false
	}
	b.o.Warn("apart", "the relay does not take several filters in one REQ; they are asked one at a time", "reason", reason)
	b.single = true
	t.batch.running += len(parts) - 1
	t.tries = 0
	for i, part := range slices.Backward(parts) {
		one := t
		if i > 0 {
			one = t.another(nil)
			one.batch = t.batch
			t.batch.tasks = append(t.batch.tasks, one)
		}
		one.way = walk{part}
		b.queue = slices.Insert(b.queue, 0, one)
	}
	return true
}

// TooMany notes a NOTICE that we have too many subscriptions open. It does not say which one was
// not taken. elsewhere is true if it may not have been one of these; else it was the one that was
// asked last, if the relay has not begun to answer it. Either way fewer are asked at once from now
// on, so that this comes to an end. Where it may have been that one it is asked again, because the
// relay may never answer it.
func (b *Backfill) TooMany(ctx context.Context, reason string, elsewhere bool, now time.Time) error {
	b.fewer, b.full = now, true
	last := b.latest(func(*Request) bool { return true })
	if n := len(b.open); n > 0 && (elsewhere || last == nil) {
		b.atOnce = max(1, min(b.atOnce, n-1))
	}
	if last == nil {
		return nil
	}
	if err := b.stop(ctx, last); err != nil {
		return err
	}
	if elsewhere && len(b.open) == 0 && last.task.tries < maxTries {
		b.again(last.task) // there is room now, if it was refused
		return nil
	}
	b.refused(last, reason, now)
	return nil
}

// refused notes that a request was one too many: from now on there are no more at once than the
// relay has open now. If it has none open, the request waits, but not for ever.
func (b *Backfill) refused(r *Request, reason string, now time.Time) {
	b.full = true
	t := r.task
	if n := len(b.open); n > 0 {
		b.atOnce = min(b.atOnce, n)
		b.o.Allowance.Refused(b.o.Live() + n)
		t.tries-- // it will be one when there is room
		b.again(t)
		return
	}
	b.atOnce, b.starved = 1, true
	b.o.Allowance.Refused(b.o.Live())
	if t.tries >= maxTries {
		b.fail(t, "closed by the relay: "+reason)
		return
	}
	b.hold = now.Add(b.o.Allowance.Cooldown())
	b.again(t)
}

// Starved reports once whether the relay has refused a request though no other was open: what is
// live has taken all room.
func (b *Backfill) Starved() (starved bool) {
	starved, b.starved = b.starved, false
	return starved
}

// Relieve says that there is room again for one that starved.
func (b *Backfill) Relieve(now time.Time) { b.hold = moment.Earlier(b.hold, now) }

// Yield takes back so many of the open requests, those asked last, that there is room for that many
// live subscriptions. They are asked again.
func (b *Backfill) Yield(ctx context.Context, live int) error {
	b.yieldTo, b.yieldBy = 0, time.Time{}
	for len(b.open) > b.roomBeside(live) {
		var last *Request
		for _, r := range b.open {
			if last == nil || r.turn > last.turn {
				last = r
			}
		}
		if err := b.stop(ctx, last); err != nil {
			return err
		}
		last.task.tries-- // this was no try
		b.again(last.task)
	}
	return nil
}

// again asks for a page once more, before all others.
func (b *Backfill) again(t *task) {
	t.way.Again()
	t.came, t.fresh = 0, 0 // it all comes once more
	b.queue = slices.Insert(b.queue, 0, t)
}

// retry asks for a page again if the relay has wanted quiet, or fewer subscriptions, or smaller
// ones, since it was asked, and otherwise gives it up.
func (b *Backfill) retry(r *Request, why string) {
	if b.doubtedSize(r) && b.apart(r.task, why) {
		return
	}
	excused := b.o.Allowance.QuietAfter(r.heard) || !b.fewer.Before(r.asked)
	if excused && r.task.tries < maxTries {
		b.again(r.task)
		return
	}
	b.fail(r.task, why)
}

// fail ends a task that did not bring everything; the rest of its batch goes on, because what it
// brings is worth having.
func (b *Backfill) fail(t *task, why string) {
	b.o.Warn("incomplete", "historic sync is incomplete; it is tried again", "reason", why)
	t.failed = true
	t.endLead(false, time.Now())
	t.batch.running--
}
