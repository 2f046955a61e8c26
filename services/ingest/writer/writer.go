// Package writer is the one writer of the log: it takes candidates, decides them in order, commits
// what was decided in atomic batches that name the heads they were decided on, and tells the
// senders (docs/architecture.md).
package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
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

// Options is what a writer works with. Index, Held and Rejected are followed from their streams by
// others; the writer applies its own commits to them at once.
type Options struct {
	Name string // of this process, in its claim and in the marks that it leaves

	Bus      *bus.Bus
	Index    *eventdb.DB
	Held     *held.Set
	Rejected *known.Rejected
	Park     *Park
	Policy   Policy
	Metrics  *Metrics
	Log      *slog.Logger
	Budgets  Budgets
	// Refused hears of every event that is rejected; nil: nothing does.
	Refused func(*nostr.Event, proto.Refusal)
	Bans    *bans.Set

	Domain      string        // ours
	Grace       time.Duration // how long what is banned is kept that an operator wants removed
	BatchSize   int           // about how many candidates are decided in one commit
	KeepDeleted bool          // deletion requests do not touch what is accepted
}

// Writer is one replica of the writer: it writes while it holds the claim on the log, and stands by
// otherwise.
type Writer struct {
	Options
	trouble  atomic.Pointer[trouble]
	failures int                 // of terms, since something was last committed
	healed   []*policy.Candidate // parked and held events that are decided again, before anything else

	beforeCommit func() // for tests: a pause here is a writer that stands still between decision and commit
	afterEvents  func() // for tests: between the commits of the log and of the held events
}

// New makes a writer.
func New(o Options) *Writer {
	return &Writer{Options: o, beforeCommit: func() {}, afterEvents: func() {}}
}

// Run stands by for the claim on the log, and writes while it is ours, until ctx ends. The claim
// says who works, never what is true: two replicas may believe for a moment that it is theirs. The
// heads of two streams decide between them (see [Writer.begin]).
func (w *Writer) Run(ctx context.Context) error {
	member, err := claim.Join(ctx, w.Bus, claim.Options{Group: proto.GroupWriter, Worker: w.Name, Log: w.Log})
	if err != nil {
		return err
	}
	wanted := make(chan []string, 1)
	wanted <- []string{proto.KeyLog}
	member.Work(ctx, wanted, func(ctx context.Context, _ string) error { return w.write(ctx) })
	member.Leave()
	return nil
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
func (w *Writer) write(ctx context.Context) (err error) {
	defer func() {
		if errors.Is(err, bus.ErrHeadMoved) {
			w.Metrics.fenced.Inc()
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			if w.failures++; w.failures >= manyFailures {
				w.trouble.Store(&trouble{fmt.Errorf("failed %d times in a row: %w", w.failures, err), time.Now()})
			}
		}
	}()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	t, err := w.begin(ctx, end)
	if err != nil {
		return err
	}
	w.Metrics.writer.Set(1)
	w.Log.Info("writing the log", "head", t.head, "held", w.Held.Len())
	defer func() {
		t.lanes.close()
		_ = t.draft.view.Close()
		w.Metrics.writer.Set(0)
		w.Log.Info("standing by")
	}()
	return t.run(ctx)
}

// begin makes this replica the only one that can commit, and brings its projections to the heads.
// The marks move both heads: a commit that was decided on an earlier one, by a writer that was
// paused or cut off, is refused from now on.
func (w *Writer) begin(ctx context.Context, broken context.CancelCauseFunc) (*term, error) {
	t := &term{Writer: w}
	for subject, head := range map[string]*uint64{
		proto.SubjectEventsMark: &t.head, proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey): &t.heldHead,
	} {
		last, err := w.Bus.PublishBatch(ctx, w.mark(subject), nil)
		if err != nil {
			return nil, fmt.Errorf("mark %s: %w", subject, err)
		}
		*head = last
	}
	if err := errors.Join(w.Index.WaitFor(ctx, t.head), w.Held.Wait(ctx, t.heldHead)); err != nil {
		return nil, fmt.Errorf("catch up: %w", err)
	}
	if w.Budgets.Usage != nil {
		if err := w.Budgets.Usage.Load(ctx); err != nil {
			return nil, err
		}
	}
	t.draft = newDraft(&w.Options)
	err := t.heal(ctx)
	if err == nil {
		t.lanes, err = openLanes(ctx, w.Bus, w.Metrics, broken)
	}
	if err != nil {
		_ = t.draft.view.Close()
		return nil, err
	}
	return t, nil
}

// run decides and commits batch after batch.
func (t *term) run(ctx context.Context) error {
	for {
		t.Park.Expire(time.Now())
		if err := t.purge(ctx, time.Now()); err != nil && ctx.Err() == nil {
			return err
		}
		t.Metrics.hot.Set(float64(len(t.Park.byID)))
		t.Metrics.cold.Set(float64(t.Rejected.Len()))
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
			t.healed = append(b.healed, t.healed...) // they are decided in the next term
			if errors.Is(err, context.Canceled) {
				return nil // the claim is given up
			}
			return err
		}
		t.failures = 0
		t.trouble.Store(nil)
		t.answer(b)
	}
}

// Failures that follow each other this often and this closely are one that does not go away.
const (
	manyFailures = 3
	longQuiet    = 30 * time.Second
)

// trouble is what ends terms again and again.
type trouble struct {
	err error
	at  time.Time
}

// Troubled returns what keeps the writer from its work again and again; nil: nothing, or it is not
// the writer.
func (w *Writer) Troubled() error {
	if t := w.trouble.Load(); t != nil && time.Since(t.at) < longQuiet {
		return t.err
	}
	return nil
}
