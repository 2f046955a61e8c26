package session

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/wire"
)

// An EOSE is a marker and no proof: there are relays that send it before the last events, or before
// all. What comes for a request up to lateFor after its EOSE is taken in, and what it was asked for is
// asked for again. From then on a page ends only some time after its EOSE, which is the session's
// grace.
const lateFor = 30 * time.Second

// pageEnd is the end of a page.
type pageEnd struct {
	*task
	at time.Time
}

// remember keeps in mind for a while that a page has ended.
func (s *Session) remember(t *task, now time.Time) {
	if t.fetches { // what does not come is asked for again anyway
		return
	}
	maps.DeleteFunc(s.pageEnds, func(_ string, e pageEnd) bool { return now.Sub(e.at) > lateFor })
	s.pageEnds[t.id] = pageEnd{t, now}
}

// hearLate takes in an event that is for no request that is open.
func (s *Session) hearLate(ctx context.Context, m wire.Message, now time.Time) error {
	e, is := s.pageEnds[m.Sub]
	if !is || now.Sub(e.at) > lateFor || !e.Matches(m.Event) || s.Intake.Known(m.Event.ID) {
		return s.chargeUseless(ctx)
	}
	s.warn("late", "the relay sends events after it has said that all are there; they are waited for", "after", now.Sub(e.at))
	s.grace = max(s.grace, min(2*now.Sub(e.at)+time.Second, lateFor))
	s.askAgain(e.batch)
	waiting := new(atomic.Int64) // nobody waits for the verdict: the batch begins again
	waiting.Add(1)
	came := ending{why: e.batch.cause, came: now, waiting: waiting}
	_, err := s.Intake.Take(ctx, intake.Arrival{
		Event: m.Event, Lane: proto.LaneSyncHistoric, Source: e.batch.cause.source, Came: now,
		Done: func(r intake.Result) { came.Result = r; s.judged(came) },
	})
	return err
}

// askAgain has a batch begin again, once, that may not have brought everything.
func (s *Session) askAgain(b *batch) {
	if b.isLate {
		return
	}
	b.isLate = true
	if slices.Contains(s.batches, b) {
		b.again = true
		return
	}
	s.setConfirmed(Diff(s.confirmed, b.items, Set{}))
	again := &batch{work: b.work, isLate: true}
	s.batches = append(s.batches, again)
	s.start(again)
}

// endPages ends pages whose time of grace is over.
func (s *Session) endPages(now time.Time) {
	for _, a := range s.open {
		if t, is := a.(*task); is && !t.endAt.IsZero() && !now.Before(t.endAt) {
			s.ended(t, now)
		}
	}
}
