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
	// Wait is called with the sequence of the last of some messages before these are handed on. Its
	// error has them wait. nil: they do not.
	Wait func(ctx context.Context, seq uint64) error
	// Idle is called whenever everything was read that is there. Nothing else is called meanwhile.
	// nil: nothing is.
	Idle func()
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
	// feedTime is how long a follower that is fed waits before it reads itself: a commit is in the
	// stream before the writer feeds it. After fedFor without any, it does not wait.
	feedTime = 50 * time.Millisecond
	fedFor   = 5 * time.Second
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

	mu    sync.Mutex
	ready bool          // everything was read that was there at the start
	at    uint64        // everything up to here is read
	told  uint64        // sequence of the last message that is known to be stored
	look  bool          // the stream's end must be asked for
	goal  uint64        // the stream's end, when it was last asked for
	fed   time.Time     // when Advance was last called
	moved chan struct{} // closed when the follower gets on; nil: nothing waits
}

// NewFollower makes a follower; it reads while Run runs. read gets the messages in batches of at
// least one; its error ends Run.
func NewFollower(js jetstream.JetStream, r Reading, log *slog.Logger, read func([]Message) error) *Follower {
	r.Filter = cmp.Or(r.Filter, ">")
	return &Follower{js: js, log: log, what: r, read: read, at: r.After, look: true, wake: make(chan struct{}, 1)}
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

// ReadAll reads what the stream has now, and returns. It fails when nothing comes for 30 s. Run goes
// on from there.
func (f *Follower) ReadAll(ctx context.Context) error {
	own, stop := context.WithCancel(ctx)
	defer stop()
	before := f.what
	f.what.Idle, f.what.Within = stop, cmp.Or(before.Within, waitMost)
	defer func() { f.what = before; f.wantEnd() }()
	return cmp.Or(f.Run(own), ctx.Err())
}

// readError is an error of the function that takes the messages, or of a stream that has lost some.
type readError struct{ error }

// Run follows until ctx ends or read returns an error. While the bus is away, or has no such
// stream, it tries again.
func (f *Follower) Run(ctx context.Context) error {
	sub, err := f.js.Conn().Subscribe(proto.StoredSubject(f.what.Stream, f.what.Filter), f.hear)
	if err != nil {
		return fmt.Errorf("follow stream %s: %w", f.what.Stream, err)
	}
	defer sub.Unsubscribe()
	// The end is asked for when nothing is left to read.
	failures, since, left, few := 0, time.Now(), true, false
	for ctx.Err() == nil {
		count, err := 0, error(nil)
		if !left {
			err = f.lookAtEnd(ctx)
		}
		if err == nil && !left && !f.behind() {
			f.rest(ctx)
			failures, since = 0, time.Now()
			continue
		}
		if left = false; err == nil {
			count, left, err = f.fetch(ctx, few)
			few = err == nil && !left
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
			return fmt.Errorf("read stream %s: nothing came after sequence %d for %s (%v)", f.what.Stream, f.Seq(), f.what.Within, err)
		case err != nil:
			f.log.Debug("a stream cannot be read", "stream", f.what.Stream, "error", err)
		}
		if time.Since(since) > stalledAfter && !f.leader {
			f.leader = true
			f.log.Warn("a stream is not read on; its leader is asked", "stream", f.what.Stream, "read", f.Seq())
		}
		failures++
		pause := backoff.After(failures, retryFirst, retryMost)
		if pause == retryMost {
			f.wantEnd() // a message that was told of may be gone
		}
		_ = backoff.Sleep(ctx, pause) // the loop looks at ctx
	}
	return nil
}

// hear takes the notice of a message that the stream has stored.
func (f *Follower) hear(m *nats.Msg) {
	if seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); err == nil {
		f.mu.Lock()
		f.told = max(f.told, seq)
		f.mu.Unlock()
		f.signal()
	}
}

// wantEnd has the stream's end asked for.
func (f *Follower) wantEnd() {
	f.mu.Lock()
	f.look = true
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
	return f.look || f.at < max(f.told, f.goal)
}

// rest tells that everything was read, and waits until there may be more.
func (f *Follower) rest(ctx context.Context) {
	f.mu.Lock()
	f.ready = true
	f.mu.Unlock()
	if f.what.Idle != nil {
		f.what.Idle()
	}
	timer := time.NewTimer(endEvery)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		f.wantEnd()
	case <-f.wake:
		f.mu.Lock()
		fed, told := time.Since(f.fed) < fedFor && !f.look, f.told
		f.mu.Unlock()
		if fed {
			brief, cancel := context.WithTimeout(ctx, feedTime)
			defer cancel()
			_ = f.reach(brief, told, 0) // or it is read
		}
	}
}

// fetch asks for the messages behind those that were read, of which there may be few, and hands on
// what comes. left: there are more.
func (f *Follower) fetch(ctx context.Context, few bool) (count int, left bool, err error) {
	batch, left, err := f.ask(ctx, f.Seq()+1, few)
	if err == nil && len(batch) > 0 && f.what.Wait != nil {
		err = f.what.Wait(ctx, batch[len(batch)-1].Seq)
	}
	if err != nil || len(batch) == 0 {
		return 0, left, err
	}
	if err := f.read(batch); err != nil {
		return 0, false, readError{err}
	}
	f.reached(batch[len(batch)-1].Seq)
	return len(batch), left, nil
}

// ask asks for messages from a sequence on, of which there may be few. left: there are more of them.
func (f *Follower) ask(ctx context.Context, from uint64, few bool) (got []Message, left bool, err error) {
	for f.leader || few {
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
		jetstreamext.GetBatchSeq(from), jetstreamext.GetBatchSubject(f.what.Filter), jetstreamext.GetBatchMaxBytes(batchBytes))
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
			left = true
			break
		}
		got = append(got, Message{Seq: m.Sequence, Subject: m.Subject, Header: m.Header, Data: m.Data, Time: m.Time})
		before, left = m.Sequence, m.Header.Get(headerPending) != "0"
	}
	if len(got) == 0 {
		return nil, false, fmt.Errorf("read messages of %s from %d: no answer", f.what.Stream, from)
	}
	return got, left, nil
}

// lookAtEnd asks the stream's leader for the last sequence, if that is wanted, and which message up
// to it is the next to read. The messages at a stream's end may not match the filter, or be gone.
func (f *Follower) lookAtEnd(ctx context.Context) (err error) {
	f.mu.Lock()
	at, look, goal := f.at, f.look, f.goal
	f.look = false
	f.mu.Unlock()
	defer func() {
		if err != nil {
			f.wantEnd()
		}
	}()
	if look {
		if goal, err = LastSeq(ctx, f.js, f.what.Stream); err != nil {
			return err
		}
		if goal < at {
			return readError{fmt.Errorf("stream %s ends at %d and was read up to %d: NATS has an earlier state of it now, or another stream "+
				"(docs/running.md, When NATS has lost its disk)", f.what.Stream, goal, at)}
		}
	}
	var told uint64
	if at < goal {
		m, found, err := Next(ctx, f.js, f.what.Stream, f.what.Filter, at+1)
		if err != nil {
			return err
		}
		if at = goal; found {
			at, told = m.Seq-1, m.Seq
		}
	}
	f.mu.Lock()
	f.goal, f.told = goal, max(f.told, told)
	f.mu.Unlock()
	f.reached(at)
	return nil
}

// reached notes up to where everything was read.
func (f *Follower) reached(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = max(f.at, seq)
	if f.moved != nil {
		close(f.moved)
		f.moved = nil
	}
}

// Seq is the sequence up to which everything was read.
func (f *Follower) Seq() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

// Advance says that the reader has got everything up to a sequence by another way. While it does,
// the follower reads only what does not come by that way within 50 ms.
func (f *Follower) Advance(seq uint64) {
	f.mu.Lock()
	f.fed = time.Now()
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
	if err := f.reach(ctx, seq, waitLook); err != nil {
		return fmt.Errorf("waited %s for sequence %d of stream %s: read up to %d: %w",
			time.Since(began).Round(time.Millisecond), seq, f.what.Stream, f.Seq(), err)
	}
	return nil
}

// reach waits until everything up to a sequence was read, or ctx ends. Every so often, unless that
// is 0, it has the stream's end asked for.
func (f *Follower) reach(ctx context.Context, seq uint64, look time.Duration) error {
	tick := time.NewTicker(cmp.Or(look, waitMost))
	defer tick.Stop()
	for {
		f.mu.Lock()
		if f.at >= seq {
			f.mu.Unlock()
			return nil
		}
		if f.moved == nil {
			f.moved = make(chan struct{})
		}
		moved := f.moved
		f.mu.Unlock()
		select {
		case <-moved:
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
