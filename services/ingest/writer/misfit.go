package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// A candidate that can never be decided, or never be stored, must not stand in the way of the
// others: it is found by deciding those of its batch one by one, told apart from a failure of ours
// by trying again, and then done with alone.

// tries is how often a candidate is decided before it is given up. Only those tries count between
// which others were decided: while nothing can be read at all, no candidate is at fault.
const tries = 3

// Pauses before a candidate is tried again, and before anything else is decided meanwhile.
const (
	againAfter = time.Second
	breath     = 50 * time.Millisecond
)

// maxFailing bounds how many candidates' failures are counted. More fail only while everything
// does, and then nothing is counted.
const maxFailing = 10_000

// batchIncomplete is JetStream's error code for a batch of which the server has not taken every
// message.
const batchIncomplete = 10176

// undecidedError is about a candidate that could not be decided.
type undecidedError struct {
	decided
	err error
}

func (e *undecidedError) Error() string {
	return fmt.Sprintf("decide event %s: %v", e.candidate.Event.ID, e.err)
}
func (e *undecidedError) Unwrap() error { return e.err }

// failing is a candidate that could not be decided.
type failing struct {
	count   int    // tries
	decided uint64 // how many candidates the writer had decided by the last one
}

// undecided deals with a batch in which a candidate could not be decided. It gives nil if the
// writer can go on.
func (w *Writer) undecided(ctx context.Context, b *batch, u *undecidedError) error {
	if others := len(b.decided); others > 0 || ctx.Err() != nil {
		w.takeBack(b, u.decided)
		// What was decided before it may be half of what it would have done. They go first, each in
		// a batch of its own.
		w.careful = others + 1
		return ctx.Err()
	}
	w.trouble.note(u)
	kind := u.candidate.Event.Kind
	if w.givesUp(u.decided) {
		w.Log.Error("an event cannot be decided and is given up", "kind", kind, "error", u)
		w.giveUp(u.decided, "cannot be decided", policy.ReasonUndecidable, "error: the event could not be decided")
		return nil
	}
	w.Log.Warn("an event cannot be decided and is tried again", "kind", kind, "error", u)
	w.postpone(u.item)
	select {
	case <-time.After(breath):
	case <-ctx.Done():
	}
	return nil
}

// givesUp counts a failure and says whether it was the last one that is allowed. A parked event has
// only one: it is not in the stream any more.
func (w *Writer) givesUp(x decided) bool {
	if x.pack == nil {
		return true
	}
	f, known := w.failing[x.candidate.Event.ID]
	if !known || w.decidedEver > f.decided {
		f = failing{f.count + 1, w.decidedEver}
	}
	if f.count >= tries {
		delete(w.failing, x.candidate.Event.ID)
		return true
	}
	if len(w.failing) >= maxFailing {
		clear(w.failing)
	}
	w.failing[x.candidate.Event.ID] = f
	return false
}

// takeBack undoes a batch that was not committed: its candidates, and one more that could not be
// decided, come first in the next one, or are given back with all that was fetched where the term
// ends. Parked events that it took are decided again, whatever the undone batch said of them. What
// it parked stays parked; to decide an event twice does no harm.
func (w *Writer) takeBack(b *batch, more ...decided) {
	var items []item
	for _, x := range append(b.decided, more...) {
		if x.pack != nil {
			items = append(items, x.item)
		}
	}
	w.heldRoom = nil // it counts what was undone
	w.fetched = append(items, w.fetched...)
	w.healed = append(b.healed, w.healed...)
}

// refused deals with a batch that the server refuses whatever the head: something in it cannot be
// stored. The candidates are decided again one by one, and the one that is refused alone is done
// with, so that it never stands in the way of the others. It gives false for every other error.
func (w *Writer) refused(b *batch, err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == batchIncomplete {
		// The server left a message of the batch out without saying why: it may be one that it can
		// never store.
		w.careful = len(b.decided)
		return false
	}
	// Only what is said of a message's size is about an event. An account that is full, or a stream
	// that is sealed, is about all of them.
	unstorable := errors.Is(err, nats.ErrMaxPayload) ||
		errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum
	if !unstorable {
		return false
	}
	if len(b.decided) > 1 {
		w.careful = len(b.decided)
		return false
	}
	for _, x := range b.decided {
		w.Log.Error("an event cannot be stored", "event", x.candidate.Event.ID, "kind", x.candidate.Event.Kind, "error", err)
		w.giveUp(x, "cannot be stored", policy.ReasonInvalid, "error: the event cannot be stored")
	}
	return true
}

// giveUp is done with a candidate, whatever it is.
func (w *Writer) giveUp(x decided, why string, reason policy.Reason, message string) {
	w.Metrics.rejected(x.candidate.Event.Kind, reason)
	if x.pack == nil {
		return
	}
	x.pack.ending = why
	w.judge(x.item, proto.Verdict{ID: x.candidate.Event.ID, Kind: x.candidate.Event.Kind, Outcome: proto.Rejected, Message: message})
}

// Troubles that follow each other this often and this closely are one that does not go away.
const (
	manyTroubles = 3
	longQuiet    = 30 * time.Second
)

// trouble is what went wrong since something last went well.
type trouble struct {
	mu    sync.Mutex
	count int
	last  error
	at    time.Time
}

func (t *trouble) note(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count, t.last, t.at = t.count+1, err, time.Now()
}

func (t *trouble) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count = 0
}

// Troubled returns what keeps the writer from its work again and again; nil: nothing, or it is not
// the writer.
func (w *Writer) Troubled() error {
	w.trouble.mu.Lock()
	defer w.trouble.mu.Unlock()
	if w.trouble.count < manyTroubles || time.Since(w.trouble.at) > longQuiet {
		return nil
	}
	return fmt.Errorf("failed %d times in a row: %w", w.trouble.count, w.trouble.last)
}
