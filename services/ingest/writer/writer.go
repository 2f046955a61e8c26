// Package writer is the one writer of the log: it takes candidates, decides them in order, commits
// what was decided in atomic batches that name the heads they were decided on, and tells the
// senders (docs/architecture.md). What is accepted it does not know: it asks package policy.
package writer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/config"
	"tendril.dev/lib/held"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/testonly"
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
	// RelaysOf are the relays where what an accepted or held event heals may be found.
	RelaysOf(policy.Knowledge, *nostr.Event) []string
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

	park       *park
	policy     Policy
	metrics    *metrics
	bootstrap  []nostr.RelayURL
	refused    func(*nostr.Event, proto.Refusal) // hears of every event that is rejected
	trouble    atomic.Pointer[trouble]
	unstored   atomic.Pointer[string] // why nothing can be stored
	rechecks   rechecks
	batchSize  int           // commitSize, but in tests
	takenEvery time.Duration // as the constant, but in tests

	beforeCommit func() // for tests: a pause here is a writer that stands still between decision and commit
	afterEvents  func() // for tests: between the commits of the log and of the held events
	afterHeld    func() // for tests: between the commits of the held events and of the rejections
	betweenMarks func() // for tests: a writer begins, and has marked the log alone
	beforeSearch func() // for tests: it is about to be looked for what must leave the log
}

// New makes a writer, by the settings. refused hears of every event that is rejected.
func New(ctx context.Context, n *node.Node, refused func(*nostr.Event, proto.Refusal)) (w *Writer, err error) {
	s := n.Settings
	w = &Writer{
		Node: n, Held: held.NewSet(n.Bus.JS, n.Log, nil), refused: refused,
		Rejected:  known.NewRejected(n.Bus.JS, n.Log, time.Duration(s.RejectedColdSeconds)*time.Second, s.RulesHash()),
		batchSize: testonly.Int("COMMIT_BATCH", commitSize), takenEvery: takenEvery,

		beforeCommit: func() {}, afterEvents: func() {}, afterHeld: func() {}, betweenMarks: func() {},
		beforeSearch: func() {},
	}
	bounds := policy.DefaultBounds
	bounds.Bytes = testonly.Int("PURGATORY_MAX_BYTES", bounds.Bytes)
	rules, err := policy.New(s, n.Bans, bounds, time.Now)
	if err != nil {
		return nil, err
	}
	rules.Own = ownKey(s)
	w.policy = rules
	if w.metrics, err = newMetrics(n.Metrics); err != nil {
		return nil, err
	}
	w.park = newPark(time.Duration(s.RejectedHotSeconds)*time.Second, w.metrics.parked)
	w.Rejected.Measure(n.Metrics)
	if w.bootstrap, err = s.Bootstrap(); err != nil {
		return nil, err
	}
	if w.Usage, err = limit.OpenUsage(ctx, n.Bus, n.Log, time.Now); err != nil {
		return nil, err
	}
	looks := []limit.Look{limit.Writable(n.Bus), limit.Log(n.Bus, s.LogMaxBytes)}
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
	return member.Work(ctx, wanted, func(ctx context.Context, _ claim.Held) error { return w.write(ctx) })
}

// term is one time of being the writer. It ends when ctx ends or when a commit fails: then nothing
// is certain but what the streams say, and the next term begins by reading them.
type term struct {
	*Writer
	scheduler      *scheduler
	draft          *draft
	head, heldHead uint64 // of the log and of the held events' stream, behind the last commit

	// Of what has no place in the log any more; see [term.clean].
	purgedAt  time.Time  // when it was last looked for
	takenAt   time.Time  // when it was last looked for what was taken away, and lies in the log
	looking   bool       // it is being looked for
	found     chan found // of capacity 1: what was found
	searching sync.WaitGroup
}

// sweepEvery is how often a writer looks after what it keeps in memory while nothing comes.
const sweepEvery = 5 * time.Second

// write writes until ctx ends or a term fails. While nothing can be stored users are told so, and a
// new term is tried now and then.
func (w *Writer) write(ctx context.Context) error {
	for {
		err := w.writeTerm(ctx)
		if bus.IsFull(err) {
			err = w.refuseUsers(ctx, err)
			if err == nil && ctx.Err() == nil {
				continue
			}
		}
		if errors.Is(err, context.Canceled) {
			return nil // the claim is given up
		}
		return err
	}
}

// keyLook is how often the service's key is looked for that is not there yet.
const keyLook = 5 * time.Second

// ownKey finds the service's public key. The front door makes the key at its first start, which may
// come after ours.
func ownKey(s config.Settings) func() string {
	var public string
	var next time.Time
	return func() string {
		if now := time.Now(); public == "" && now.After(next) {
			next = now.Add(keyLook)
			if key, err := s.FindKey("."); err == nil {
				public = key.Public
			}
		}
		return public
	}
}

// writeTerm is one term as the writer.
func (w *Writer) writeTerm(ctx context.Context) error {
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	t := &term{Writer: w, found: make(chan found, 1)}
	defer t.end()
	err := t.begin(ctx)
	if err == nil {
		var l *lanes
		if l, err = openLanes(ctx, w.Bus, w.metrics, broken); err == nil {
			t.scheduler = newScheduler(l, &w.rechecks)
		}
	}
	if err == nil {
		w.metrics.writer.Set(1)
		w.Log.Info("writing the log", "head", t.head, "held", w.Held.Len())
		var others sync.WaitGroup
		others.Go(func() { w.askForHealed(ctx) })
		err = t.run(ctx)
		broken(err)
		others.Wait()
	}
	if bus.IsConflict(err) || errors.Is(err, errOvertaken) {
		w.metrics.fenced.Inc()
	}
	if err != nil && !errors.Is(err, context.Canceled) && !bus.IsFull(err) {
		now := &trouble{err: err, at: time.Now(), times: 1}
		if before := w.trouble.Load(); before != nil {
			now.times += before.times
		}
		w.trouble.Store(now)
	}
	return err
}

// begin makes this replica the only one that can commit, and brings its projections to the heads.
//
//  1. It marks the log. A commit that was decided on an earlier head, by a writer that was paused or
//     cut off, is refused from now on.
//  2. It marks the held events, for the same reason, unless another writer has marked the log since.
//     Without that look, of two writers that begin at once each could win one head, and both fail.
//  3. It reads both streams up to its marks, and all rejections: what expired in purgatory must not
//     come in again because the rejections have not been read yet that say so.
func (t *term) begin(ctx context.Context) (err error) {
	if t.head, err = t.moveHead(ctx); err != nil {
		return fmt.Errorf("mark the log: %w", err)
	}
	t.betweenMarks()
	if err := t.markHeld(ctx); err != nil {
		return fmt.Errorf("mark the held events: %w", err)
	}
	if err := errors.Join(t.Index.WaitFor(ctx, t.head), t.Held.Wait(ctx, t.heldHead),
		t.Rejected.CatchUp(ctx)); err != nil {
		return fmt.Errorf("catch up: %w", err)
	}
	if err := t.Usage.Load(ctx); err != nil {
		return err
	}
	t.draft = newDraft(t.Writer)
	return t.heal(ctx)
}

// markHeld moves the head of the held events, for the writer that has marked the log last. The mark
// expects the head that was there before the log was looked at: a writer whose mark of the log has
// been overtaken since then cannot take the held events from the one that overtook it.
func (t *term) markHeld(ctx context.Context) error {
	for {
		before, err := bus.LastSeq(ctx, t.Bus.JS, proto.KVStream(proto.BucketHeld))
		if err != nil {
			return err
		}
		last, err := bus.LastSeq(ctx, t.Bus.JS, proto.StreamEvents)
		if err != nil {
			return err
		}
		if last != t.head {
			return fmt.Errorf("the log's head is %d, not %d: %w", last, t.head, errOvertaken)
		}
		mark := t.mark(proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey))
		t.heldHead, err = t.Bus.PublishBatch(ctx, mark, &before)
		if !bus.IsConflict(err) {
			return err
		}
	}
}

// errOvertaken ends a term that another writer has overtaken before it began.
var errOvertaken = errors.New("another writer has begun")

func (t *term) end() {
	t.searching.Wait()
	if t.scheduler != nil {
		t.scheduler.close()
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
		t.clean(ctx, time.Now())
		b, err := t.gather(ctx)
		if b == nil {
			if err != nil {
				return err
			}
			continue
		}
		if err == nil {
			err = t.commit(ctx, b)
		}
		if err != nil {
			t.undo(b)
			return err
		}
		t.trouble.Store(nil)
		t.answer(b)
	}
}

// fetchEvery is how often it is told which events should be asked for by id.
const fetchEvery = time.Second

// askForHealed tells relay workers, until ctx ends, which rejected events they should ask for by
// id, because something that these missed has come. Nothing is lost with a message: what is not
// decided again is told again.
func (w *Writer) askForHealed(ctx context.Context) {
	tick := time.NewTicker(fetchEvery)
	defer tick.Stop()
	for {
		for _, fetch := range w.Rejected.Fetches(time.Now()) {
			data, _ := json.Marshal(fetch) // texts
			if err := w.Bus.Conn.Publish(proto.SubjectFetch, data); err != nil {
				w.Log.Warn("events cannot be asked for by id", "count", len(fetch.IDs), "error", err)
			}
			w.Log.Debug("events are asked for by id: what they missed has come", "events", fetch.IDs, "relays", fetch.Relays)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// undo gives back what a batch had taken whose commit failed: packs, rechecks, and what was charged
// for events that are not stored.
func (t *term) undo(b *batch) {
	for _, p := range b.packs {
		p.giveBack()
	}
	for _, x := range b.decided {
		if !x.stored {
			t.Usage.Add(-x.bytes, x.charges...)
		}
	}
	t.rechecks.restore(b.class, b.again)
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
