package writer

import (
	"context"
	"fmt"
	"time"
)

// flight is a batch that is being committed, while the next one is decided.
//
// The commits of two batches never overlap: the next one is begun when this one is stored, and
// names the head behind it. So the fence is what it would be without any overlap, and a batch whose
// commit fails takes the decisions that were made on it along: nobody was told of those yet.
type flight struct {
	*batch
	stored  chan struct{} // closed when the streams have it, or a commit has failed
	applied chan struct{} // closed when the index has it besides; after stored or before

	// Written before the channels are closed.
	failed error // of the commits
	unfit  error // of the index
}

// launch begins to commit a batch, behind the one before it, which must be stored; nil: there is
// none.
func (w *Writer) launch(ctx context.Context, b *batch, before *flight) *flight {
	if before != nil {
		b.head, b.held = before.head, before.held
	}
	b.changes = b.draft.Cut()
	w.chain.batches++
	w.chain.bytes += b.bytes
	f := &flight{batch: b, stored: make(chan struct{}), applied: make(chan struct{})}
	go func() {
		defer close(f.stored)
		w.beforeCommit()
		// A commit that has begun is finished, turn or no turn: the log's head decides whether it
		// may.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
		defer cancel()
		f.failed = w.commit(ctx, b, func() { go w.apply(f, before) })
	}()
	return f
}

// apply takes a batch that is in the log into the index, after the one before it.
func (w *Writer) apply(f, before *flight) {
	defer close(f.applied)
	if before != nil {
		<-before.applied
		if before.unfit != nil {
			f.unfit = fmt.Errorf("the events before are not in the index: %w", before.unfit)
			return
		}
	}
	f.unfit = w.index(f.batch)
}

// wait waits until a batch is committed and in the index.
func (f *flight) wait() error {
	if <-f.stored; f.failed != nil {
		return f.failed
	}
	<-f.applied
	return f.unfit
}

// finish is done with a batch that is stored: when the index has it, its senders are told.
func (w *Writer) finish(f *flight) error {
	if err := f.wait(); err != nil {
		return err
	}
	w.trouble.over()
	w.costs.learn(len(f.logged), f.took)
	w.decidedEver += uint64(len(f.decided))
	w.careful = max(0, w.careful-len(f.decided))
	w.answer(f.batch)
	return nil
}

// land waits for the batch that is being committed, if there is one, and is done with it. Whatever
// comes next begins on the projections.
func (w *Writer) land() error {
	f := w.flying
	if f == nil {
		return nil
	}
	w.flying = nil
	if err := w.finish(f); err != nil {
		return w.fail(f, err)
	}
	w.endChain(true)
	return nil
}

// fail deals with a batch that could not be committed, after those that were decided on it have
// been taken back. It gives nil if the writer can go on.
func (w *Writer) fail(f *flight, err error) error {
	w.endChain(false)
	if w.refused(f.batch, err) {
		return nil
	}
	w.takeBack(f.batch)
	return err
}

// follow commits a batch when the one before it is stored, and then is done with that one.
func (w *Writer) follow(ctx context.Context, b *batch) error {
	before := w.flying
	if before != nil {
		if <-before.stored; before.failed != nil {
			w.takeBack(b)
			return w.land()
		}
	}
	w.flying = w.launch(ctx, b, before)
	if before == nil {
		return nil
	}
	if err := w.finish(before); err != nil {
		// The log has the events and the index does not: all are decided again when it has.
		<-w.flying.stored
		w.flying = nil
		w.takeBack(b)
		return w.fail(before, err)
	}
	return nil
}

// commitTimeout bounds the commits of one batch.
const commitTimeout = 15 * time.Second
