package writer

import (
	"context"
	"fmt"
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// messageFull answers a user's event while nothing can be stored.
const messageFull = "error: this service cannot store anything at the moment; try again later"

const (
	// tryEvery is how long users are refused before it is tried again whether something can be stored.
	tryEvery = 5 * time.Second
	// tryTimeout bounds that, and what a term writes before it decides anything.
	tryTimeout = 5 * time.Second
)

// refuseUsers answers users until something can be stored, or ctx ends. Till then nothing is decided:
// all other candidates stay in their streams, and their senders wait.
func (w *Writer) refuseUsers(ctx context.Context, reason error) error {
	w.Log.Warn("nothing is decided, and users' events are refused", "reason", reason)
	text := reason.Error()
	w.unstored.Store(&text)
	defer w.unstored.Store(nil)
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	consuming, err := consume(ctx, w.Bus, sources[laneUser].stream, sources[laneUser].consumer, w.refuse, broken)
	if err != nil {
		return fmt.Errorf("refuse users' events: %w", err)
	}
	for bus.IsFull(reason) && backoff.Sleep(ctx, tryEvery) == nil {
		_, reason = w.moveHead(ctx)
	}
	consuming.Drain()
	<-consuming.Closed()
	return context.Cause(ctx)
}

// moveHead moves the head of the log.
func (w *Writer) moveHead(ctx context.Context) (head uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return w.Bus.PublishBatch(ctx, w.mark(proto.SubjectEventsMark), nil)
}

// Unstored says why nothing can be stored; "": as far as is known, it can.
func (w *Writer) Unstored() string {
	if why := w.unstored.Load(); why != nil {
		return *why
	}
	return ""
}

// refuse answers a pack of users' events.
func (w *Writer) refuse(p *pack) {
	for n, c := range p.events {
		if c == nil {
			continue // it has its verdict
		}
		p.verdicts[n] = proto.Verdict{ID: c.Event.ID, Kind: c.Event.Kind, Outcome: proto.Rejected, Message: messageFull,
			RetryAt: time.Now().Add(fullAgain).Unix()}
	}
	w.done(p)
}
