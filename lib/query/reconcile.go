package query

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"tendril.dev/proto"
)

// Step is what to do next.
type Step struct {
	Message  []byte     // to say to the relay; nil: the session has ended
	Missing  [][32]byte // ids to fetch from it; some may have come before
	OnlyHere uint64     // how many events of the filter it has turned out not to have
}

// Reconciler asks the service grasp.query.ids which of a relay's events are not known here,
// step by step, while another process speaks with the relay (NIP-77). The asker needs no index and
// keeps nothing but the filter, and the sequence of the log that must have been read before a step
// is answered: what is accepted, held or rejected is looked up by ingest.
// [ErrRefused]: the filter is none, or the relay's message breaks the rules of the protocol. After
// any other error but [ErrTooMany] the step may be asked again.
type Reconciler struct{ Conn *nats.Conn }

// Begin makes the first message for a relay, and tells how many events of the filter are known.
func (s Reconciler) Begin(ctx context.Context, session proto.ReconcileQuery) (first []byte, known uint64, err error) {
	a, err := s.ask(ctx, session, nil)
	return a.Message, a.Known, err
}

// Continue reads what a relay has answered. It is for the caller to bound how often: a relay can
// keep a session going for ever.
func (s Reconciler) Continue(ctx context.Context, session proto.ReconcileQuery, answer []byte) (Step, error) {
	if len(answer) == 0 {
		return Step{}, fmt.Errorf("reconcile: %w: an empty message", ErrRefused)
	}
	a, err := s.ask(ctx, session, answer)
	step := Step{Message: a.Message, OnlyHere: a.OnlyHere}
	for ids := a.Missing; len(ids) >= 32; ids = ids[32:] {
		step.Missing = append(step.Missing, [32]byte(ids))
	}
	return step, err
}

func (s Reconciler) ask(ctx context.Context, session proto.ReconcileQuery, message []byte) (a proto.ReconcileAnswer,
	err error) {
	session.Message = message
	if err := request(ctx, s.Conn, proto.SubjectQueryIDs, session, &a, nil); err != nil {
		return proto.ReconcileAnswer{}, fmt.Errorf("reconcile: %w", err)
	}
	return a, nil
}
