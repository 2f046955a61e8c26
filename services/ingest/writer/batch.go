package writer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/draft"
	"tendril.dev/services/ingest/policy"
)

// batch is what one commit decides.
type batch struct {
	room
	now   time.Time
	draft *draft.Draft
	head  uint64 // of the log, that the decisions stand on; once the batch is committed, behind it
	held  uint64 // the same of the held events' stream

	decided []decided
	logged  []int // of decided, in order: what the log gets, events and removals
	healed  []*candidate.Candidate
	bytes   int
	older   int           // taken from the lane of older events
	urgent  int           // taken from the lanes of users' and live ones
	took    time.Duration // to commit to the log; 0: nothing was
	changes draft.Changes // when the batch is closed
}

// decided is one candidate and what came of it.
type decided struct {
	item                // of no pack: a parked or held event that was decided again
	arrived   time.Time // when the candidate was published, or, out of purgatory, when it was held
	candidate *candidate.Candidate
	decision  policy.Decision
	seq       uint64 // in the log, once it is there
}

// chain is the batches that are decided on one draft: each is decided while the one before it is
// committed, as if that were done.
type chain struct {
	view  *eventdb.View // of the log, before the first of them
	draft *draft.Draft
	held  uint64 // head of the held events' stream, before the first of them

	batches, bytes int // that it has had
}

// Bounds of a chain: the draft keeps in memory what it has accepted, and the view old files.
const (
	maxChain      = 8
	maxChainBytes = maxBatchBytes
)

func (w *Writer) newChain(ctx context.Context, now time.Time) *chain {
	view := w.Index.View()
	if w.heldRoom == nil {
		w.heldRoom = policy.NewRoom(w.Held.All()...)
	}
	return &chain{
		view: view, held: w.Held.Seq(),
		draft: draft.New(ctx, draft.Base{
			Log: view, Held: w.Held, Room: w.heldRoom, Rejected: w.Rejected, Announced: w.announced,
			Domain: w.Domain, KeepDeleted: w.KeepDeleted, Now: now,
		}),
	}
}

// newBatch begins a batch on the draft of the one that is being committed, or on a new one.
func (w *Writer) newBatch(ctx context.Context, now time.Time) *batch {
	if w.chain == nil {
		w.chain = w.newChain(ctx, now)
	}
	w.chain.draft.SetNow(now)
	return &batch{now: now, draft: w.chain.draft, head: w.chain.view.Seq(), held: w.chain.held}
}

// endChain ends the chain. What was read for its decisions is kept for the next one, unless they
// were not committed.
func (w *Writer) endChain(committed bool) {
	if w.chain == nil {
		return
	}
	_ = w.chain.view.Close()
	w.chain = nil
	if committed {
		w.announced.Trim()
	} else {
		w.announced.Forget()
		w.heldRoom = nil
	}
}

// long reports whether the next batch should begin a new chain.
func (c *chain) long() bool { return c.batches >= maxChain || c.bytes >= maxChainBytes }

// isLate reports whether a lane's events are older ones, which wait for all others.
func isLate(lane proto.Lane) bool {
	return lane == proto.LaneSyncHistoric || lane == proto.LaneSyncDaily
}

// room is how much the next batch may take, by what waits for it.
func (w *Writer) room(now time.Time) room {
	if w.careful > 0 {
		return room{1, 1}
	}
	t := traffic{wait: w.lanes.urgent(), flying: w.flying != nil && w.flying.keepsOlder(), since: w.since}
	t.recent = t.wait || now.Sub(w.urgentAt) < urgentFor
	older := t.mayHaveOlder()
	r := room{w.BatchSize, w.BatchSize}
	if w.costs.few(len(w.fetched)+len(w.healed)+w.lanes.events(older), w.mostLone) {
		r = room{1, 1}
	}
	switch {
	case !older:
		r.late = 0
	case t.recent:
		r.late = min(r.late, w.costs.older(w.BatchSize))
	}
	return r
}

// gather decides what waits, until the batch is full or nothing waits any more. While another batch
// is being committed it waits for more until that is done, and keeps an eighth of the batch for
// those that should not wait for another one: all but the older events.
func (w *Writer) gather(ctx context.Context, b *batch) error {
	for taken := false; ; taken = true {
		if len(b.decided) == 0 {
			b.room = w.room(b.now)
		}
		if u := w.fill(b); u != nil {
			return u
		}
		more := room{events: b.events - len(b.decided), late: b.late - b.older}
		var stop <-chan struct{}
		switch {
		case b.full():
			return nil
		case w.flying != nil:
			more.late, stop = min(more.late, b.events-b.events/shares-b.older), w.flying.stored
		case taken || !w.lanes.wait(more):
			return nil
		}
		var err error
		if w.fetched, err = w.lanes.next(ctx, more, nil, stop); err != nil || len(w.fetched) == 0 {
			return err
		}
	}
}

// keepsOlder reports whether older events wait until the batch is committed while there are urgent
// ones. They do not wait for releases, of which there may be many for long.
func (b *batch) keepsOlder() bool { return b.older > 0 || b.urgent >= len(b.decided) }

// full reports whether the batch should be committed before anything more is decided.
func (b *batch) full() bool { return len(b.decided) >= b.events || b.bytes >= maxBatchBytes }

// fill decides what was fetched, in order, until the batch is full. Parked and held events whose
// time has come are decided right after the event that they were waiting for, whether that is in
// this batch or the next one: the log does not depend on where a batch ends.
func (w *Writer) fill(b *batch) *undecidedError {
	b.decided = slices.Grow(b.decided, min(b.events-len(b.decided), len(w.fetched)))
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
		it := w.fetched[0]
		w.fetched = w.fetched[1:]
		if it.pack.settled {
			continue // it was given back as a whole
		}
		switch {
		case isLate(it.pack.Lane):
			b.older++
			w.since = 0
		case isUrgent(it.pack.Lane):
			b.urgent++
			w.since++
			w.urgentAt = b.now
		}
		line := it.pack.Events[it.n]
		if line.Err != nil {
			w.refuse(it, line.Err)
			continue
		}
		if err := w.decide(b, decided{item: it, arrived: it.pack.arrived, candidate: line.Candidate}); err != nil {
			return err
		}
	}
	return nil
}

// refuse is done with a line that is no candidate: delivered again, it would be none again.
func (w *Writer) refuse(it item, err error) {
	w.Log.Warn("malformed candidate", "lane", it.pack.Lane, "error", err)
	w.Metrics.rejected(-1, policy.ReasonMalformed)
	it.pack.ending = "malformed"
	w.judge(it, proto.Verdict{Outcome: proto.Rejected, Message: "invalid: " + err.Error()})
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
	if d, err = w.afford(b.draft, c, d); err != nil {
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
		b.logged = append(b.logged, len(b.decided))
	case proto.HeldBack:
		b.draft.Forget(c.Event.ID)
	case proto.Rejected:
		w.reject(b, c, d)
	}
	if d.Removes {
		b.draft.Remove(c.Event)
		b.logged = append(b.logged, len(b.decided))
	}
	b.bytes += len(c.Raw)
	b.decided = append(b.decided, x)
	next := d.Next
	if w.Park.Len() > 0 || b.draft.Waiting() {
		if keys := policy.Arrivals(c.Event, d.Outcome); len(keys) > 0 {
			b.draft.Arrived(keys)
			next = append(next, w.Park.Take(keys, b.now)...)
		}
	}
	if len(next) > 0 {
		w.healed = append(next, w.healed...)
	}
	return nil
}

// reject remembers and parks what was rejected. What a user submitted, and what no arrival can
// heal, is not remembered: nobody fetches it, and remembering it would let any client fill the
// disk. Of an import nothing is kept: whoever imports offers again what may be right later.
func (w *Writer) reject(b *batch, c *candidate.Candidate, d policy.Decision) {
	if c.Source == proto.SourceImport {
		return
	}
	if d.Remember && (c.Lane != proto.LaneUser || d.Park) {
		rejection := rejectionOf(c, d.Message, d.Missing)
		rejection.Rules = d.Rules
		b.draft.Reject(rejection)
	}
	if d.Park {
		c.Raw = bytes.Clone(c.Raw) // it would keep the rest of its pack
		w.Park.Add(c, d.Missing, b.now)
	}
}

func rejectionOf(c *candidate.Candidate, reason string, missing []string) proto.RejectedEvent {
	return proto.RejectedEvent{
		ID: c.Event.ID, Kind: c.Event.Kind, PubKey: c.Event.PubKey, CreatedAt: c.Event.CreatedAt,
		Reason: reason, Missing: missing, Relay: c.Relay,
	}
}
