package writer

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

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
	// mostDeleted is how many events and addresses the deletion requests of a batch name at most, but
	// for the last one: an index takes them away in one go, and the next batch waits for that.
	mostDeleted = 512
	// undecidedAgain is when an event may be offered again that could not be decided.
	undecidedAgain = time.Minute
)

// batch is what one commit decides.
type batch struct {
	class   class
	packs   []*pack // that are decided to their end
	decided []decided
	logged  []int               // of decided, in order: what the log gets, events and removals
	again   []*policy.Candidate // the rechecks among them
	bytes   int
}

// decided is one candidate and what came of it.
type decided struct {
	work
	arrived  time.Time
	decision policy.Decision
	charges  []limit.Charge // who pays
	bytes    int64          // that each of them pays for
	stored   bool           // what they pay for is on disk
	seq      uint64         // in the log, once it is there
}

// gather waits until there is something to decide, and decides what is there, until the batch is
// full or no work of its class is left. nil: nothing has come for a while.
func (t *term) gather(ctx context.Context) (*batch, error) {
	c, x, more := t.scheduler.next(ctx)
	if !more {
		return nil, context.Cause(ctx)
	}
	t.draft.begin(ctx)
	b := &batch{class: c}
	for more {
		if err := t.decideWork(b, x); err != nil {
			return b, err
		}
		if len(b.decided) >= t.scheduler.most(c, t.batchSize) || b.bytes >= commitBytes || t.draft.hides ||
			len(t.draft.rejections) >= mostRejections || len(t.draft.deletes) >= mostDeleted {
			break
		}
		if x, more = t.scheduler.more(c); !more && len(b.packs) > 0 { // rechecks alone wait for nothing
			x, more = t.scheduler.fill(ctx, c)
		}
	}
	t.scheduler.committing(c)
	return b, context.Cause(ctx)
}

// decideWork decides an event of a pack, or a recheck.
func (t *term) decideWork(b *batch, x work) error {
	if x.ends() {
		b.packs = append(b.packs, x.pack)
	}
	switch {
	case x.candidate == nil:
		t.Log.Warn("malformed candidate", "lane", x.pack.lane, "error", x.pack.verdicts[x.n].Message)
		t.metrics.rejections.WithLabelValues(obs.KindLabel(-1), "malformed").Inc()
		return nil
	case x.pack == nil:
		x.candidate.Again = true
		b.again = append(b.again, x.candidate)
		return t.decide(b, decided{work: x})
	}
	return t.decide(b, decided{work: x, arrived: x.pack.arrived})
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
		t.draft.Accept(c.Event, d.Request)
		t.draft.hides = t.draft.hides || d.Ends() || t.draft.linksGone(c.Event)
		t.draft.raise(c.Event.PubKey, d.Floors)
		t.draft.Forget(c.Event.ID)
	case proto.HeldBack:
		t.draft.Forget(c.Event.ID)
	case proto.Rejected:
		t.reject(c, d)
	}
	if d.Removes {
		t.draft.Remove(c.Event)
	}
	if d.Renews {
		t.draft.renewed[c.Event.ID] = true
	}
	if d.Removes || d.Renews || d.Outcome == proto.Accepted {
		b.logged = append(b.logged, len(b.decided))
	}
	b.bytes += len(c.Raw)
	b.decided = append(b.decided, x)
	t.rechecks.add(b.class, d.Next...)
	if d.RetryAt == 0 { // what is refused for now is asked for by id again
		t.draft.settle(c.Event.ID)
	}
	t.tellArrival(b, x)
	return t.draft.failure()
}

// tellArrival has what the event of a candidate heals decided again. Where that is a crowd, the
// candidate is decided again, as bulk work, for the rest. Its pack comes again too: after a crash
// nothing else would tell that the event is here.
func (t *term) tellArrival(b *batch, x decided) {
	c, outcome := x.candidate, x.decision.Outcome
	if _, accepted := t.draft.AcceptedKind(c.Event.ID); accepted {
		outcome = proto.Accepted // a duplicate too: a crash may have kept what it heals from being told
	} else if x.pack == nil && t.draft.Held().ByID(c.Event.ID) != nil {
		outcome = proto.HeldBack
	}
	relays := sync.OnceValue(func() []string { return t.policy.RelaysOf(t.draft, c.Event) })
	arrived, more := t.draft.Arrived(policy.Arrivals(c, outcome), relays)
	t.rechecks.add(b.class, t.park.take(arrived, t.draft.rejectedKind)...)
	if !more {
		return
	}
	t.rechecks.add(bulk, c)
	if x.pack != nil {
		x.pack.comesAgain = true
	}
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
// A pack that is not acknowledged comes again, and its events are duplicates.
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
		if x.decision.Outcome == proto.PassedOn {
			t.passOn(x.candidate)
		}
		x.pack.verdicts[x.n] = proto.Verdict{
			ID: x.candidate.Event.ID, Kind: x.candidate.Event.Kind,
			Outcome: x.decision.Outcome, Message: sentence(x.decision.Message), Seq: x.seq,
			Retry: x.decision.MayChange(), RetryAt: x.decision.RetryAt,
		}
	}
	for _, p := range b.packs {
		t.done(p)
	}
}

// done acknowledges a pack, unless it must come again, and tells its sender.
func (w *Writer) done(p *pack) {
	if !p.comesAgain {
		if err := p.msg.Ack(); err != nil {
			w.Log.Debug("acknowledging candidates", "error", err)
		}
	}
	w.tell(p)
}

// passOn tells every gateway of an ephemeral event. Nothing keeps it for one that does not listen.
func (t *term) passOn(c *policy.Candidate) {
	m := &nats.Msg{Subject: proto.EphemeralSubject(c.Event), Data: c.Raw}
	if c.Trace != "" {
		m.Header = nats.Header{proto.HeaderTraceParent: {c.Trace}}
	}
	if err := t.Bus.Conn.PublishMsg(m); err != nil {
		t.Log.Warn("an ephemeral event cannot be passed on", "event", c.Event.ID, "error", err)
	}
}

// maxSentence is the longest sentence of a verdict, in bytes. A pack has few enough events for all
// of its verdicts to fit a message.
const maxSentence = 512

func sentence(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxSentence)], "") }

// tell sends the verdicts on a pack to its sender. Nothing is kept for one that has gone.
func (w *Writer) tell(p *pack) {
	if p.reply == "" {
		return
	}
	data, _ := json.Marshal(proto.Verdicts{Ref: p.ref, Verdicts: p.verdicts}) // texts and numbers
	if err := w.Bus.Conn.Publish(p.reply, data); err != nil {
		w.Log.Warn("verdicts cannot be sent", "count", len(p.verdicts), "error", err)
	}
}
