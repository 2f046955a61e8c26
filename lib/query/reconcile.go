package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// ErrTooMany: too many events match the filter of a reconciliation; ask for a shorter time.
var ErrTooMany = errors.New("too many events match the filter")

// Reconciliation is what stays the same during a session with a relay.
type Reconciliation struct {
	Filter nostr.Filter
	// Seq is the sequence of the log that must have been read before a step is answered: the last
	// of what the asker knows to be accepted.
	Seq uint64
}

// Step is what to do next.
type Step struct {
	Message []byte     // to say to the relay; nil: all is settled
	Missing [][32]byte // ids to fetch from it; some may have come before
	Alone   uint64     // how many events of the filter it has turned out not to have
}

// Reconciler asks the service grasp.query.reconcile which of a relay's events are not known here,
// step by step, while another process speaks with the relay (NIP-77). The asker needs no index and
// keeps nothing but the filter: what is accepted, held or rejected is looked up by ingest.
// [ErrRefused]: the filter is none, or the relay's message breaks the rules of the protocol. After
// any other error but [ErrTooMany] the step may be asked again.
type Reconciler struct{ Conn *nats.Conn }

// Begin makes the first message for a relay, and tells how many events of the filter are known.
func (s Reconciler) Begin(ctx context.Context, session Reconciliation) (first []byte, known uint64, err error) {
	a, err := s.ask(ctx, session, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("begin to reconcile: %w", err)
	}
	return a.Message, a.Known, nil
}

// Continue reads what a relay has answered. It is for the caller to bound how often: a relay can
// keep a session going for ever.
func (s Reconciler) Continue(ctx context.Context, session Reconciliation, answer []byte) (Step, error) {
	if len(answer) == 0 {
		return Step{}, fmt.Errorf("reconcile: %w: an empty message", ErrRefused)
	}
	a, err := s.ask(ctx, session, answer)
	if err != nil {
		return Step{}, fmt.Errorf("reconcile: %w", err)
	}
	step := Step{Message: a.Message, Alone: a.Alone}
	for ids := a.Missing; len(ids) >= 32; ids = ids[32:] {
		step.Missing = append(step.Missing, [32]byte(ids))
	}
	return step, nil
}

func (s Reconciler) ask(ctx context.Context, session Reconciliation, message []byte) (a proto.ReconcileAnswer, err error) {
	data, err := json.Marshal(proto.ReconcileQuery{Filter: session.Filter, Message: message, Seq: session.Seq})
	if err != nil {
		return a, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if most := s.Conn.MaxPayload(); int64(len(data)) > most {
		return a, fmt.Errorf("%w: the filter and the relay's message take %d bytes, and the bus takes %d", ErrRefused, len(data), most)
	}
	msg, err := s.Conn.RequestWithContext(ctx, proto.SubjectQueryReconcile, data)
	if err != nil {
		return a, err
	}
	if code := msg.Header.Get(micro.ErrorCodeHeader); code != "" {
		reason := msg.Header.Get(micro.ErrorHeader)
		switch code {
		case proto.QueryTooMany:
			return a, fmt.Errorf("%w: %s", ErrTooMany, reason)
		case proto.QueryBad:
			return a, fmt.Errorf("%w: %s", ErrRefused, reason)
		}
		return a, errors.New(reason)
	}
	return a, json.Unmarshal(msg.Data, &a)
}
