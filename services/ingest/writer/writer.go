// Package writer is the one writer of the log: it takes candidates, decides them in order, commits
// what was decided in atomic batches that name the heads they were decided on, and tells the
// senders (docs/architecture.md).
package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/held"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
	"tendril.dev/services/ingest/policy"
)

// Policy decides candidates; *policy.Policy does.
type Policy interface {
	Decide(policy.Knowledge, *policy.Candidate) policy.Decision
	// OfServed reports whether an event is one of an owner or maintainer of a served repository,
	// for that repository.
	OfServed(policy.Knowledge, *nostr.Event) bool
}

// Writer is one replica of the writer: it writes while it holds the claim on the log, and stands by
// otherwise. Index, Held and Rejected are followed from their streams by others; the writer applies
// its own commits to them at once.
type Writer struct {
	*node.Node
	Held     *held.Set
	Rejected *known.Rejected
	Usage    *limit.Usage
	Marks    *limit.Marks

	park      *park
	policy    Policy
	metrics   *metrics
	bootstrap []nostr.RelayURL
	refused   func(*nostr.Event, proto.Refusal) // hears of every event that is rejected
	trouble   atomic.Pointer[trouble]
	healed    []*policy.Candidate // parked and held events that are decided again, before anything else

	beforeCommit func() // for tests: a pause here is a writer that stands still between decision and commit
	afterEvents  func() // for tests: between the commits of the log and of the held events
}

// New makes a writer, by the settings. refused hears of every event that is rejected.
func New(ctx context.Context, n *node.Node, refused func(*nostr.Event, proto.Refusal)) (w *Writer, err error) {
	s := n.Settings
	w = &Writer{
		Node: n, Held: held.NewSet(n.Bus.JS, n.Log, nil), refused: refused,
		Rejected: known.NewRejected(n.Bus.JS, n.Log, time.Duration(s.RejectedColdSeconds)*time.Second, policy.Rules(s)),
		park:     newPark(time.Duration(s.RejectedHotSeconds) * time.Second),

		beforeCommit: func() {}, afterEvents: func() {},
	}
	bounds := policy.DefaultBounds
	bounds.Bytes = s.HeldBytes
	if w.policy, err = policy.New(s, n.Bans, bounds, time.Now); err != nil {
		return nil, err
	}
	if w.metrics, err = newMetrics(n.Metrics); err != nil {
		return nil, err
	}
	if w.bootstrap, err = s.Bootstrap(); err != nil {
		return nil, err
	}
	if w.Usage, err = limit.OpenUsage(ctx, n.Bus, n.Log, time.Now); err != nil {
		return nil, err
	}
	looks := []limit.Look{limit.Log(n.Bus, s.LogMaxBytes)}
	if s.DatabaseBackend != "memory" {
		looks = append(looks, limit.Disk(s.RelayDataPath))
	}
	w.Marks = limit.NewMarks("log", n.Log, n.Metrics, looks...)
	return w, nil
}

// Run stands by for the claim on the log, and writes while it is ours, until ctx ends. The claim
// says who works, never what is true: two replicas may believe for a moment that it is theirs. The
// heads of two streams decide between them (see [term.begin]).
func (w *Writer) Run(ctx context.Context) error {
	member, err := claim.Join(ctx, w.Bus, claim.Options{Group: proto.GroupWriter, Worker: w.Worker, Log: w.Log})
	if err != nil {
		return err
	}
	w.Ready.Add("claims", member.Alive)
	// A replica that has still to read the log does not take the claim from one that writes.
	head, err := bus.LastSeq(ctx, w.Bus.JS, proto.StreamEvents)
	if err != nil {
		return err
	}
	for ctx.Err() == nil && w.Index.WaitFor(ctx, head) != nil {
	}
	wanted := make(chan []string, 1)
	wanted <- []string{proto.KeyLog}
	defer member.Leave()
	return member.Work(ctx, wanted, func(ctx context.Context, _ string) error { return w.write(ctx) })
}

// term is one time of being the writer. It ends when ctx ends or when a commit fails: then nothing
// is certain but what the streams say, and the next term begins by reading them.
type term struct {
	*Writer
	lanes          *lanes
	draft          *draft
	head, heldHead uint64    // of the log and of the held events' stream, behind the last commit
	purgedAt       time.Time // when banned events whose time is over were last looked for
}

// sweepEvery is how often a writer looks after what it keeps in memory while nothing comes.
const sweepEvery = 5 * time.Second

// write is one term as the writer.
func (w *Writer) write(ctx context.Context) error {
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	t := &term{Writer: w}
	defer t.end()
	err := t.begin(ctx)
	if err == nil {
		t.lanes, err = openLanes(ctx, w.Bus, w.metrics, broken)
	}
	if err == nil {
		w.metrics.writer.Set(1)
		w.Log.Info("writing the log", "head", t.head, "held", w.Held.Len())
		err = t.run(ctx)
	}
	if bus.IsConflict(err) {
		w.metrics.fenced.Inc()
	}
	if errors.Is(err, context.Canceled) {
		return nil // the claim is given up
	}
	if err != nil {
		now := &trouble{err: err, at: time.Now(), times: 1}
		if before := w.trouble.Load(); before != nil {
			now.times += before.times
		}
		w.trouble.Store(now)
	}
	return err
}

// begin makes this replica the only one that can commit, and brings its projections to the heads.
// The marks move both heads: a commit that was decided on an earlier one, by a writer that was
// paused or cut off, is refused from now on. What expired in purgatory must not come in again
// because the rejections have not been read yet that say so.
func (t *term) begin(ctx context.Context) error {
	for subject, head := range map[string]*uint64{
		proto.SubjectEventsMark: &t.head, proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey): &t.heldHead,
	} {
		last, err := t.Bus.PublishBatch(ctx, t.mark(subject), nil)
		if err != nil {
			return fmt.Errorf("mark %s: %w", subject, err)
		}
		*head = last
	}
	if err := errors.Join(t.Index.WaitFor(ctx, t.head), t.Held.Wait(ctx, t.heldHead), t.Rejected.CatchUp(ctx)); err != nil {
		return fmt.Errorf("catch up: %w", err)
	}
	if err := t.Usage.Load(ctx); err != nil {
		return err
	}
	t.draft = newDraft(t.Writer)
	return t.heal(ctx)
}

func (t *term) end() {
	if t.lanes != nil {
		t.lanes.close()
		t.metrics.writer.Set(0)
		t.Log.Info("standing by")
	}
	if t.draft != nil {
		_ = t.draft.view.Close()
	}
}

// run decides and commits batch after batch.
func (t *term) run(ctx context.Context) error {
	for {
		t.park.expire(time.Now())
		if err := t.purge(time.Now()); err != nil {
			return err
		}
		t.metrics.hot.Set(float64(len(t.park.byID)))
		t.metrics.cold.Set(float64(t.Rejected.Len()))
		b, err := t.gather(ctx)
		if err == nil && len(b.packs)+len(b.decided) == 0 {
			continue
		}
		if err == nil {
			err = t.commit(ctx, b)
		}
		if err != nil {
			for _, p := range b.packs {
				p.giveBack()
			}
			for _, x := range b.decided {
				if x.seq == 0 { // it is not in the log
					t.Usage.Add(-x.bytes, x.charges...)
				}
			}
			// What was parked is decided in the next term. The next writer looks itself for what is
			// released or purged: by then a ban may have ended.
			t.healed = slices.DeleteFunc(append(b.healed, t.healed...), func(c *policy.Candidate) bool { return c.Lane == proto.LaneRelease })
			return err
		}
		t.trouble.Store(nil)
		t.answer(b)
	}
}

// Failures that follow each other this often and this closely are one that does not go away.
const (
	manyFailures = 3
	longQuiet    = 30 * time.Second
)

// trouble is what ends terms, so many in a row without a commit.
type trouble struct {
	err   error
	at    time.Time
	times int
}

// Troubled returns what keeps the writer from its work again and again; nil: nothing, or it is not
// the writer.
func (w *Writer) Troubled() error {
	if t := w.trouble.Load(); t != nil && t.times >= manyFailures && time.Since(t.at) < longQuiet {
		return fmt.Errorf("failed %d times in a row: %w", t.times, t.err)
	}
	return nil
}
