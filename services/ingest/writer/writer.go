// Package writer is the one writer of the log: it takes candidates, decides them in order, commits
// what was decided in atomic batches that name the head they were decided on, and tells the senders
// (docs/architecture.md).
package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/draft"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/services/ingest/rejections"
)

// Policy decides candidates; *policy.Policy does. An error is one of reading.
type Policy interface {
	Decide(policy.Knowledge, *candidate.Candidate) (policy.Decision, error)
	// OfServed reports whether an event is one of an owner or maintainer of a served repository,
	// for that repository.
	OfServed(policy.Knowledge, *nostr.Event) (bool, error)
}

// Options is what a writer works with. Index, Held and Rejected are followed from their streams by
// others; the writer applies its own commits to them at once.
type Options struct {
	Name     string // in the marks that it leaves
	Bus      *bus.Bus
	Index    *eventdb.DB
	Held     *held.Set
	Rejected *rejections.Index
	Park     *rejections.Park
	Policy   Policy
	Metrics  *Metrics
	Log      *slog.Logger
	Budgets  Budgets

	Domain      string // ours
	BatchSize   int    // most candidates decided in one commit
	KeepDeleted bool   // deletion requests do not touch what is accepted
}

// Writer is one replica of the writer: it writes while it has the turn, and stands by otherwise.
type Writer struct {
	Options
	writing atomic.Bool
	trouble trouble

	// Only the term that runs touches these.
	lanes       *lanes
	fetched     []item                 // taken from the lanes, not decided yet
	healed      []*candidate.Candidate // parked and held events that are decided again, before anything else
	announced   *draft.Announced
	chain       *chain             // nil: the next batch begins on the projections
	flying      *flight            // being committed; nil: nothing is
	heldRoom    *policy.Room       // counts the held events as of the last decision; nil: unknown
	careful     int                // so many candidates are decided one by one, because one of a batch does not fit
	failing     map[string]failing // candidates that could not be decided, by event
	decidedEver uint64
	costs       costs     // of commits
	urgentAt    time.Time // when a user's or live candidate was last taken into a batch
	since       int       // how many of those since a batch last had older events
	mostLone    int       // mostLone; tests of batches change it

	turn         *turn
	beforeCommit func() // for tests: a pause here is a writer that stands still between decision and commit
	afterEvents  func() // for tests: between the commits of the log and of the held events
}

// New makes a writer.
func New(ctx context.Context, o Options) (*Writer, error) {
	if o.BatchSize < 1 || o.BatchSize > bus.MaxBatch {
		return nil, fmt.Errorf("NGIT_COMMIT_BATCH is %d: want 1 to %d", o.BatchSize, bus.MaxBatch)
	}
	t, err := openTurn(ctx, o.Bus, o.Log)
	if err != nil {
		return nil, err
	}
	return &Writer{Options: o, turn: t, announced: draft.NewAnnounced(), failing: map[string]failing{}, costs: firstCosts(), mostLone: mostLone, beforeCommit: func() {}, afterEvents: func() {}}, nil
}

// Run stands in line for the writer's turn and writes while it has it, until ctx ends. A commit
// that has begun is finished.
func (w *Writer) Run(ctx context.Context) error {
	w.turn.run(ctx, w.serve)
	return nil
}

// Writing reports whether this replica is the writer now, as far as it knows.
func (w *Writer) Writing() bool { return w.writing.Load() }

// maxIdle is how often a writer without candidates looks after what it keeps in memory.
const maxIdle = 5 * time.Second

// serve is one term as the writer. It returns when ctx ends, or when a commit failed: then nothing
// is certain but what the streams say, and the next term begins by reading them.
func (w *Writer) serve(ctx context.Context) {
	if err := w.begin(ctx); err != nil {
		if ctx.Err() == nil {
			w.trouble.note(err)
			w.Log.Error("the writer cannot begin", "error", err)
		}
		return
	}
	w.writing.Store(true)
	w.Metrics.writer.Set(1)
	w.Log.Info("writing the log", "head", w.Index.Seq(), "held", w.Held.Len())
	defer func() {
		w.stepDown(ctx, w.land())
		giveBack(append(packsOf(w.fetched), w.lanes.close()...)...)
		w.fetched = nil
		w.writing.Store(false)
		w.Metrics.writer.Set(0)
		w.Log.Info("standing by")
	}()
	for ctx.Err() == nil {
		if err := w.step(ctx); err != nil {
			w.stepDown(ctx, err)
			return
		}
	}
}

// step decides one batch and begins to commit it, when the one before it is committed.
func (w *Writer) step(ctx context.Context) error {
	if w.careful > 0 || w.chain != nil && w.chain.long() {
		if err := w.land(); err != nil {
			return err
		}
	}
	if w.flying == nil && len(w.fetched) == 0 && len(w.healed) == 0 {
		if more, err := w.idle(ctx); !more {
			return err
		}
	}
	b := w.newBatch(ctx, time.Now())
	if err := w.gather(ctx, b); err != nil {
		return w.brokenOff(ctx, b, err)
	}
	if len(b.decided) > 0 {
		return w.follow(ctx, b)
	}
	if w.flying == nil {
		w.endChain(true)
	}
	return w.land()
}

// idle waits for candidates. If none come it looks after what is kept in memory.
func (w *Writer) idle(ctx context.Context) (more bool, err error) {
	timer := time.NewTimer(maxIdle)
	defer timer.Stop()
	w.fetched, err = w.lanes.next(ctx, w.room(time.Now()), timer.C, nil)
	if err != nil || len(w.fetched) > 0 {
		return err == nil, err
	}
	now := time.Now()
	w.Rejected.Expire(now)
	w.Park.Expire(now)
	w.Metrics.observeMemory(w.Park.Len(), w.Rejected.Len())
	return false, nil
}

// brokenOff deals with a batch whose decisions broke off. What could not be decided while another
// batch was committed is tried again, with all others of its batch, when that is done.
func (w *Writer) brokenOff(ctx context.Context, b *batch, err error) error {
	var u *undecidedError
	undecided := errors.As(err, &u)
	if undecided && w.flying == nil {
		w.endChain(false)
		return w.undecided(ctx, b, u)
	}
	if undecided {
		w.takeBack(b, u.decided)
		err = nil
	} else {
		w.takeBack(b)
	}
	if landed := w.land(); landed != nil {
		return landed
	}
	return err
}

// begin makes this replica the only one that can commit, and brings its projections to the heads.
// The marks move both heads: a commit that was decided on an earlier one, by a writer that was
// paused or cut off, is refused from now on, whatever that writer believes.
func (w *Writer) begin(ctx context.Context) error {
	var heads [2]uint64
	for i, subject := range []string{proto.SubjectEventsMark, proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey)} {
		mark, err := w.mark(subject)
		if err != nil {
			return err
		}
		ack, err := w.Bus.JS.PublishMsg(ctx, mark)
		if err != nil {
			return fmt.Errorf("mark %s: %w", subject, err)
		}
		heads[i] = ack.Sequence
	}
	events, entries := heads[0], heads[1]
	if err := w.Index.WaitFor(ctx, events); err != nil {
		return fmt.Errorf("catch up with the log: %w", err)
	}
	if err := w.Held.WaitFor(ctx, entries); err != nil {
		return fmt.Errorf("catch up with the held events: %w", err)
	}
	var err error
	if w.lanes, err = openLanes(ctx, w.Bus.JS, w.BatchSize, w.Log, w.Metrics.pending); err != nil {
		return err
	}
	w.heldRoom = nil
	if w.Budgets.Usage != nil {
		if err := w.Budgets.Usage.Load(ctx); err != nil {
			return err
		}
	}
	w.announced.Forget() // another writer may have changed the log
	if err := w.heal(ctx); err != nil {
		giveBack(w.lanes.close()...)
		return err
	}
	return nil
}

// stepDown says why a term ends before its time, if it does.
func (w *Writer) stepDown(ctx context.Context, err error) {
	if errors.Is(err, bus.ErrHeadMoved) {
		w.Metrics.fenced.Inc()
		w.Log.Warn("another writer has moved the head: the batch was refused and is decided again", "error", err)
		return
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	w.trouble.note(err)
	w.Log.Error("the writer begins again", "error", err)
}
