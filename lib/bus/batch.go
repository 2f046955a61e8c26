package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// MaxBatch is the most messages of one atomic batch (JetStream, ADR-50).
const MaxBatch = 1000

// ErrHeadMoved: the stream's last sequence is not the one that the batch was decided on. Nothing
// was stored.
var ErrHeadMoved = errors.New("the head of the stream has moved")

// Headers of atomic batches (JetStream, ADR-50).
const (
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
)

// commitTimeout bounds the wait for a commit's acknowledgement where the context has no deadline.
// The writer's commits have one of their own.
const commitTimeout = time.Minute

// PublishBatch stores all messages in their stream, or none, in one commit (and, with sync always,
// one fsync). If expect is not nil, the commit goes through only if the stream's last sequence is
// *expect; otherwise the error wraps [ErrHeadMoved]. It returns the sequence of the last message;
// those before it have the sequences before. The messages' headers are changed; several messages
// may share one. All must belong to one stream that allows atomic publishing; at least one and at
// most [MaxBatch].
//
// After any other error (a timeout, a lost connection) the batch may or may not have been stored:
// read the stream before going on.
func (b *Bus) PublishBatch(ctx context.Context, msgs []*nats.Msg, expect *uint64) (last uint64, err error) {
	if len(msgs) == 0 || len(msgs) > MaxBatch {
		return 0, fmt.Errorf("publish batch: %d messages, want 1 to %d", len(msgs), MaxBatch)
	}
	if len(msgs) == 1 {
		return b.publishOne(ctx, msgs[0], expect)
	}
	id := []string{nuid.Next()}
	for i, m := range msgs {
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[headerBatchID], m.Header[headerBatchSeq] = id, batchSeqs()[i]
		if i == 0 && expect != nil {
			m.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(*expect, 10))
		}
		if i < len(msgs)-1 {
			// The server sends the messages' acknowledgements to nobody: only the commit's counts.
			if err := b.Conn.PublishMsg(m); err != nil {
				return 0, fmt.Errorf("publish batch: message %d: %w", i+1, err)
			}
		}
		if i == 0 {
			delete(m.Header, jetstream.ExpectedLastSeqHeader) // the next one may have the same header
		}
	}
	commit := msgs[len(msgs)-1]
	commit.Header.Set(headerBatchCommit, "1")
	seq, count, err := b.commit(ctx, commit, len(msgs))
	if err != nil {
		return 0, err
	}
	if count != len(msgs) {
		return 0, fmt.Errorf("commit batch of %d: %d were stored", len(msgs), count)
	}
	return seq, nil
}

// batchSeqs are the values of the header that numbers the messages of a batch, which are the same
// in all batches.
var batchSeqs = sync.OnceValue(func() (values [][]string) {
	values = make([][]string, MaxBatch)
	for i := range values {
		values[i] = []string{strconv.Itoa(i + 1)}
	}
	return values
})

// publishOne stores a single message. It is no batch: for each of those the server makes files of
// its own, and waits several times for the disk, before it stores anything.
func (b *Bus) publishOne(ctx context.Context, m *nats.Msg, expect *uint64) (seq uint64, err error) {
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	if expect != nil {
		m.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(*expect, 10))
	}
	seq, _, err = b.commit(ctx, m, 1)
	return seq, err
}

// commit publishes the message that ends a batch of so many, and gives what its acknowledgement
// says.
func (b *Bus) commit(ctx context.Context, m *nats.Msg, size int) (seq uint64, count int, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, commitTimeout)
		defer cancel()
	}
	reply, err := b.Conn.RequestMsgWithContext(ctx, m)
	if err != nil {
		return 0, 0, fmt.Errorf("commit batch of %d: %w", size, err)
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Seq   uint64              `json:"seq"`
		Count int                 `json:"count"`
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		return 0, 0, fmt.Errorf("commit batch of %d: read the acknowledgement: %w", size, err)
	}
	if ack.Error != nil {
		if IsConflict(ack.Error) {
			return 0, 0, fmt.Errorf("commit batch of %d: %w: %w", size, ErrHeadMoved, ack.Error)
		}
		return 0, 0, fmt.Errorf("commit batch of %d: %w", size, ack.Error)
	}
	return ack.Seq, ack.Count, nil
}

// catchUpPause is how long a reader gets to reach the last sequence before it is asked whether the
// message with that sequence is still there.
const catchUpPause = 300 * time.Millisecond

// CatchUp waits until a reader has read a stream up to a sequence that it has had. reach waits
// until the reader has come to a sequence. The messages at the end of a stream may have grown too
// old and gone; then the last one that is there is enough.
func (b *Bus) CatchUp(ctx context.Context, stream string, seq uint64, reach func(ctx context.Context, seq uint64) error) error {
	for !reachedWithin(ctx, catchUpPause, reach, seq) {
		if ctx.Err() != nil {
			return fmt.Errorf("catch up with stream %s: %w", stream, ctx.Err())
		}
		stored, err := b.LastStored(ctx, stream)
		if err != nil {
			return err
		}
		if stored < seq && reachedWithin(ctx, catchUpPause, reach, stored) {
			return nil
		}
	}
	return nil
}

func reachedWithin(ctx context.Context, wait time.Duration, reach func(context.Context, uint64) error, seq uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return reach(ctx, seq) == nil
}

// LastStored is the sequence of the last message that is there; 0: there is none.
func (b *Bus) LastStored(ctx context.Context, stream string) (uint64, error) {
	s, err := b.JS.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	m, err := s.GetLastMsgForSubject(ctx, ">")
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for the last message of stream %s: %w", stream, err)
	}
	return m.Sequence, nil
}
