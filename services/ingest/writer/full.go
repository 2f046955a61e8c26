package writer

import (
	"context"
	"fmt"
	"time"

	"tendril.dev/proto"
)

// messageFull answers a user's event while nothing can be stored.
const messageFull = "error: this service cannot store anything at the moment; try again later"

// fullTermAfter is how long users are refused before a term is tried again.
const fullTermAfter = 5 * time.Second

// refuseUsers answers users for a while, or until ctx ends: nothing can be stored, so nothing is
// decided. All other candidates stay in their streams, and their senders wait.
func (w *Writer) refuseUsers(ctx context.Context, reason error) error {
	w.Log.Warn("nothing is decided, and users' events are refused", "reason", reason)
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	consuming, err := consume(ctx, w.Bus, sources[laneUser].stream, sources[laneUser].consumer, w.refuse, broken)
	if err != nil {
		return fmt.Errorf("refuse users' events: %w", err)
	}
	again := time.NewTimer(fullTermAfter)
	defer again.Stop()
	select {
	case <-again.C:
	case <-ctx.Done():
	}
	consuming.Drain()
	<-consuming.Closed()
	return context.Cause(ctx)
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
