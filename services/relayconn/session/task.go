package session

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
)

const (
	// maxTries is how often a page is asked for when the relay wants quiet or fewer subscriptions.
	maxTries = 3
	// mostProbed is how many pages show whether something is hidden; with more, it is taken for granted.
	mostProbed = 20
	// perFetch is how many ids one REQ names.
	perFetch = 100
	// mostPeerLines is of how many repositories each is named of which a relay does not deliver
	// events.
	mostPeerLines = 10
)

// task is one way into the past for a batch, page by page.
type task struct {
	request
	*Walk
	batch *batch
	tries int       // of the current page
	endAt time.Time // when a page ends that has had its EOSE
	// waited is how long after its EOSE it ends; see history.grace.
	waited time.Duration
	// isPart: it is a part of what the relay has refused as too large. then is the part that is asked
	// for when this one has ended.
	isPart bool
	then   *task
	long   nostr.Timestamp // the seconds that it is about, if it is a part for a shorter time
	// restsUntil is when it is asked for again, because the relay refuses it for good; zero: it does
	// not.
	restsUntil time.Time
	// probes: it asks for everything that the relay has, to see whether NIP-77 has hidden something.
	// If so, the batch is asked for by its own filters.
	probes bool
}

// brings reports whether an event is what the batch asks for. Where the relay is asked for all that it
// has, others come too.
func (t *task) brings(ev *nostr.Event) bool {
	return !t.probes && (!t.fetches || t.batch.byID) || asksFor(t.batch.groups, ev)
}

// begins reports whether the first page of a walk would be asked for now.
func (t *task) begins() bool { return !t.fetches && t.pages == 0 && t.order == 0 }

func (b *batch) task(w *Walk) *task {
	b.running++
	return &task{batch: b, Walk: w}
}

// walk has groups asked for by REQ, from a time on, each in one REQ if the relay takes that, as soon
// as there is room.
func (h *history) walk(b *batch, groups []Group, since *nostr.Timestamp) (tasks []*task) {
	for _, g := range groups {
		for filters := range h.governor.together(g) {
			filters = slices.Clone(filters)
			for i := range filters {
				filters[i].Since = since
			}
			tasks = append(tasks, b.task(NewWalk(filters, h.governor.limits.Page(h.Rules.PageLimit))))
		}
	}
	h.queue = append(h.queue, tasks...)
	return tasks
}

// first puts a task before all others.
func (h *history) first(t *task) { h.queue = slices.Insert(h.queue, 0, t) }

// takeBack takes a request back that is asked again when there is room.
func (h *history) takeBack(t *task) {
	t.tries-- // this was no try
	t.Again()
	h.first(t)
	h.governor.stop(t)
}

// makeRoom takes requests back until there is room for so many more that are live.
func (h *history) makeRoom(lives int) {
	for live, past := h.governor.count(); past > h.governor.limits.Past(live+lives, max(1, past)); past-- {
		h.takeBack(h.governor.latest(isPast).(*task))
	}
}

// saw notes an event of a page, which it may end, and reports whether it is fresh.
func (h *history) saw(t *task, ev *nostr.Event, now time.Time) (fresh bool) {
	fresh, enough := t.Saw(ev)
	if fresh && t.ended {
		h.sendsLate(now.Sub(t.endAt.Add(-t.waited)))
	}
	switch {
	case fresh && t.batch.byID:
		t.batch.cameByID(ev.ID)
	case fresh && t.fetches:
		t.batch.fetched++
	}
	if enough {
		h.endPage(t, now)
	}
	return fresh
}

// heardEOSE notes the end of an answer. Where the relay has sent events after an EOSE, the page
// ends a while later.
func (h *history) heardEOSE(t *task, now time.Time) {
	t.waited = h.grace
	if t.fetches && !t.batch.byID && t.Missing() > len(t.page) {
		t.waited = max(t.waited, missingGrace)
	}
	if t.waited > 0 {
		t.endAt = now.Add(t.waited)
		return
	}
	h.endPage(t, now)
}

// endPage notes the end of a page: the next one must be asked for, or the task has ended.
func (h *history) endPage(t *task, now time.Time) {
	h.governor.stop(t)
	t.tries, t.endAt = 0, time.Time{}
	t.batch.lease.Heard(t.heard)
	more := t.Ended()
	h.remember(t, now)
	if t.probes && t.pages >= mostProbed && more {
		more = false
		t.batch.hidden.Store(true)
	}
	for _, f := range t.TakeAlone() {
		h.queue = append(h.queue, t.batch.task(NewWalk([]nostr.Filter{f}, t.limit)))
	}
	if more {
		h.first(t)
		return
	}
	b := t.batch
	if h.governor.alone = 0; t.isPart {
		h.governor.learn(t)
	}
	h.goOn(t)
	if n := t.Missing(); n > 0 && !b.byID {
		h.peerMissing(b, n)
		b.needs(byREQ)
		h.fail(t, fmt.Sprintf("the relay names events by NIP-77 and does not deliver them (%d)", n))
		return
	}
	for _, gap := range t.Gaps {
		from, to := gap.From.Time().UTC(), gap.To.Time().UTC()
		switch {
		case from != to:
			h.warn("ignored", "the relay does not heed since, until or limit; what it has not sent by itself is missing",
				"from", from, "to", to)
		case !b.crowded && !h.reconciler.off:
			b.crowded = true
			b.needs(byNIP77)
		default:
			h.warn("crowded second", "the relay has more events in one second than it shows", "second", from)
		}
	}
	b.running--
}

// refused acts on what was decided about a task that is not open any more. others says that the
// relay has room for the past, though not for this.
func (h *history) refused(t *task, d decision, others bool, now time.Time) {
	switch d.action {
	case giveUp:
		h.fail(t, d.why)
		return
	case askInParts: // of what is left, each from where the walk stood
		if h.divide(t, now, d.shorter) {
			t.batch.running--
			return
		}
		h.rest(t, now, d.why)
		return
	case restForADay:
		h.rest(t, now, d.why)
		return
	case askWithRoom:
		if others {
			t.tries-- // it will be one when there is room
		}
	}
	if t.tries >= maxTries {
		h.fail(t, d.why)
		return
	}
	h.pause(d.at)
	t.Again()
	h.first(t)
}

// peerMissing tells that a relay named events by NIP-77 and does not deliver them: one line for
// each repository, as far as it is known which those are.
func (h *history) peerMissing(b *batch, n int) {
	about := b.items.Full
	if len(about) == 0 || len(about) > mostPeerLines {
		about = []string{"several"}
	}
	for _, repository := range about {
		h.warn("peer missing "+repository, "peer missing events: it names them by NIP-77 and does not deliver them",
			"repository", repository, "missing", n, "delivered", b.fetched)
	}
}

// goOn has the part asked for that comes after one that has ended.
func (h *history) goOn(t *task) {
	if t.then != nil {
		h.first(t.then)
		t.then = nil
	}
}

// fail ends a task that did not bring everything; the rest of its batch goes on, because what it
// brings is worth having. What was to be fetched is found out again.
func (h *history) fail(t *task, why string) {
	h.warn("incomplete", "historic sync is incomplete; it is tried again", "reason", why)
	b := t.batch
	h.goOn(t)
	if b.running--; t.fetches { // which is of no more use; a relay may name a million ids
		b.needs(afresh)
	} else {
		b.broken = append(b.broken, t)
	}
}

// fetchNext makes a task of some of what waits to be fetched, before all others.
func (h *history) fetchNext() {
	for _, b := range h.batches {
		for len(b.toFetch) > 0 {
			some := b.toFetch[:min(len(b.toFetch), h.governor.limits.Values(h.governor.limits.Page(perFetch)))]
			b.toFetch = b.toFetch[len(some):]
			var ids []string
			for _, id := range some {
				if name := hex.EncodeToString(id[:]); !h.Intake.Known(name) { // else another relay was faster
					ids = append(ids, name)
				}
			}
			if len(ids) > 0 {
				h.first(b.task(NewFetch(ids)))
				return
			}
		}
	}
}
