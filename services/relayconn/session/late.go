package session

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
)

const (
	// An EOSE is a marker and no proof: there are relays that send it before the last events, or
	// before all. What comes for a request up to lateFor after its EOSE is taken in, and what it was
	// asked for is asked for again. From then on a page ends only some time after its EOSE, which is
	// the history's grace.
	lateFor = 30 * time.Second
	// LateFor is lateFor.
	LateFor = lateFor
	// mostPageEnds is how many ends of pages are kept in mind. Beyond it the oldest go: a relay that
	// answers so fast has not sent its EOSE early.
	mostPageEnds = 1000
)

// pageEnd is the end of a page.
type pageEnd struct {
	*task
	at time.Time
}

// remember keeps in mind for a while that a page has ended.
func (h *history) remember(t *task, now time.Time) {
	if t.fetches && !t.batch.byID { // what does not come is asked for again anyway
		return
	}
	for least := lateFor; len(h.pageEnds) >= mostPageEnds; least /= 2 {
		maps.DeleteFunc(h.pageEnds, func(_ string, e pageEnd) bool { return now.Sub(e.at) >= least })
	}
	maps.DeleteFunc(h.pageEnds, func(_ string, e pageEnd) bool { return now.Sub(e.at) > lateFor })
	h.pageEnds[t.id] = pageEnd{t, now}
}

// takesLate reports whether an event that is for no open request is for a page that has ended
// lately, and is not known.
func (h *history) takesLate(m wire.Message, now time.Time) (e pageEnd, takes bool) {
	e, is := h.pageEnds[m.Sub]
	return e, is && now.Sub(e.at) <= lateFor && e.Matches(m.Event) && !h.Intake.Known(m.Event.ID)
}

// takeLate takes in such an event. No batch waits for its verdict: the batch begins again.
func (h *history) takeLate(ctx context.Context, e pageEnd, m wire.Message, now time.Time, judged func(ending)) error {
	h.warn("late", "the relay sends events after it has said that all are there; they are waited for", "after",
		now.Sub(e.at))
	h.grace = max(h.grace, min(2*now.Sub(e.at)+time.Second, lateFor))
	h.askAgain(e.batch)
	waiting := new(atomic.Int64)
	waiting.Add(1)
	came := ending{why: e.batch.cause, came: now, waiting: waiting}
	_, err := h.Intake.Take(ctx, intake.Arrival{
		Event: m.Event, Lane: proto.LaneSyncHistoric, Source: e.batch.cause.source, Came: now,
		Done: func(r intake.Result) { came.Result = r; judged(came) },
	})
	return err
}

// askAgain has a batch begin again, once, that may not have brought everything.
func (h *history) askAgain(b *batch) {
	if b.isLate || b.byID {
		return
	}
	b.isLate = true
	if h.has(b) {
		b.needs(afresh)
		return
	}
	h.confirm(Diff(h.confirmed, b.items, Set{}))
	again := &batch{work: b.work, isLate: true}
	h.batches = append(h.batches, again)
	h.start(again)
}

// endPages ends pages whose time of grace is over.
func (h *history) endPages(now time.Time) {
	for _, a := range h.governor.open {
		if t, is := a.(*task); is && !t.endAt.IsZero() && !now.Before(t.endAt) {
			h.endPage(t, now)
		}
	}
}
