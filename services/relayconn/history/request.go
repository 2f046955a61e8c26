package history

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

const (
	// maxTries is how often a page is asked for when the relay wants quiet or fewer subscriptions.
	maxTries = 3
	// firstAtOnce is how many requests are open at once at first. With each answer it is one more,
	// until the relay refuses one.
	firstAtOnce = 4
	// slowest is how long a page may take, as a factor of how long a relay may be silent.
	slowest = 20
	// Doubtful is how long the relay may take to answer what is open after a NOTICE that may be a
	// refusal of it. What it has not answered by then was most likely refused.
	Doubtful = 10 * time.Second
)

// Request is a historic REQ that is open at the relay.
type Request struct {
	id       string
	task     *task
	turn     int // counts in the order in which they were asked
	asked    time.Time
	heard    time.Time // last message
	answered bool      // there was a message
	doubted  time.Time // when a NOTICE came since that may be a refusal of it; zero: none did
	smaller  bool      // that was because it asks for too much
}

// Find returns the open request of that name; nil: there is none.
func (h *History) Find(name string) *Request { return h.open[name] }

// Open counts the requests that are open at the relay.
func (h *History) Open() int { return len(h.open) }

// Matches reports whether an event is an answer to what was asked.
func (r *Request) Matches(ev *nostr.Event) bool { return r.task.way.Matches(ev) }

// Cause is why it was asked, as far as an event is concerned that it has brought.
func (r *Request) Cause(ev *nostr.Event) Cause {
	if f, ok := r.task.way.(*fetch); ok {
		return f.cause(ev)
	}
	return r.task.batch.work.Cause
}

// Account is who waits for the verdicts on what it brings.
func (r *Request) Account() *Account { return &r.task.batch.Account }

// Heard notes a message of the relay.
func (r *Request) Heard(now time.Time) { r.heard, r.answered, r.doubted = now, true, time.Time{} }

// request puts as many of the tasks that wait to the relay as may be open at once. What was named
// is fetched before more is found.
func (h *History) request(ctx context.Context, now time.Time) error {
	for len(h.open) < h.room() {
		var t *task
		if len(h.queue) == 0 || !isFetch(h.queue[0]) {
			t = h.fetching()
		}
		if t == nil && len(h.queue) > 0 {
			t = h.queue[0]
			h.queue = slices.Delete(h.queue, 0, 1) // which lets go of the task
		}
		if t == nil {
			break
		}
		t.tries++
		h.turns++
		r := &Request{id: h.o.Name("h"), task: t, turn: h.turns, asked: now, heard: now}
		h.open[r.id] = r
		if err := h.o.Asker.Req(ctx, r.id, t.way.Filters()); err != nil {
			return err
		}
	}
	return nil
}

func isFetch(t *task) bool {
	_, is := t.way.(*fetch)
	return is
}

// room is how many requests may be open at once.
func (h *History) room() int { return h.o.Limits.Past(h.o.Live(), h.atOnce) }

// patience is when a request is given up: the relay is silent, or drips, or may have refused it.
func (h *History) patience(r *Request) time.Time {
	end := Earlier(r.heard.Add(h.o.Silence), r.asked.Add(slowest*h.o.Silence))
	if !r.doubted.IsZero() {
		end = Earlier(end, r.doubted.Add(Doubtful))
	}
	return end
}

// stop takes a request back.
func (h *History) stop(ctx context.Context, r *Request) error {
	delete(h.open, r.id)
	return h.o.Asker.Unsubscribe(ctx, r.id)
}

// takeBack takes a request back that is asked again when there is room.
func (h *History) takeBack(ctx context.Context, r *Request) error {
	r.task.tries-- // this was no try
	h.again(r.task)
	return h.stop(ctx, r)
}

// Yield takes back so many of the open requests, those asked last, that there is room for that many
// live subscriptions.
func (h *History) Yield(ctx context.Context, live int) error {
	for len(h.open) > h.o.Limits.Past(live, max(1, len(h.open))) {
		if err := h.takeBack(ctx, h.latest(func(*Request) bool { return true })); err != nil {
			return err
		}
	}
	return nil
}

// latest is the request that was asked last of those that count; nil: there is none.
func (h *History) latest(counts func(*Request) bool) (last *Request) {
	for _, r := range h.open {
		if (last == nil || r.turn > last.turn) && counts(r) {
			last = r
		}
	}
	return last
}

// Saw notes an event that a request has brought, and reports whether it is fresh: of the time that
// was asked for, and not the end of the page before once more.
func (h *History) Saw(ctx context.Context, r *Request, ev *nostr.Event) (fresh bool, err error) {
	fresh, enough := r.task.way.Saw(ev)
	if enough {
		return fresh, h.Ended(ctx, r)
	}
	return fresh, nil
}

// Ended notes the end of an answer, mostly by EOSE: the next one must be asked for, or the task
// has ended.
func (h *History) Ended(ctx context.Context, r *Request) error {
	if err := h.stop(ctx, r); err != nil {
		return err
	}
	h.grow()
	t := r.task
	t.tries = 0
	t.batch.lead.Heard(r.heard)
	more, err := t.way.end(h.o.Warn)
	switch {
	case err != nil:
		h.fail(t, err.Error())
	case more:
		h.queue = slices.Insert(h.queue, 0, t)
		h.slice(t)
	default:
		t.batch.running--
	}
	return nil
}

// grow notes that the relay has answered a request, so that it may well take one more at once.
func (h *History) grow() {
	standing := 1 // that one
	for _, r := range h.open {
		if r.answered {
			standing++
		}
	}
	h.o.Limits.Stood(h.o.Live() + standing)
	if !h.full {
		h.atOnce = min(h.atOnce+1, h.o.AtOnce)
	}
}

// slice cuts what is left of a walk into slices of time, where the relay takes more requests than
// there are ways to ask for.
func (h *History) slice(t *task) {
	spare := h.room() - len(h.open) - len(h.queue)
	if w, ok := t.way.(*Walk); ok && spare > 0 {
		for _, older := range w.Slice(spare) {
			h.begin(t.batch, older)
		}
	}
}

// Closed notes that the relay has closed a request: the page is lost unless it was only too early,
// too large, or one request too many.
func (h *History) Closed(r *Request, reason string, now time.Time) {
	delete(h.open, r.id)
	switch {
	case wire.WantsProof(reason) && r.task.tries < 2:
		h.hold = Later(h.hold, now.Add(wire.ProofWait))
		h.again(r.task)
	case wire.WantsFewer(reason):
		h.refused(r.task, reason, now)
	case wire.WantsQuiet(reason):
		h.retry(r.task, "closed by the relay: "+reason)
	case wire.WantsSmaller(reason) && h.apart(r.task, reason):
	default:
		h.fail(r.task, "closed by the relay: "+reason)
	}
}

// Doubt notes a NOTICE that may be a refusal of what is not answered yet, because it asks for too
// much in one request or for another reason.
func (h *History) Doubt(now time.Time, smaller bool) {
	for _, r := range h.open {
		if !r.answered && r.doubted.IsZero() {
			r.doubted, r.smaller = now, smaller
		}
	}
}

// TooLarge notes a NOTICE that a request asks for too much. It does not say which one. elsewhere is
// true if it has been taken for one that is not of these; else it was most likely the last one of
// several filters.
func (h *History) TooLarge(ctx context.Context, reason string, elsewhere bool, now time.Time) error {
	last := h.latest(func(r *Request) bool { return !r.answered && len(r.task.way.Filters()) > 1 })
	h.Doubt(now, true)
	if elsewhere || last == nil {
		return nil
	}
	h.apart(last.task, reason)
	return h.stop(ctx, last)
}

// TooMany notes a NOTICE that we have too many subscriptions open. It does not say which one was
// not taken. elsewhere is true if it may not have been one of these; else it was most likely the
// one that was asked last, if the relay has not begun to answer it.
func (h *History) TooMany(ctx context.Context, reason string, elsewhere bool, now time.Time) error {
	last := h.latest(func(r *Request) bool { return !r.answered })
	h.Doubt(now, false)
	h.full = true
	if n := len(h.open); n > 0 && (elsewhere || last == nil) {
		h.atOnce = max(1, min(h.atOnce, n-1))
	}
	if last == nil {
		return nil
	}
	if err := h.stop(ctx, last); err != nil {
		return err
	}
	if elsewhere && len(h.open) == 0 {
		h.retry(last.task, reason) // there is room now, if it was refused
	} else {
		h.refused(last.task, reason, now)
	}
	return nil
}

// silent gives up a request that the relay does not answer, or not to its end. What it has not
// begun to answer was most likely refused, whether it said so or not.
func (h *History) silent(ctx context.Context, r *Request, now time.Time) error {
	if err := h.stop(ctx, r); err != nil {
		return err
	}
	doubted := !r.doubted.IsZero() && !now.Before(r.doubted.Add(Doubtful))
	why := fmt.Sprintf("no end of the answer after %v", now.Sub(r.asked))
	switch {
	case doubted && r.smaller && h.apart(r.task, why):
	case doubted:
		h.o.Warn("unclear", "the relay says something and does not answer, which counts as a refusal; fewer requests are open at once")
		h.o.Limits.Refused((h.o.Live() + len(h.open) + 1) / 2)
		h.atOnce, h.full, h.starved = max(1, (len(h.open)+1)/2), true, h.starved || len(h.open) == 0
		h.retry(r.task, why)
	case h.o.Limits.QuietAfter(r.heard):
		h.retry(r.task, why)
	default:
		if !r.answered {
			h.o.Limits.Refused(h.o.Live() + len(h.open))
			h.starved = h.starved || len(h.open) == 0
		}
		h.fail(r.task, why)
	}
	return nil
}

// apart asks for one filter at a time where the relay does not take several in one REQ, and from
// now on, each from where the walk stood. It reports whether there were several.
func (h *History) apart(t *task, reason string) bool {
	filters := t.way.Filters()
	if len(filters) < 2 {
		return false
	}
	h.o.Warn("apart", "the relay does not take several filters in one REQ; they are asked one at a time", "reason", reason)
	h.single = true
	page := h.o.Limits.Page(h.o.PageLimit)
	t.tries, t.way = 0, NewWalk(filters[:1], page)
	h.queue = slices.Insert(h.queue, 0, t)
	for _, f := range filters[1:] {
		h.begin(t.batch, NewWalk([]nostr.Filter{f}, page))
	}
	return true
}

// refused notes that a request was one too many: from now on there are no more at once than the
// relay has open now. If it has none open, the request waits, but not for ever.
func (h *History) refused(t *task, reason string, now time.Time) {
	h.full = true
	if n := len(h.open); n > 0 {
		h.atOnce = min(h.atOnce, n)
		h.o.Limits.Refused(h.o.Live() + n)
		t.tries-- // it will be one when there is room
		h.again(t)
		return
	}
	h.atOnce, h.starved = 1, true
	h.o.Limits.Refused(h.o.Live())
	h.hold = now.Add(h.o.Limits.Cooldown())
	h.retry(t, "closed by the relay: "+reason)
}

// Starved reports once whether the relay has refused a request though no other was open: what is
// live has taken all room.
func (h *History) Starved() (starved bool) {
	starved, h.starved = h.starved, false
	return starved
}

// Hold asks nothing before a moment, which is at most a day away.
func (h *History) Hold(until time.Time) {
	h.hold = Later(h.hold, Earlier(until, time.Now().Add(24*time.Hour)))
}

// Relieve says that there is room again for one that starved.
func (h *History) Relieve(now time.Time) { h.hold = Earlier(h.hold, now) }

// again asks for a page once more, before all others.
func (h *History) again(t *task) {
	t.way.Again()
	h.queue = slices.Insert(h.queue, 0, t)
}

// retry asks for a page again, but not for ever.
func (h *History) retry(t *task, why string) {
	if t.tries < maxTries {
		h.again(t)
		return
	}
	h.fail(t, why)
}

// fail ends a task that did not bring everything; the rest of its batch goes on, because what it
// brings is worth having. What was to be fetched is found out again.
func (h *History) fail(t *task, why string) {
	h.o.Warn("incomplete", "historic sync is incomplete; it is tried again", "reason", why)
	t.failed = true
	t.batch.running--
	t.batch.again = t.batch.again || isFetch(t)
}
