package writer

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// commitTimeout bounds the commits of one batch.
const commitTimeout = 15 * time.Second

// commit writes a batch to the streams, and takes it into all projections. A commit that has begun
// is finished, term or no term: the heads decide whether it may.
//
//  1. The log. After a crash behind it an event that the log has is a duplicate, and the entry that
//     it left behind is dropped with that answer or by [term.heal].
//  2. The held events. Before the log, a crash could lose an event whose git data is there.
//  3. The rejections. A crash before them only has events fetched once more.
//
// Only then candidates are acknowledged: after a crash all come again, and are decided on what is
// there.
func (t *term) commit(ctx context.Context, b *batch) error {
	t.beforeCommit()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	start := time.Now()
	err := t.commitEvents(ctx, b)
	if err == nil {
		b.paidFor(proto.Accepted)
		t.afterEvents()
		err = t.commitHeld(ctx, len(b.logged) == 0)
	}
	if err == nil {
		b.paidFor(proto.HeldBack)
		t.afterHeld()
		err = t.commitRejections(ctx)
	}
	if err != nil {
		return err
	}
	t.metrics.batchSize.Observe(float64(len(b.decided)))
	t.metrics.batchDuration.Observe(time.Since(start).Seconds())
	return nil
}

// paidFor notes that the events of an outcome are on disk: what they cost is not given back if a
// later step fails.
func (b *batch) paidFor(outcome proto.Outcome) {
	for i := range b.decided {
		if b.decided[i].decision.Outcome == outcome {
			b.decided[i].stored = true
		}
	}
}

// commitEvents appends the accepted events and the removals, if the log's head is still the one
// that they were decided on.
func (t *term) commitEvents(ctx context.Context, b *batch) error {
	if len(b.logged) == 0 {
		return nil
	}
	now := time.Now()
	msgs, records := make([]*nats.Msg, len(b.logged)), make([]eventdb.Record, len(b.logged))
	for i, n := range b.logged {
		x := &b.decided[n]
		c := x.candidate
		header := nats.Header{proto.HeaderSource: {string(c.Source)}}
		if c.Relay != "" {
			header.Set(proto.HeaderRelay, c.Relay)
		}
		if c.Trace != "" {
			header.Set(proto.HeaderTraceParent, c.Trace)
			records[i].Trace, records[i].At = c.Trace, now
		}
		msgs[i] = &nats.Msg{Subject: proto.EventSubjectOf(c.Event).String(), Header: header}
		if x.decision.Removes { // an empty message takes the event's place
			header.Set(proto.HeaderRemoved, c.Event.ID)
			header.Set(jetstream.MsgTTLHeader, proto.RemovedKept.String())
			records[i].Removed, records[i].Subject = c.Event.ID, msgs[i].Subject
			continue
		}
		for _, floor := range x.decision.Floors {
			text, err := json.Marshal(floor)
			if err != nil {
				return fmt.Errorf("write the floor of a deletion request: %w", err)
			}
			header.Add(proto.HeaderFloor, string(text))
		}
		if x.decision.Request != (proto.Request{}) {
			text, err := json.Marshal(x.decision.Request)
			if err != nil {
				return fmt.Errorf("write what was decided of a request: %w", err)
			}
			header.Set(proto.HeaderRequest, string(text))
		}
		records[i].Floors, records[i].Request = x.decision.Floors, x.decision.Request
		msgs[i].Data = c.Raw
		records[i].Event, records[i].Raw = c.Event, c.Raw
	}
	store := t.Bus.PublishBatch
	if len(msgs) <= fewEvents && t.Bus.Sizing().Replicas == 1 {
		store = t.Bus.PublishChain
	}
	last, err := store(ctx, msgs, &t.head)
	if err != nil {
		return fmt.Errorf("events on head %d: %w", t.head, err)
	}
	t.head = last
	for i, n := range b.logged {
		seq := last - uint64(len(msgs)-1-i)
		records[i].Seq, b.decided[n].seq = seq, seq
	}
	if err := t.Index.Feed(records); err != nil {
		return fmt.Errorf("take %d committed events into the index: %w", len(records), err)
	}
	return nil
}

// fewEvents is how many events are stored as a chain and not as a batch, where the server has no
// replicas: of 8 the chain takes less time (4 ms against 6 ms), of 16 as much, of 24 twice as much
// (14 ms against 8 ms). A crash may keep the first of them only; the others are decided again.
const fewEvents = 8

// publish stores messages in batches, each on the head of the one before if there is a head, and
// returns their sequences.
func (w *Writer) publish(ctx context.Context, msgs []*nats.Msg, head *uint64) (seqs []uint64, err error) {
	for part := range slices.Chunk(msgs, bus.MaxBatch) {
		last, err := w.Bus.PublishBatch(ctx, part, head)
		if err != nil {
			return nil, err
		}
		if head != nil {
			*head = last
		}
		for i := range part {
			seqs = append(seqs, last-uint64(len(part)-1-i))
		}
	}
	return seqs, nil
}

// deletionKept is how long the bucket keeps the message that says that an entry is gone: long
// enough for every follower that was cut off to hear of it.
const deletionKept = 24 * time.Hour

// commitHeld changes the held events, if their head is still the one that the changes were decided
// on. Where nothing else of a batch shows that this is still the writer's term, a mark does: a new
// writer has moved that head before it decides anything.
func (t *term) commitHeld(ctx context.Context, confirm bool) (err error) {
	var keys []string
	var msgs []*nats.Msg
	for _, key := range slices.Sorted(maps.Keys(t.draft.entries)) {
		entry := t.draft.entries[key]
		if entry == nil && t.Held.ByKey(key) == nil {
			continue // held and gone within one batch
		}
		m := &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key)}
		if entry == nil {
			m.Header = bus.Deletion(deletionKept)
		} else if m.Data, err = entry.Encode(); err != nil {
			return err
		}
		keys, msgs = append(keys, key), append(msgs, m)
	}
	if confirm && len(msgs) == 0 {
		keys, msgs = []string{proto.HeldMarkKey}, t.mark(proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey))
	}
	seqs, err := t.publish(ctx, msgs, &t.heldHead)
	if err != nil {
		return fmt.Errorf("changes of held events on head %d: %w", t.heldHead, err)
	}
	for i, seq := range seqs {
		t.Held.Apply(held.Change{Seq: seq, Key: keys[i], Entry: t.draft.entries[keys[i]]})
	}
	return nil
}

// mark is the message by which a writer moves a head.
func (w *Writer) mark(subject string) []*nats.Msg {
	data, _ := json.Marshal(proto.WriterMark{Writer: w.Worker, At: time.Now().UTC()}) // a name and a time
	return []*nats.Msg{{Subject: subject, Data: data}}
}

// commitRejections remembers what was rejected, and takes back what may heal. No head is expected:
// the term was confirmed just before, and a surplus rejection only skips a fetch.
func (t *term) commitRejections(ctx context.Context) error {
	now := time.Now()
	var msgs []*nats.Msg
	for _, id := range slices.Sorted(maps.Keys(t.draft.rejections)) {
		r := t.draft.rejections[id]
		m := new(nats.Msg)
		if r != nil {
			m.Data = t.Rejected.Encode(*r)
			if len(r.FetchFrom) > 0 {
				t.metrics.invalidated.WithLabelValues(obs.EventTypeLabel(r.Kind)).Inc()
			}
		} else if kind, healed := t.Rejected.Healed(id); healed {
			r = &proto.RejectedEvent{Kind: kind}
		} else if before, is := t.Rejected.Find(id, now); is {
			r = &before
			t.metrics.invalidated.WithLabelValues(obs.EventTypeLabel(r.Kind)).Inc()
		} else {
			continue // rejected and taken back within one batch
		}
		m.Subject = proto.RejectedSubject{Kind: r.Kind, ShortID: proto.ShortID(id)}.String()
		msgs = append(msgs, m)
	}
	seqs, err := t.publish(ctx, msgs, nil)
	if err != nil {
		return fmt.Errorf("remember %d rejections: %w", len(msgs), err)
	}
	for i, seq := range seqs {
		switch at := t.Rejected.Seq(); {
		case seq <= at: // it was read already
		case seq == at+1:
			t.Rejected.Apply(bus.Message{Seq: seq, Subject: msgs[i].Subject, Data: msgs[i].Data, Time: now})
		default: // an earlier writer has stored its last rejections since this term began
			return t.Rejected.Wait(ctx, seqs[len(seqs)-1])
		}
	}
	return nil
}

// heal deletes held events that a crash between two commits left behind: the log has them, or
// something newer in their place, or a deletion request for them. Announcements that are held with
// others' are decided again: what they waited for may have ended just before the crash.
func (t *term) heal(ctx context.Context) error {
	t.draft.begin(ctx)
	for _, e := range t.Held.All() {
		switch {
		case policy.Over(t.draft, e):
			t.draft.Drop(e)
		case e.Phase == proto.PhaseVouched:
			t.rechecks.add(bulk, policy.Release(e.Event))
		}
	}
	if err := t.draft.failure(); err != nil {
		return fmt.Errorf("look after held events: %w", err)
	}
	return t.commitHeld(ctx, false)
}
