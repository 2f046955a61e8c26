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
	// missingGrace is how long after an EOSE events are waited for at least that the relay has named.
	missingGrace = 5 * time.Second
	// mostPageEnds is how many ends of pages are kept in mind. Beyond it the oldest go: a relay that
	// answers so fast has not sent its EOSE early.
	mostPageEnds = 1000
)

// pageEnd is a page that has ended.
type pageEnd struct {
	*task
	at time.Time // of its EOSE
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
	h.pageEnds[t.id] = pageEnd{t, now.Add(-t.waited)}
}

// takesLate reports whether an event that is for no open request is for a page that has ended
// lately, and is not known.
func (h *history) takesLate(m wire.Message, now time.Time) (e pageEnd, takes bool) {
	e, is := h.pageEnds[m.Sub]
	return e, is && now.Sub(e.at) <= lateFor && e.Matches(m.Event) && e.brings(m.Event) && !h.Intake.Known(m.Event.ID)
}

// takeLate takes in such an event. No batch waits for its verdict: the batch begins again.
func (h *history) takeLate(ctx context.Context, e pageEnd, m wire.Message, now time.Time, judged func(ending)) error {
	late := now.Sub(e.at)
	h.sendsLate(late)
	h.askAgain(e.batch, late)
	waiting := new(atomic.Int64)
	waiting.Add(1)
	came := ending{why: e.batch.cause, came: now, waiting: waiting}
	_, err := h.Intake.Take(ctx, intake.Arrival{
		Event: m.Event, Lane: proto.LaneSyncHistoric, Source: e.batch.cause.source, Came: now,
		Done: func(r intake.Result) { came.Result = r; judged(came) },
	})
	return err
}

// sendsLate notes how long after an EOSE an event came.
func (h *history) sendsLate(late time.Duration) {
	h.warn("late", "the relay sends events after it has said that all are there; they are waited for", "after", late)
	h.grace = max(h.grace, min(2*late+time.Second, lateFor))
}

// askAgain has a batch begin again that may not have brought everything, because an event came so
// late: later than the pages of the batch wait now.
func (h *history) askAgain(b *batch, late time.Duration) {
	switch {
	case b.byID || late < b.grace:
	case h.has(b):
		b.needs(afresh)
	default:
		h.confirm(Diff(h.confirmed, b.items, Set{}))
		b.named, b.failures = nil, 0
		h.batches = append(h.batches, b)
		h.start(b)
	}
}

// endPages ends pages whose time of grace is over.
func (h *history) endPages(now time.Time) {
	for _, a := range h.governor.open {
		if t, is := a.(*task); is && !t.endAt.IsZero() && !now.Before(t.endAt) {
			h.endPage(t, now)
		}
	}
}
