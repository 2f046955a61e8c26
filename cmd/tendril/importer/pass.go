package importer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/candidates"
	"tendril.dev/proto"
)

// Offerer takes candidates; *candidates.Sender is one.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// afterInterrupt is how long the verdicts on what was offered already are waited for.
const afterInterrupt = 10 * time.Second

// finished is a record with its verdict, or why there is none.
type finished struct {
	record  record
	verdict proto.Verdict
	err     error
}

// flight is what was offered and what became of it.
type flight struct {
	mu    sync.Mutex
	ended []finished
	out   int // offered and not ended
	wake  chan struct{}
}

func newFlight() *flight { return &flight{wake: make(chan struct{}, 1)} }

// offer offers a record. It blocks while too many are without a verdict.
func (f *flight) offer(ctx context.Context, to Offerer, r record) error {
	f.mu.Lock()
	f.out++
	f.mu.Unlock()
	err := to.Offer(ctx, candidates.Candidate{
		Raw: r.raw, Lane: proto.LaneSyncHistoric, Source: proto.SourceImport,
		Done: func(v proto.Verdict, err error) { f.end(finished{r, v, err}) },
	})
	if err != nil {
		f.mu.Lock()
		f.out--
		f.mu.Unlock()
	}
	return err
}

func (f *flight) end(x finished) {
	f.mu.Lock()
	f.ended = append(f.ended, x)
	f.out--
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// take returns those that have ended since it was called last, and how many are still out.
func (f *flight) take() (ended []finished, out int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ended, f.ended = f.ended, nil
	return ended, f.out
}

// pass offers everything in a stage's queue once. What may be accepted later is in the queue again
// afterwards, in the order in which it was offered.
func (m *Import) pass(ctx context.Context, s *stage) (err error) {
	begun := time.Now()
	offering, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, broken, err := verified(offering, s.queue, s.backward)
	if err != nil {
		return err
	}
	s.backward = !s.backward
	m.tell(s, 0, begun)
	f, offered := newFlight(), 0
	for b := range batches {
		<-b.ready
		for i := range b.records {
			if b.wrong[i] != nil {
				m.counts.Invalid++
				err = m.refuse(&b.records[i], b.wrong[i].Error())
			} else {
				err = f.offer(offering, m.Offerer, b.records[i])
			}
			if err != nil {
				break
			}
		}
		offered += len(b.records)
		if err == nil {
			_, err = m.drain(s, f)
		}
		if err != nil {
			cancel()
			for range batches { // the reader ends
			}
			break
		}
		m.tell(s, offered, begun)
	}
	select {
	case reading := <-broken:
		err = errors.Join(err, reading)
	default:
	}
	if err == nil {
		err = ctx.Err() // then the reader has ended too early
	}
	err = errors.Join(err, m.await(ctx, s, f, err))
	if err == nil {
		s.queue, s.next = s.next, s.queue
		err = s.next.empty()
	}
	return err
}

// await takes what is still under way. After a failure it does not wait for long.
func (m *Import) await(ctx context.Context, s *stage, f *flight, failed error) error {
	var patience <-chan time.Time
	ended := ctx.Done()
	if failed != nil {
		patience, ended = time.After(afterInterrupt), nil
	}
	for {
		out, err := m.drain(s, f)
		if err != nil || out == 0 {
			return err
		}
		select {
		case <-f.wake:
		case <-patience:
			return nil
		case <-ended:
			patience, ended = time.After(afterInterrupt), nil
		}
	}
}

// drain notes what became of those that have ended.
func (m *Import) drain(s *stage, f *flight) (out int, err error) {
	ended, out := f.take()
	for i := range ended {
		if err := m.settle(s, &ended[i]); err != nil {
			return out, err
		}
	}
	return out, nil
}

// settle notes what became of an event.
func (m *Import) settle(s *stage, x *finished) error {
	r, v := &x.record, x.verdict
	switch {
	case errors.Is(x.err, nats.ErrMaxPayload):
		return m.refuse(r, "invalid: the event is larger than NATS takes")
	case x.err != nil:
		return fmt.Errorf("the event of line %d: %w", r.line, x.err)
	}
	switch waits := v.Outcome == proto.Duplicate && v.Message == proto.MessagePurgatory; {
	case v.Outcome == proto.Accepted:
		m.counts.Accepted++
		m.moved++
	case v.Outcome == proto.HeldBack, waits:
		if !waits {
			m.moved++
		}
		r.held = true
		return s.held.add(r)
	case v.Outcome == proto.Duplicate && r.held: // released since
		m.counts.Accepted++
		m.moved++
	case v.Outcome == proto.Duplicate:
		m.counts.Known++
	case v.Retry:
		r.held, r.message = false, v.Message
		return s.next.add(r)
	default:
		return m.refuse(r, v.Message)
	}
	return nil
}
