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
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/services/ingest/rejections"
)

// commit writes the batch to the streams, and takes it into all projections but the index.
//
// The log comes first, then the held events, then the rejected ids; each is atomic, the three
// together are not. A crash in between loses nothing, because no candidate was acknowledged: all of
// them come back and are decided on what is there now. An event that the log has is a duplicate
// then, and its held entry, which the crash left behind, is dropped with that answer, or at the
// latest when the next writer begins (see heal). An event that was to be held is held now. The
// other way round, an entry deleted before its event is in the log, a crash would lose an event
// whose git data is there.
func (w *Writer) commit(ctx context.Context, b *batch, logged func()) error {
	start := time.Now()
	if err := w.commitEvents(ctx, b); err != nil {
		return err
	}
	logged()
	w.afterEvents()
	var err error
	if b.held, err = w.commitHeld(ctx, b.held, b.changes.Held); err != nil {
		return err
	}
	if len(b.logged)+len(b.changes.Held) == 0 {
		if b.held, err = w.confirm(ctx, b.held); err != nil {
			return err
		}
	}
	if err := w.commitRejections(ctx, b.changes.Rejected, b.changes.Taken); err != nil {
		return err
	}
	w.Metrics.commits(len(b.decided), time.Since(start))
	return nil
}

// commitEvents appends the accepted events and the removals, if the log's head is still the one
// that they were decided on.
func (w *Writer) commitEvents(ctx context.Context, b *batch) error {
	if len(b.logged) == 0 {
		return nil
	}
	start := time.Now()
	headers := logHeaders{at: start.UTC().Format(time.RFC3339Nano)}
	made, msgs := make([]nats.Msg, len(b.logged)), make([]*nats.Msg, len(b.logged))
	for i, n := range b.logged {
		x := &b.decided[n]
		c := x.candidate
		msgs[i] = &made[i]
		msgs[i].Subject, msgs[i].Header, msgs[i].Data = proto.EventSubjectOf(c.Event).String(), headers.of(c), c.Raw
		if x.decision.Removes { // an empty message takes the event's place
			msgs[i].Header, msgs[i].Data = headers.removed(c), nil
		}
	}
	last, err := w.Bus.PublishBatch(ctx, msgs, &b.head)
	if err != nil {
		return fmt.Errorf("events on head %d: %w", b.head, err)
	}
	b.took = time.Since(start)
	first := last - uint64(len(msgs)) + 1
	for i, n := range b.logged {
		b.decided[n].seq = first + uint64(i)
	}
	b.head = last
	return nil
}

// index takes the events of a batch that is in the log into the index.
func (w *Writer) index(b *batch) error {
	records := make([]eventdb.Record, len(b.logged))
	for i, n := range b.logged {
		x := &b.decided[n]
		if x.decision.Removes {
			records[i] = eventdb.Record{Seq: x.seq, Removed: x.candidate.Event.ID}
			continue
		}
		records[i] = eventdb.Record{Seq: x.seq, Event: x.candidate.Event, Raw: x.candidate.Raw}
	}
	if err := w.Index.Feed(records); err != nil {
		return fmt.Errorf("take %d committed events into the index: %w", len(records), err)
	}
	return nil
}

// logHeaders are the headers of accepted events. Those that come one after the other from the same
// relay share one.
type logHeaders struct {
	at   string // when the batch was accepted
	last *candidate.Candidate
	made nats.Header // for last
}

func (h *logHeaders) of(c *candidate.Candidate) nats.Header {
	if l := h.last; l != nil && l.Source == c.Source && l.Relay == c.Relay && l.Trace == c.Trace {
		return h.made
	}
	h.last, h.made = c, nats.Header{}
	h.made.Set(proto.HeaderSource, string(c.Source))
	h.made.Set(proto.HeaderAcceptedAt, h.at)
	if c.Relay != "" {
		h.made.Set(proto.HeaderRelay, c.Relay)
	}
	if c.Trace != "" {
		h.made.Set(proto.HeaderTraceParent, c.Trace)
	}
	return h.made
}

// removed are the headers of the message that takes the place of an event that leaves the log.
func (h *logHeaders) removed(c *candidate.Candidate) nats.Header {
	header := maps.Clone(h.of(c))
	header.Set(proto.HeaderRemoved, c.Event.ID)
	return header
}

// deletionKept is how long the bucket keeps the message that says that an entry is gone: long
// enough for every follower that was cut off and not started anew to hear of it. Without an end
// each event that was ever held would leave a message for good.
const deletionKept = 24 * time.Hour

// commitHeld changes the held events, if their head is still the one that the changes were decided
// on. More changes than one atomic batch can carry go in several, each on the head of the one
// before. It gives the head behind them.
func (w *Writer) commitHeld(ctx context.Context, head uint64, changes []held.Change) (uint64, error) {
	for part := range slices.Chunk(changes, bus.MaxBatch) {
		msgs := make([]*nats.Msg, len(part))
		for i, change := range part {
			m := &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, change.Key), Header: nats.Header{}}
			if change.Entry == nil {
				m.Header.Set(proto.KVOperation, proto.KVDelete)
				m.Header.Set(jetstream.MsgTTLHeader, deletionKept.String())
			} else {
				var err error
				if m.Data, err = change.Entry.Encode(); err != nil {
					return 0, err
				}
			}
			msgs[i] = m
		}
		last, err := w.Bus.PublishBatch(ctx, msgs, &head)
		if err != nil {
			return 0, fmt.Errorf("changes of held events on head %d: %w", head, err)
		}
		for i := range part {
			part[i].Seq = last - uint64(len(part)-1-i)
		}
		w.Held.Apply(part...)
		head = last
	}
	return head, nil
}

// confirm makes sure that this is still the writer's term, for a batch that changes neither the log
// nor the held events. It writes the mark of held events on the head that the batch was decided on:
// a new writer has moved that head before it decides anything.
func (w *Writer) confirm(ctx context.Context, head uint64) (uint64, error) {
	mark, err := w.mark(proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey))
	if err != nil {
		return 0, err
	}
	last, err := w.Bus.PublishBatch(ctx, []*nats.Msg{mark}, &head)
	if err != nil {
		return 0, fmt.Errorf("confirm the writer's term on head %d: %w", head, err)
	}
	w.Held.Apply(held.Change{Seq: last, Key: proto.HeldMarkKey})
	return last, nil
}

// mark is the message by which a writer moves a head.
func (w *Writer) mark(subject string) (*nats.Msg, error) {
	data, err := json.Marshal(proto.WriterMark{Writer: w.Name, At: time.Now().UTC()})
	if err != nil {
		return nil, fmt.Errorf("write the writer's mark: %w", err)
	}
	return &nats.Msg{Subject: subject, Data: data}, nil
}

// commitRejections remembers what was rejected, and takes back what may heal. No head is expected:
// a rejection that a stale writer remembers is no more than a fetch less.
func (w *Writer) commitRejections(ctx context.Context, added []proto.RejectedEvent, taken []rejections.Rejected) error {
	w.Metrics.invalidated.Add(float64(len(taken)))
	msgs := make([]*nats.Msg, 0, len(added)+len(taken))
	for _, r := range taken {
		msgs = append(msgs, &nats.Msg{Subject: proto.RejectedSubject{Kind: r.Kind, ShortID: proto.ShortID(r.ID)}.String()})
	}
	for _, r := range added {
		data, err := rejections.Encode(r)
		if err != nil {
			return err
		}
		msgs = append(msgs, &nats.Msg{Subject: proto.RejectedSubject{Kind: r.Kind, ShortID: proto.ShortID(r.ID)}.String(), Data: data})
	}
	for part := range slices.Chunk(msgs, bus.MaxBatch) {
		last, err := w.Bus.PublishBatch(ctx, part, nil)
		if err != nil {
			return fmt.Errorf("remember %d rejections: %w", len(part), err)
		}
		now := time.Now()
		for i, m := range part {
			message := bus.Message{Seq: last - uint64(len(part)-1-i), Subject: m.Subject, Data: m.Data, Time: now}
			if err := w.Rejected.Read(message); err != nil {
				w.Log.Error("a rejection cannot be read again", "error", err)
			}
		}
	}
	return nil
}

// heal deletes held events that a crash between two commits left behind: the log has them, or
// something newer in their place, or a deletion request for them. Announcements that are held with
// others' are decided again: what they waited for may have ended just before the crash.
func (w *Writer) heal(ctx context.Context) error {
	b := w.newBatch(ctx, time.Now())
	committed := false
	defer func() { w.endChain(committed) }()
	for _, e := range w.Held.All() {
		over, err := policy.Over(b.draft, e)
		if err != nil {
			return fmt.Errorf("look after held event %s: %w", e.Event.ID, err)
		}
		switch {
		case over:
			b.draft.Drop(e)
		case e.Phase == proto.PhaseVouched:
			w.healed = append(w.healed, candidate.OfHeld(e.Event, proto.ActionRelease))
		}
	}
	changes := b.draft.Cut().Held
	if len(changes) > 0 {
		w.Log.Info("held events whose time is over are dropped", "count", len(changes))
	}
	_, err := w.commitHeld(ctx, b.held, changes)
	committed = err == nil
	return err
}
