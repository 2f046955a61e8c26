package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/backoff"
	"tendril.dev/proto"
)

// Reading says what to follow.
type Reading struct {
	Stream string // its name; must be set
	Filter string // subject; empty: all
	After  uint64 // begin behind this sequence; 0: with the first message
	// Wait is called before each batch, with the sequence of its last message. On an error the batch
	// is fetched again later. Optional.
	Wait func(ctx context.Context, seq uint64) error
	// Idle is called whenever everything was read that is there. Nothing else is called meanwhile.
	// It ends with its context. Optional.
	Idle func(ctx context.Context)
	// Within is how long there may be something to read that does not come; then Run gives an error.
	// 0: Run tries for ever, and ReadAll for 30 s.
	Within time.Duration
}

const (
	// batchMessages and batchBytes are the most that one request for messages brings.
	batchMessages = 1000
	batchBytes    = 4 << 20
	// batchTimeout bounds one request. What has come by then is used.
	batchTimeout = 4 * time.Second
	// endEvery is how often a follower that has nothing to read asks for the stream's end. It is
	// told of each message as well, but such a notice can be lost.
	endEvery = 2500 * time.Millisecond
	// stalledAfter is how long a follower is behind without reading anything until it asks the
	// stream's leader. The replica that answers otherwise may have stopped.
	stalledAfter = 5 * time.Second
	// oneByOne is how many messages the leader is asked for one by one. That is cheaper than a batch
	// where there are few: for each batch the server counts all subjects of the filter, which takes
	// 100 ms in a stream of a million.
	oneByOne = 32
	// waitMost bounds every wait for a follower. A wait asks for the stream's end every waitLook.
	waitMost = 30 * time.Second
	waitLook = 250 * time.Millisecond
	// retryFirst and retryMost are the pauses before messages are asked for again that are stored
	// but not yet on the replica that answered, or while the bus is away.
	retryFirst = 2 * time.Millisecond
	retryMost  = 250 * time.Millisecond
	// pushedFor is for how long after a push a follower takes it that the writer of this process pushes
	// all that is stored.
	pushedFor = time.Second
	// askAgain is the pause before a stream that has lost something is asked once more.
	askAgain = time.Second
	// headerPending says on a message how many of those that were asked for are behind it.
	headerPending = "Nats-Num-Pending"
)

// Follower hands every message of a stream to one function, in order, and then follows the stream.
//
// It has no consumer, so there is none to lose: it asks for the messages behind the last one that
// it has, and any replica of the stream may answer. The stream tells of each message that it has
// stored; besides, the follower asks for the stream's last sequence every 2.5 s. If it is behind
// and has read nothing for 5 s, it reads from the stream's leader.
type Follower struct {
	js     jetstream.JetStream
	log    *slog.Logger
	what   Reading
	read   func([]Message) error
	leader bool          // the leader is asked
	wake   chan struct{} // of capacity 1: there may be something to read, or to ask

	mu          sync.Mutex
	ready       bool          // everything was read that was there at the start
	position    uint64        // everything up to here is read
	notifiedSeq uint64        // of the last message that is known to be stored
	endDue      bool          // the stream's end must be asked for
	endSeq      uint64        // the stream's end, when it was last asked for
	lastPush    time.Time     // when Advance was last called
	advanced    chan struct{} // closed when the follower gets on; nil: nothing waits

	// Run's goroutine has these.
	created time.Time          // when the stream was made, as it was first seen
	notices *nats.Subscription // nil: it is not told of each message, because they are pushed
}

// NewFollower makes a follower; it reads while Run runs. read gets the messages in batches of at
// least one; its error ends Run.
func NewFollower(js jetstream.JetStream, r Reading, log *slog.Logger, read func([]Message) error) *Follower {
	r.Filter = cmp.Or(r.Filter, ">")
	return &Follower{js: js, log: log, what: r, read: read, position: r.After, endDue: true, wake: make(chan struct{}, 1)}
}

// Each adapts a function of one message to a batch.
func Each(take func(Message)) func([]Message) error {
	return func(messages []Message) error {
		for _, m := range messages {
			take(m)
		}
		return nil
	}
}

// Read hands every message to read that the stream has now, and returns.
func Read(ctx context.Context, js jetstream.JetStream, r Reading, read func(Message)) error {
	return NewFollower(js, r, slog.New(slog.DiscardHandler), Each(read)).ReadAll(ctx)
}

// ReadAll reads what the stream has now, and returns. It fails when nothing comes for 30 s. Run
// goes on from there.
func (f *Follower) ReadAll(ctx context.Context) error {
	own, stop := context.WithCancel(ctx)
	defer stop()
	before := f.what
	f.what.Idle, f.what.Within = func(context.Context) { stop() }, cmp.Or(before.Within, waitMost)
	defer func() { f.what = before; f.wantEnd() }()
	return cmp.Or(f.Run(own), ctx.Err())
}

// readError is an error of the function that takes the messages, or of a stream that has lost some.
type readError struct{ error }

// Run follows until ctx ends or read returns an error. While the bus is away, or has no such
// stream, it tries again.
func (f *Follower) Run(ctx context.Context) error {
	if err := f.listen(true); err != nil {
		return err
	}
	defer f.listen(false)
	// The end is asked for when nothing more is known to be there.
	failures, since, more, keepsUp := 0, time.Now(), true, false
	for ctx.Err() == nil {
		count, err := 0, error(nil)
		if !more {
			err = f.checkEnd(ctx)
		}
		if err == nil && !more && !f.behind() {
			if err := f.waitForMore(ctx); err != nil {
				return err
			}
			failures, since = 0, time.Now()
			continue
		}
		if more = false; err == nil {
			count, more, err = f.fetch(ctx, keepsUp)
			keepsUp = err == nil && !more
		}
		failed, isRead := errors.AsType[readError](err)
		switch {
		case ctx.Err() != nil:
			return nil
		case isRead:
			return failed.error
		case count > 0:
			failures, since, f.leader = 0, time.Now(), false
			continue
		case err == nil && !f.behind():
			continue
		case f.what.Within > 0 && time.Since(since) > f.what.Within:
			return fmt.Errorf("read stream %s: nothing came after sequence %d for %s (%v)", f.what.Stream, f.Seq(),
				f.what.Within, err)
		case err != nil:
			f.log.Debug("a stream cannot be read", "stream", f.what.Stream, "error", err)
		}
		failures++
		f.backOff(ctx, failures, since)
	}
	return nil
}

// backOff waits before the stream is asked again, from which nothing has come since a time.
func (f *Follower) backOff(ctx context.Context, failures int, since time.Time) {
	if time.Since(since) > stalledAfter && !f.leader {
		f.leader = true
		f.log.Warn("a stream is not read on; its leader is asked", "stream", f.what.Stream, "read", f.Seq())
	}
	pause := backoff.After(failures, retryFirst, retryMost)
	if pause == retryMost {
		f.wantEnd() // a message that was told of may be gone
	}
	_ = backoff.Sleep(ctx, pause) // the loop looks at ctx
}

// hear takes the notice of a message that the stream has stored.
func (f *Follower) hear(m *nats.Msg) {
	if seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); err == nil {
		f.mu.Lock()
		f.notifiedSeq = max(f.notifiedSeq, seq)
		f.mu.Unlock()
		f.signal()
	}
}

// wantEnd has the stream's end asked for.
func (f *Follower) wantEnd() {
	f.mu.Lock()
	f.endDue = true
	f.mu.Unlock()
	f.signal()
}

func (f *Follower) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// behind reports whether a message is known to be stored that was not read, or the stream's end
// must be asked for.
func (f *Follower) behind() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.endDue || f.position < max(f.notifiedSeq, f.endSeq)
}

// listen has the stream tell of each message from now on, or no more.
func (f *Follower) listen(on bool) (err error) {
	switch {
	case on && f.notices == nil:
		f.notices, err = f.js.Conn().Subscribe(proto.StoredSubject(f.what.Stream, f.what.Filter), f.hear)
		f.wantEnd() // of what was stored before it is not told
	case !on && f.notices != nil:
		_ = f.notices.Unsubscribe() // it fails where the connection is closed, which ends it too
		f.notices = nil
	}
	if err != nil {
		return fmt.Errorf("follow stream %s: %w", f.what.Stream, err)
	}
	return nil
}

// waitForMore tells that everything was read, and waits until there may be more.
func (f *Follower) waitForMore(ctx context.Context) error {
	f.mu.Lock()
	f.ready = true
	pushed, wait := time.Since(f.lastPush) < pushedFor, endEvery
	f.mu.Unlock()
	if f.what.Idle != nil {
		f.what.Idle(ctx)
	}
	// For a notice of what a writer has stored and is about to push, it would be read once more.
	if err := f.listen(!pushed); err != nil {
		return err
	}
	if pushed {
		wait = pushedFor
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-f.wake:
	case <-timer.C:
		if !pushed {
			f.wantEnd()
		}
	}
	return nil
}

// fetch asks for the messages behind those that were read and hands on what comes. A follower that
// keeps up asks for them singly. more: more are there.
func (f *Follower) fetch(ctx context.Context, keepsUp bool) (count int, more bool, err error) {
	batch, more, err := f.ask(ctx, f.Seq()+1, keepsUp)
	if err == nil && len(batch) > 0 && f.what.Wait != nil {
		err = f.what.Wait(ctx, batch[len(batch)-1].Seq)
	}
	if err != nil || len(batch) == 0 {
		return 0, more, err
	}
	if err := f.read(batch); err != nil {
		return 0, false, readError{err}
	}
	f.reached(batch[len(batch)-1].Seq)
	return len(batch), more, nil
}

// ask asks for messages from a sequence on: singly at the leader, or a batch at any replica. more:
// more of them are there.
func (f *Follower) ask(ctx context.Context, from uint64, singly bool) (got []Message, more bool, err error) {
	for f.leader || singly {
		m, found, err := Next(ctx, f.js, f.what.Stream, f.what.Filter, from)
		if err != nil || !found {
			return got, false, err
		}
		if got = append(got, m); len(got) == oneByOne {
			return got, true, nil
		}
		from = m.Seq + 1
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	messages, err := jetstreamext.GetBatch(ctx, f.js, f.what.Stream, batchMessages,
		jetstreamext.GetBatchSeq(from), jetstreamext.GetBatchSubject(f.what.Filter),
		jetstreamext.GetBatchMaxBytes(batchBytes))
	if err != nil {
		return nil, false, fmt.Errorf("ask for messages of %s: %w", f.what.Stream, err)
	}
	var before uint64
	for m, err := range messages {
		if errors.Is(err, jetstreamext.ErrNoMessages) {
			return nil, false, nil
		}
		if err != nil {
			if len(got) > 0 {
				break
			}
			return nil, false, fmt.Errorf("read messages of %s: %w", f.what.Stream, err)
		}
		// Answers are plain messages: one is lost when the connection breaks, and later ones may
		// still come. Each names the one before it, the first none.
		if m.Header.Get(jetstream.LastSequenceHeader) != strconv.FormatUint(before, 10) {
			more = true
			break
		}
		got = append(got, Message{Seq: m.Sequence, Subject: m.Subject, Header: m.Header, Data: m.Data, Time: m.Time})
		before, more = m.Sequence, m.Header.Get(headerPending) != "0"
	}
	if len(got) == 0 {
		return nil, false, fmt.Errorf("read messages of %s from %d: no answer", f.what.Stream, from)
	}
	return got, more, nil
}

// checkEnd asks the stream's leader for the last sequence, if that is due, and which message up to
// it is the next to read. The messages at a stream's end may not match the filter, or be gone.
func (f *Follower) checkEnd(ctx context.Context) (err error) {
	f.mu.Lock()
	position, due, end := f.position, f.endDue, f.endSeq
	f.endDue = false
	f.mu.Unlock()
	defer func() {
		if err != nil {
			f.wantEnd()
		}
	}()
	if due {
		if end, err = f.askEnd(ctx, position); err != nil {
			return err
		}
	}
	var notified uint64
	if position < end {
		m, found, err := Next(ctx, f.js, f.what.Stream, f.what.Filter, position+1)
		if err != nil {
			return err
		}
		if position = end; found {
			position, notified = m.Seq-1, m.Seq
		}
	}
	f.mu.Lock()
	f.endSeq, f.notifiedSeq = end, max(f.notifiedSeq, notified)
	f.mu.Unlock()
	f.reached(position)
	return nil
}

// askEnd asks for the stream's last sequence. A stream that was made again, or that ends before the
// position, has lost what was read. That is asked twice: a server that has just lost the lead of
// the stream may answer with what it had then.
func (f *Follower) askEnd(ctx context.Context, position uint64) (uint64, error) {
	for again := false; ; again = true {
		end, created, err := streamEnd(ctx, f.js, f.what.Stream)
		if err != nil {
			return 0, err
		}
		if f.created.IsZero() {
			f.created = created
		}
		if end >= position && created.Equal(f.created) {
			return end, nil
		}
		if again {
			return 0, readError{fmt.Errorf("stream %s, made at %s, ends at %d; it was read up to %d when it was made at %s: "+
				"NATS has an earlier state of it now, or another stream (docs/running.md, When NATS has lost its disk)",
				f.what.Stream, created.UTC().Format(time.RFC3339), end, position, f.created.UTC().Format(time.RFC3339))}
		}
		f.log.Warn("a stream ends before what was read of it, or was made again; it is asked once more",
			"stream", f.what.Stream, "end", end, "read", position)
		if err := backoff.Sleep(ctx, askAgain); err != nil {
			return 0, err
		}
	}
}

// reached notes up to where everything was read.
func (f *Follower) reached(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.position = max(f.position, seq)
	if f.advanced != nil {
		close(f.advanced)
		f.advanced = nil
	}
}

// Seq is the sequence up to which everything was read.
func (f *Follower) Seq() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.position
}

// Advance says that the reader has got everything up to a sequence by another way. Until a second
// after the last time, the follower is not told of what is stored, and reads only what is waited for.
func (f *Follower) Advance(seq uint64) {
	f.mu.Lock()
	f.lastPush = time.Now()
	f.mu.Unlock()
	f.reached(seq)
}

// CaughtUp is an error until everything was read that the stream had when Run began.
func (f *Follower) CaughtUp() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ready {
		return fmt.Errorf("reading stream %s", f.what.Stream)
	}
	return nil
}

// Wait waits until everything up to a sequence was read, for at most 30 s. Its error says what it
// waited for.
func (f *Follower) Wait(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, waitMost)
	defer cancel()
	began := time.Now()
	if err := f.reach(ctx, seq); err != nil {
		return fmt.Errorf("waited %s for sequence %d of stream %s: read up to %d: %w",
			time.Since(began).Round(time.Millisecond), seq, f.what.Stream, f.Seq(), err)
	}
	return nil
}

// reach waits until everything up to a sequence was read, or ctx ends. Every so often it has the
// stream's end asked for.
func (f *Follower) reach(ctx context.Context, seq uint64) error {
	tick := time.NewTicker(waitLook)
	defer tick.Stop()
	for {
		f.mu.Lock()
		if f.position >= seq {
			f.mu.Unlock()
			return nil
		}
		if f.advanced == nil {
			f.advanced = make(chan struct{})
		}
		advanced := f.advanced
		f.mu.Unlock()
		select {
		case <-advanced:
		case <-tick.C:
			f.wantEnd()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// CatchUp waits until everything was read that the stream has when it is called, with the deadline
// of Wait.
func (f *Follower) CatchUp(ctx context.Context) error {
	last, err := LastSeq(ctx, f.js, f.what.Stream)
	if err != nil {
		return err
	}
	if f.Seq() < last {
		f.wantEnd() // the last message may be of another filter, or gone
	}
	return f.Wait(ctx, last)
}

// Followers are several of one stream, of a filter each. Each keeps the order of its own messages.
type Followers []*Follower

// Seq is the sequence up to which all of them, at least one, have read. Where little is stored that
// they read it may be 2.5 s old.
func (all Followers) Seq() uint64 {
	seq := all[0].Seq()
	for _, f := range all {
		seq = min(seq, f.Seq())
	}
	return seq
}

// Run runs all of them.
func (all Followers) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range all {
		group.Go(func() error { return f.Run(ctx) })
	}
	return group.Wait()
}
