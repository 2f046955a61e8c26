package writer

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/draft"
	"tendril.dev/services/ingest/policy"
)

// batch is what one commit decides.
type batch struct {
	size  int
	now   time.Time
	view  *eventdb.View
	draft *draft.Draft
	head  uint64 // of the log, that the decisions stand on
	held  uint64 // head of the held events' stream

	decided  []decided
	accepted []int // of decided, in order
	healed   []*candidate.Candidate
	bytes    int

	committed bool
}

// decided is one candidate and what came of it.
type decided struct {
	msg       jetstream.Msg // nil: a parked or held event that was decided again
	arrived   time.Time     // when the candidate was published, or, out of purgatory, when it was held
	candidate *candidate.Candidate
	decision  policy.Decision
	seq       uint64 // in the log, once it is there
}

func (w *Writer) newBatch(ctx context.Context, size int, now time.Time) (*batch, error) {
	view := w.Index.View()
	return &batch{
		size: size, now: now, view: view, head: view.Seq(), held: w.Held.Seq(),
		draft: draft.New(ctx, draft.Base{
			Log: view, Held: w.Held, Rejected: w.Rejected, Announced: w.announced,
			Domain: w.Domain, KeepDeleted: w.KeepDeleted, Now: now,
		}),
	}, nil
}

// close ends the batch. What was read for its decisions is kept for the next one, unless they were
// not committed.
func (w *Writer) close(b *batch) {
	b.view.Close()
	if b.committed {
		w.announced.Trim()
	} else {
		w.announced.Forget()
	}
}

// full says whether the batch should be committed before anything more is decided.
func (b *batch) full() bool { return len(b.decided) >= b.size || b.bytes >= maxBatchBytes }

// fill decides what was fetched, in order, until the batch is full. Parked and held events whose
// time has come are decided right after the event that they were waiting for, whether that is in
// this batch or the next one: the log does not depend on where a batch ends.
func (w *Writer) fill(b *batch) *undecidedError {
	for !b.full() {
		if len(w.healed) > 0 {
			c := w.healed[0]
			w.healed = w.healed[1:]
			c.Again = true
			b.healed = append(b.healed, c)
			if err := w.decide(b, decided{candidate: c}); err != nil {
				return err
			}
			continue
		}
		if len(w.fetched) == 0 {
			return nil
		}
		m := w.fetched[0]
		w.fetched = w.fetched[1:]
		if err := w.read(b, m); err != nil {
			return err
		}
	}
	return nil
}

// read decides a message. One that is no candidate is done with: delivered again, it would be none again.
func (w *Writer) read(b *batch, m jetstream.Msg) *undecidedError {
	c, err := candidate.Parse(m.Subject(), m.Headers(), m.Data())
	if err != nil {
		w.Log.Warn("malformed candidate", "subject", m.Subject(), "error", err)
		w.Metrics.rejected(-1, policy.ReasonMalformed)
		if err := m.TermWithReason("malformed"); err != nil {
			w.Log.Debug("ending a malformed candidate", "error", err)
		}
		w.tell(c.Reply, []proto.Verdict{{Outcome: proto.Rejected, Message: "invalid: " + err.Error(), Ref: c.Ref}})
		return nil
	}
	x := decided{msg: m, candidate: &c}
	if meta, err := m.Metadata(); err == nil {
		x.arrived = meta.Timestamp
		w.Metrics.pending(c.Lane, meta.NumPending)
	}
	return w.decide(b, x)
}

// heldSince says that the event waited in purgatory before the candidate that releases it came.
func (x *decided) heldSince(at time.Time) {
	if !at.IsZero() && (x.arrived.IsZero() || at.Before(x.arrived)) {
		x.arrived = at
	}
}

// decide decides one candidate and takes the decision into the draft, for those that come after it.
func (w *Writer) decide(b *batch, x decided) *undecidedError {
	c := x.candidate
	d, err := w.Policy.Decide(b.draft, c)
	if err != nil {
		return &undecidedError{x, err}
	}
	x.decision = d
	for _, dropped := range d.Drop {
		b.draft.Drop(dropped.Entry)
		if dropped.Evicted {
			w.Metrics.evicted.WithLabelValues(obs.KindLabel(dropped.Entry.Event.Kind)).Inc()
		}
		if dropped.Entry.Event.ID == c.Event.ID {
			x.heldSince(dropped.Entry.HeldAt)
		}
		if dropped.Remember != "" {
			b.draft.Reject(rejectionOf(&candidate.Candidate{Event: dropped.Entry.Event, Relay: dropped.Entry.Relay}, dropped.Remember, nil))
		}
	}
	for _, entry := range d.Hold {
		b.draft.Hold(entry)
	}
	switch d.Outcome {
	case proto.Accepted:
		if err := b.draft.Accept(c.Event); err != nil {
			return &undecidedError{x, fmt.Errorf("take it in: %w", err)}
		}
		b.draft.Forget(c.Event.ID)
		b.accepted = append(b.accepted, len(b.decided))
	case proto.HeldBack:
		b.draft.Forget(c.Event.ID)
	case proto.Rejected:
		w.reject(b, c, d)
	}
	b.bytes += len(c.Raw)
	b.decided = append(b.decided, x)
	next := d.Next
	if keys := policy.Arrivals(c.Event, d.Outcome); len(keys) > 0 {
		b.draft.Arrived(keys)
		next = append(next, w.Park.Take(keys, b.now)...)
	}
	if len(next) > 0 {
		w.healed = append(next, w.healed...)
	}
	return nil
}

// reject remembers and parks what was rejected. What a user submitted, and what no arrival can heal, is not remembered: nobody
// fetches it, and remembering it would let any client fill the disk.
func (w *Writer) reject(b *batch, c *candidate.Candidate, d policy.Decision) {
	if d.Remember && (c.Lane != proto.LaneUser || d.Park) {
		b.draft.Reject(rejectionOf(c, d.Message, d.Missing))
	}
	if d.Park {
		w.Park.Add(c, d.Missing, b.now)
	}
}

func rejectionOf(c *candidate.Candidate, reason string, missing []string) proto.RejectedEvent {
	return proto.RejectedEvent{
		ID: c.Event.ID, Kind: c.Event.Kind, PubKey: c.Event.PubKey, CreatedAt: c.Event.CreatedAt,
		Reason: reason, Missing: missing, Relay: c.Relay,
	}
}
