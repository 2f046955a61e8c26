package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"tendril.dev/proto"
)

// Message is one message of a stream.
type Message struct {
	Seq     uint64
	Subject string
	Header  nats.Header
	Data    []byte
	Time    time.Time // when the stream stored it
}

// Deletes reports whether a message of a bucket's stream says that its key is gone: deleted, purged
// or expired.
func (m Message) Deletes() bool {
	return m.Header.Get(proto.KVOperation) != "" || m.Header.Get(jetstream.MarkerReasonHeader) != ""
}

// Reading says what to follow.
type Reading struct {
	Stream  string
	Filters []string // subjects; none: all. The messages of each filter come in order
	After   uint64   // begin behind this sequence; 0: with the first message
	// Idle is called whenever everything was read that is there. Nothing else is called meanwhile.
	Idle func()
	// Patience is for a reader that another part of the process feeds too and that calls Advance:
	// how long that part has, after a message was stored, before the follower reads it.
	Patience func() time.Duration
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
	// waitMost bounds every wait for a follower.
	waitMost = 30 * time.Second
	// retryFirst and retryMost are the pauses before messages are asked for again that are stored
	// but not yet on the replica that answered, or while the bus is away.
	retryFirst = 2 * time.Millisecond
	retryMost  = 250 * time.Millisecond
)

// Follower hands every message of a stream to one function, in order, and then follows the stream.
//
// It has no consumer, so there is none to lose: it asks for the messages behind the last one that
// it has, and any replica of the stream may answer. The stream tells of each message that it has
// stored; besides, the follower asks for the stream's last sequence every 2.5 s. If it is behind
// and has read nothing for 5 s, it reads from the stream's leader.
type Follower struct {
	js   jetstream.JetStream
	log  *slog.Logger
	what Reading
	read func([]Message) error
	head *Head

	hints  chan struct{} // of capacity 1: told has grown
	looks  chan struct{} // of capacity 1: a waiter wants the stream's end to be looked at
	ready  chan struct{} // closed when everything was read that was there at the start
	leader bool          // the leader is asked, one message at a time

	done Progress // everything up to here is read

	mu   sync.Mutex
	at   []uint64 // by filter: everything up to here is read
	told []uint64 // by filter: sequence of the last message known to be stored
	end  uint64   // the stream's last sequence, as far as it is known
}

// NewFollower makes a follower; it reads while Run runs. read gets the messages in batches of at
// least one; its error ends Run.
func NewFollower(js jetstream.JetStream, r Reading, log *slog.Logger, read func([]Message) error) *Follower {
	if len(r.Filters) == 0 {
		r.Filters = []string{">"}
	}
	f := &Follower{
		js: js, log: log, what: r, read: read,
		hints: make(chan struct{}, 1), looks: make(chan struct{}, 1), ready: make(chan struct{}),
	}
	f.at, f.told = slices.Repeat([]uint64{r.After}, len(r.Filters)), make([]uint64, len(r.Filters))
	f.done.Advance(r.After)
	f.head = &Head{ask: func(ctx context.Context) (uint64, error) { return lastSeq(ctx, js, r.Stream) }, reach: f.Wait}
	return f
}

// Follow hands every message of a stream to read until ctx ends; see [Follower].
func Follow(ctx context.Context, js jetstream.JetStream, r Reading, log *slog.Logger, read func(Message)) error {
	return NewFollower(js, r, log, func(messages []Message) error {
		for _, m := range messages {
			read(m)
		}
		return nil
	}).Run(ctx)
}

// Read hands every message to read that the stream has now, and returns.
func Read(ctx context.Context, js jetstream.JetStream, r Reading, read func(Message)) error {
	own, stop := context.WithCancel(ctx)
	defer stop()
	r.Idle = stop
	if err := Follow(own, js, r, slog.New(slog.DiscardHandler), read); err != nil {
		return err
	}
	return ctx.Err()
}

// Run follows until ctx ends or read returns an error. While the bus is away, or has no such
// stream, it tries again.
func (f *Follower) Run(ctx context.Context) error {
	for i, filter := range f.what.Filters {
		sub, err := f.js.Conn().Subscribe(proto.StoredSubject(f.what.Stream, filter), func(m *nats.Msg) { f.hear(i, m) })
		if err != nil {
			return fmt.Errorf("follow stream %s: %w", f.what.Stream, err)
		}
		defer sub.Unsubscribe()
	}
	start, known := uint64(0), false
	pause, since := retryFirst, time.Now()
	for {
		if !known {
			last, err := lastSeq(ctx, f.js, f.what.Stream)
			start, known = last, err == nil
		}
		more, count, err := f.fetch(ctx)
		var failed *readError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &failed):
			return failed.err
		case err != nil:
			f.log.Debug("a stream cannot be read", "stream", f.what.Stream, "error", err)
		}
		if count > 0 {
			pause, since, f.leader = retryFirst, time.Now(), false
		}
		if more {
			continue
		}
		if err == nil {
			if known, err = f.settle(ctx, start, known); err != nil {
				f.log.Debug("the end of a stream cannot be looked at", "stream", f.what.Stream, "error", err)
			}
		}
		if err == nil && !f.behind() {
			pause = retryFirst
			if !f.rest(ctx) {
				return nil
			}
			since = time.Now()
			continue
		}
		if time.Since(since) > stalledAfter && !f.leader {
			f.leader = true
			f.log.Warn("a stream is not read on; its leader is asked", "stream", f.what.Stream, "read", f.Seq(), "stored", f.Told())
		}
		if pause == retryMost {
			notify(f.looks) // what was told of may have been replaced or removed since
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
			pause = min(2*pause, retryMost)
		}
	}
}

// hear takes the notice of a message of a filter that the stream has stored.
func (f *Follower) hear(filter int, m *nats.Msg) {
	if seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64); err == nil {
		f.note(filter, seq)
		notify(f.hints)
	}
}

// note keeps that a message of a filter is stored.
func (f *Follower) note(filter int, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told[filter], f.end = max(f.told[filter], seq), max(f.end, seq)
}

// notify sends on a channel of capacity 1 unless something is in it.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// readError is an error of the function that takes the messages.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }

// fetch asks for the messages behind those that were read, and hands on what comes. more: some are
// left.
func (f *Follower) fetch(ctx context.Context) (more bool, count int, err error) {
	f.mu.Lock()
	at := slices.Clone(f.at)
	f.mu.Unlock()
	var batch []Message
	limit := uint64(math.MaxUint64) // up to here the messages of all filters have come
	for i, filter := range f.what.Filters {
		got, left, err := f.ask(ctx, filter, at[i]+1)
		if err != nil {
			return false, 0, err
		}
		if len(got) == 0 {
			continue
		}
		at[i] = got[len(got)-1].Seq
		batch = append(batch, got...)
		if left {
			more, limit = true, min(limit, at[i])
		}
	}
	if len(f.what.Filters) > 1 {
		slices.SortFunc(batch, func(a, b Message) int { return cmp.Compare(a.Seq, b.Seq) })
		for len(batch) > 0 && batch[len(batch)-1].Seq > limit {
			batch = batch[:len(batch)-1]
		}
		for i := range at {
			at[i] = max(min(at[i], limit), f.at[i])
		}
	}
	if len(batch) == 0 {
		return more, 0, nil
	}
	if err := f.read(batch); err != nil {
		return false, 0, &readError{err}
	}
	f.advance(at)
	return more, len(batch), nil
}

// ask asks for messages of a filter from a sequence on. left: there are more of them.
func (f *Follower) ask(ctx context.Context, filter string, from uint64) (got []Message, left bool, err error) {
	if f.leader {
		m, found, err := Next(ctx, f.js, f.what.Stream, filter, from)
		if err != nil || !found {
			return nil, false, err
		}
		return []Message{m}, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	messages, err := jetstreamext.GetBatch(ctx, f.js, f.what.Stream, batchMessages,
		jetstreamext.GetBatchSeq(from), jetstreamext.GetBatchSubject(filter), jetstreamext.GetBatchMaxBytes(batchBytes))
	if err != nil {
		return nil, false, fmt.Errorf("ask for messages of %s: %w", f.what.Stream, err)
	}
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
		before := uint64(0)
		if len(got) > 0 {
			before = got[len(got)-1].Seq
		}
		if m.Header.Get(jetstream.LastSequenceHeader) != strconv.FormatUint(before, 10) {
			left = true
			break
		}
		got = append(got, Message{Seq: m.Sequence, Subject: m.Subject, Header: m.Header, Data: m.Data, Time: m.Time})
		left = m.Header.Get(headerPending) != "0"
	}
	if len(got) == 0 {
		return nil, false, fmt.Errorf("read messages of %s from %d: no answer", f.what.Stream, from)
	}
	return got, left, nil
}

// headerPending says on a message how many of those that were asked for are behind it.
const headerPending = "Nats-Num-Pending"

// settle looks at the stream's end where that is not known yet, and tells that everything was read.
// start is the stream's last sequence at the start.
func (f *Follower) settle(ctx context.Context, start uint64, known bool) (bool, error) {
	if !known {
		return false, errors.New("the stream's last sequence is not known yet")
	}
	select {
	case <-f.looks:
		if err := f.look(ctx); err != nil {
			return true, err
		}
	default:
		if f.Seq() < start {
			if err := f.look(ctx); err != nil {
				return true, err
			}
		}
	}
	if f.behind() {
		return true, nil
	}
	select {
	case <-f.ready:
	default:
		if f.Seq() >= start {
			close(f.ready)
		}
	}
	if f.what.Idle != nil {
		f.what.Idle()
	}
	return true, nil
}

// look asks the stream's leader for the last sequence, and whether any message up to it is still to
// be read. The messages at a stream's end may belong to other filters, or be gone.
func (f *Follower) look(ctx context.Context) error {
	f.mu.Lock()
	at := slices.Clone(f.at)
	f.mu.Unlock()
	end, err := lastSeq(ctx, f.js, f.what.Stream)
	if err != nil {
		return err
	}
	for i, filter := range f.what.Filters {
		if at[i] >= end {
			continue
		}
		m, found, err := Next(ctx, f.js, f.what.Stream, filter, at[i]+1)
		if err != nil {
			return err
		}
		if found {
			f.note(i, m.Seq)
			continue
		}
		at[i] = end
	}
	f.advance(at)
	return nil
}

// rest waits until there may be something to read; false: ctx has ended.
func (f *Follower) rest(ctx context.Context) bool {
	look := time.NewTimer(endEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-f.hints:
			if f.fed(ctx) {
				continue
			}
			return true
		case <-f.looks:
		case <-look.C:
		}
		notify(f.looks) // for settle
		return true
	}
}

// fed reports whether the reader gets what is stored by another way, in the time that it may take.
func (f *Follower) fed(ctx context.Context) bool {
	if f.what.Patience == nil {
		return false
	}
	patience := f.what.Patience()
	if patience == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return f.done.WaitFor(ctx, f.Told()) == nil
}

// behind reports whether a message is known to be stored that was not read.
func (f *Follower) behind() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.at {
		if f.at[i] < f.told[i] {
			return true
		}
	}
	return false
}

// Seq is the sequence up to which everything was read.
func (f *Follower) Seq() uint64 { return f.done.Seq() }

// Told is the sequence of the last message that is known to be stored.
func (f *Follower) Told() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Max(f.told)
}

// Advance says that the reader has got everything up to a sequence by another way.
func (f *Follower) Advance(seq uint64) { f.advance(slices.Repeat([]uint64{seq}, len(f.what.Filters))) }

func (f *Follower) advance(at []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range at {
		f.at[i] = max(f.at[i], at[i])
		f.end = max(f.end, at[i])
	}
	f.done.Advance(slices.Min(f.at))
}

// Ready is closed when everything was read that the stream had when Run began.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Wait waits until everything up to a sequence was read, for at most 30 s. Its error says what it
// waited for.
func (f *Follower) Wait(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, waitMost)
	defer cancel()
	began := time.Now()
	for patience := 100 * time.Millisecond; ; patience = min(2*patience, endEvery) {
		brief, done := context.WithTimeout(ctx, patience)
		err := f.done.WaitFor(brief, seq)
		done()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			return fmt.Errorf("waited %s for sequence %d of stream %s: read up to %d of %d: %w",
				time.Since(began).Round(time.Millisecond), seq, f.what.Stream, f.Seq(), f.end, context.Cause(ctx))
		}
		notify(f.looks)
	}
}

// CatchUp waits until everything was read that the stream has at some time after the call, with the
// deadline of Wait.
func (f *Follower) CatchUp(ctx context.Context) error { return f.head.Read(ctx) }
