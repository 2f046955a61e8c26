package writer

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

const (
	// commitSize is how many events a batch has at most.
	commitSize = 500
	// commitBytes is the same in bytes.
	commitBytes = 4 << 20
	// undecidedAgain is when an event may be offered again that could not be decided.
	undecidedAgain = time.Minute
)

// batch is what one commit decides.
type batch struct {
	packs   []*pack
	decided []decided
	logged  []int // of decided, in order: what the log gets, events and removals
	healed  []*policy.Candidate
	bytes   int
}

// decided is one candidate and what came of it.
type decided struct {
	pack      *pack // nil: a parked or held event that was decided again
	n         int   // of the pack's events
	arrived   time.Time
	candidate *policy.Candidate
	decision  policy.Decision
	charges   []limit.Charge // who pays
	bytes     int64          // that each of them pays for
	seq       uint64         // in the log, once it is there
}

// gather waits until there is something to decide, and decides what is there, until the batch is
// full or nothing of its class waits any more. What a pack heals is decided behind it: how packs are
// cut into batches does not change the result. A backlog of it is of the older class.
func (t *term) gather(ctx context.Context) (*batch, error) {
	b := new(batch)
	var p *pack
	if backlog := len(t.healed) > commitSize; backlog || len(t.healed) == 0 {
		p = t.lanes.first(ctx, backlog)
	}
	t.draft.begin(ctx)
	for {
		if p != nil {
			if err := t.decidePack(b, p); err != nil {
				return b, err
			}
		}
		for len(t.healed) > 0 && (t.lanes.older || len(t.healed) <= commitSize) && !t.full(b) {
			c := t.healed[0]
			t.healed = t.healed[1:]
			c.Again = true
			b.healed = append(b.healed, c)
			if err := t.decide(b, decided{candidate: c}); err != nil {
				return b, err
			}
		}
		if ctx.Err() != nil {
			return b, context.Cause(ctx)
		}
		if t.full(b) {
			return b, nil
		}
		if p = t.lanes.next(); p == nil {
			return b, nil
		}
	}
}

// full reports whether a batch has enough. While urgent events come, one of older events is short.
func (t *term) full(b *batch) bool {
	most := t.Settings.BatchSize
	if t.lanes.older && time.Since(t.lanes.urgentAt) < urgentFor {
		most = max(1, most/olderShare)
	}
	return len(b.decided) >= most || b.bytes >= commitBytes
}

// decidePack decides the events of a pack until the batch is full. The rest of the pack comes first
// in the next batch of its class; a pack is answered with its last event.
func (t *term) decidePack(b *batch, p *pack) error {
	t.lanes.rest[t.lanes.older] = p
	for ; p.next < len(p.events); p.next++ {
		if t.full(b) {
			return nil
		}
		n, c := p.next, p.events[p.next]
		if c == nil {
			t.Log.Warn("malformed candidate", "lane", p.lane, "error", p.verdicts[n].Message)
			t.metrics.rejections.WithLabelValues(obs.KindLabel(-1), "malformed").Inc()
			continue
		}
		if err := t.decide(b, decided{pack: p, n: n, arrived: p.arrived, candidate: c}); err != nil {
			return err
		}
	}
	delete(t.lanes.rest, t.lanes.older)
	b.packs = append(b.packs, p)
	return nil
}

// decide decides one candidate and takes the decision into the draft, for those that come after it.
// An event that cannot be decided is refused for now. After an error the draft is of no more use.
func (t *term) decide(b *batch, x decided) error {
	c := x.candidate
	d := t.afford(&x, t.policy.Decide(t.draft, c))
	if err := t.draft.failure(); err != nil {
		if cause := context.Cause(t.draft.ctx); cause != nil {
			return cause
		}
		t.Log.Error("an event cannot be decided", "event", c.Event.ID, "kind", c.Event.Kind, "error", err)
		x.charges = nil
		d = policy.Decision{Outcome: proto.Rejected, Reason: "undecidable", RetryAt: t.draft.now.Add(undecidedAgain).Unix(),
			Message: "error: the event could not be decided; try again later"}
	}
	t.Usage.Add(x.bytes, x.charges...)
	x.decision = d
	for _, dropped := range d.Drop {
		e := dropped.Entry
		t.draft.Drop(e)
		if e.Event.ID == c.Event.ID && (x.arrived.IsZero() || e.HeldAt.Before(x.arrived)) {
			// It waited in purgatory before the candidate that releases it came.
			x.arrived, c.Trace = e.HeldAt, cmp.Or(e.Trace, c.Trace)
		}
		switch dropped.Remember {
		case "":
		case policy.Evicted:
			t.metrics.evicted.WithLabelValues(obs.KindLabel(e.Event.Kind)).Inc()
		default:
			t.draft.Reject(e.Event, e.Relay, dropped.Remember, nil)
		}
	}
	for _, entry := range d.Hold {
		t.draft.Hold(entry)
	}
	switch d.Outcome {
	case proto.Accepted:
		t.draft.Accept(c.Event)
		t.draft.Forget(c.Event.ID)
	case proto.HeldBack:
		t.draft.Forget(c.Event.ID)
	case proto.Rejected:
		t.reject(c, d)
	}
	if d.Removes {
		t.draft.Remove(c.Event)
	}
	if d.Removes || d.Outcome == proto.Accepted {
		b.logged = append(b.logged, len(b.decided))
	}
	b.bytes += len(c.Raw)
	b.decided = append(b.decided, x)
	t.healed = append(t.healed, d.Next...)
	outcome := d.Outcome
	if _, accepted := t.draft.AcceptedKind(c.Event.ID); accepted {
		outcome = proto.Accepted // a duplicate too: a crash may have kept what it heals from being told
	}
	t.healed = append(t.healed, t.park.take(t.draft.Arrived(policy.Arrivals(c.Event, outcome)))...)
	return t.draft.failure()
}

// reject remembers and parks what was rejected. What a user submitted, and what no arrival can
// heal, is not remembered: nothing fetches it. Of an import nothing is kept.
func (t *term) reject(c *policy.Candidate, d policy.Decision) {
	level := slog.LevelDebug
	if c.Lane == proto.LaneUser {
		level = slog.LevelInfo
	}
	t.Log.Log(t.draft.ctx, level, "event rejected", "event", c.Event.ID, "kind", c.Event.Kind, "author", c.Event.PubKey,
		"lane", c.Lane, "client", c.Client, "relay", c.Relay, "reason", d.Message)
	t.refused(c.Event, proto.Refusal{At: t.draft.now, Client: c.Client, Relay: c.Relay, Reason: sentence(d.Message)})
	if t.remembers(c, d) {
		t.draft.Reject(c.Event, c.Relay, d.Message, d.Missing)
	}
	if d.Park && c.Source != proto.SourceImport {
		t.park.add(c, t.draft.now)
	}
}

// remembers reports whether the id of what is rejected is kept.
func (t *term) remembers(c *policy.Candidate, d policy.Decision) bool {
	return d.Remember && c.Source != proto.SourceImport && (c.Lane != proto.LaneUser || d.Park)
}

// answer acknowledges the packs of a committed batch, and tells their senders how the events ended.
// If an acknowledgement is lost the pack comes again, and its events are duplicates.
func (t *term) answer(b *batch) {
	now := time.Now()
	for i := range b.decided {
		x := &b.decided[i]
		t.metrics.decided(x, now)
		if parent := x.candidate.Trace; parent != "" {
			t.Trace.Span(parent, "ingest", x.candidate.Event, x.arrived, "outcome", string(x.decision.Outcome))
		}
		if x.pack == nil {
			continue
		}
		x.pack.verdicts[x.n] = proto.Verdict{
			ID: x.candidate.Event.ID, Kind: x.candidate.Event.Kind,
			Outcome: x.decision.Outcome, Message: sentence(x.decision.Message), Seq: x.seq,
			Retry: x.decision.MayChange(), RetryAt: x.decision.RetryAt,
		}
	}
	for _, p := range b.packs {
		if err := p.msg.Ack(); err != nil {
			t.Log.Debug("acknowledging candidates", "error", err)
		}
		t.tell(p)
	}
}

// maxSentence is the longest sentence of a verdict, in bytes. A pack has few enough events for all
// of its verdicts to fit a message.
const maxSentence = 512

func sentence(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxSentence)], "") }

// tell sends the verdicts on a pack to its sender. Nothing is kept for one that has gone.
func (t *term) tell(p *pack) {
	if p.reply == "" {
		return
	}
	data, _ := json.Marshal(proto.Verdicts{Ref: p.ref, Verdicts: p.verdicts}) // texts and numbers
	if err := t.Bus.Conn.Publish(p.reply, data); err != nil {
		t.Log.Warn("verdicts cannot be sent", "count", len(p.verdicts), "error", err)
	}
}
