package query

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Step is what to do next.
type Step struct {
	Message  []byte     // to say to the relay; nil: the session has ended
	Missing  [][32]byte // ids to fetch from it; some may have come before
	Known    uint64     // of the first step: how many events of the filter are known
	OnlyHere uint64     // how many of these it has turned out not to have
	// Oldest is of the first step when the oldest of these was made, and then when the oldest was that
	// the relay has turned out to have; 0: there is none, or that is not known.
	Oldest nostr.Timestamp
}

// Reconciler asks the service grasp.query.ids which of a relay's events are not known here,
// step by step, while another process speaks with the relay (NIP-77). The asker needs no index and
// keeps nothing but the filter, and the sequence of the log that must have been read before a step
// is answered: what is accepted, held or rejected is looked up by ingest.
// [ErrRefused]: the filter is none, or the relay's message breaks the rules of the protocol. After
// any other error but [ErrTooMany] the step may be asked again.
type Reconciler struct{ Conn *nats.Conn }

// Begin makes the first message for a relay.
func (s Reconciler) Begin(ctx context.Context, session proto.ReconcileQuery) (Step, error) {
	return s.ask(ctx, session, nil)
}

// Continue reads what a relay has answered. It is for the caller to bound how often: a relay can
// keep a session going for ever.
func (s Reconciler) Continue(ctx context.Context, session proto.ReconcileQuery, answer []byte) (Step, error) {
	if len(answer) == 0 {
		return Step{}, fmt.Errorf("reconcile: %w: an empty message", ErrRefused)
	}
	return s.ask(ctx, session, answer)
}

func (s Reconciler) ask(ctx context.Context, session proto.ReconcileQuery, message []byte) (Step, error) {
	session.Message = message
	var a proto.ReconcileAnswer
	if err := request(ctx, s.Conn, proto.SubjectQueryIDs, session, &a, nil); err != nil {
		return Step{}, fmt.Errorf("reconcile: %w", err)
	}
	step := Step{Message: a.Message, Known: a.Known, OnlyHere: a.OnlyHere, Oldest: a.Oldest}
	for ids := a.Missing; len(ids) >= 32; ids = ids[32:] {
		step.Missing = append(step.Missing, [32]byte(ids))
	}
	return step, nil
}
