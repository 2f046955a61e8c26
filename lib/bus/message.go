package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"tendril.dev/proto"
)

const (
	// MaxBatch is the most messages of one atomic batch (JetStream, ADR-50).
	MaxBatch = 1000
	// commitTimeout bounds the wait for a commit's acknowledgement where the context has no
	// deadline.
	commitTimeout = time.Minute
	// askTimeout bounds one question to JetStream.
	askTimeout = 5 * time.Second
)

// PublishBatch stores all messages in their stream, or none, in one commit (and, with sync always,
// one fsync). If expect is not nil, the commit goes through only if the stream's last sequence is
// *expect; otherwise the error is one of [IsConflict], and nothing is stored. It returns the
// sequence of the last message; those before it have the sequences before. The messages' headers
// are changed; several messages may share one. All must belong to one stream that allows atomic
// publishing; at least one and at most [MaxBatch].
//
// After any other error (a timeout, a lost connection) the batch may or may not have been stored:
// read the stream before going on.
func (b *Bus) PublishBatch(ctx context.Context, msgs []*nats.Msg, expect *uint64) (last uint64, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, commitTimeout)
		defer cancel()
	}
	if len(msgs) == 1 {
		return b.PublishChain(ctx, msgs, expect)
	}
	if err := b.Full(); err != nil {
		return 0, fmt.Errorf("commit batch of %d: %w", len(msgs), err)
	}
	ctx, cancel := b.WhileWritable(ctx)
	defer cancel()
	for _, m := range msgs {
		if m.Header == nil {
			m.Header = nats.Header{}
		}
	}
	if expect != nil {
		// The next message may have the same header.
		msgs[0].Header = maps.Clone(msgs[0].Header)
		msgs[0].Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(*expect, 10))
	}
	ack, err := jetstreamext.PublishMsgBatch(ctx, b.JS, msgs, jetstreamext.BatchFlowControl{})
	if err != nil {
		return 0, fmt.Errorf("commit batch of %d: %w", len(msgs), cmp.Or(b.Full(), b.unstored(err)))
	}
	return ack.Sequence, nil
}

// PublishChain stores messages one by one, each on the head that the one before leaves, and returns
// the sequence of the last. They are sent together, so each costs one wait for the disk, where an
// atomic batch on a file without replicas costs six: a chain of a few is faster. Each message names
// the sequence and the id of the one before, so that none can follow another writer's message: if
// one is refused, all behind it are. The error is one of [IsConflict] if the head was not *expect.
// After any error the first messages of the chain may be stored. expect may be nil for one message.
func (b *Bus) PublishChain(ctx context.Context, msgs []*nats.Msg, expect *uint64) (last uint64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("store %d messages: %w", len(msgs), err)
		}
	}()
	if err := b.Full(); err != nil {
		return 0, err
	}
	ctx, cancel := b.WhileWritable(ctx)
	defer cancel()
	chain, before := nuid.Next(), ""
	acks := make([]jetstream.PubAckFuture, len(msgs))
	for i, m := range msgs {
		if m.Header = maps.Clone(m.Header); m.Header == nil {
			m.Header = nats.Header{}
		}
		if expect != nil {
			m.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(*expect+uint64(i), 10))
		}
		if before != "" {
			m.Header.Set(jetstream.ExpectedLastMsgIDHeader, before)
		}
		before = chain + strconv.Itoa(i)
		m.Header.Set(jetstream.MsgIDHeader, before)
		if acks[i], err = b.JS.PublishMsgAsync(m); err != nil {
			return 0, err
		}
	}
	for _, ack := range acks {
		select {
		case a := <-ack.Ok():
			last = a.Sequence
		case err = <-ack.Err():
			return 0, b.unstored(err)
		case <-ctx.Done():
			return 0, cmp.Or(b.Full(), b.unstored(ctx.Err()))
		}
	}
	return last, nil
}

// wrongLastSequence and noPlace are codes of errors for which the library has no name. Where a
// stream has replicas, the server refuses with the first who expects a sequence while another write
// is on its way. The second says that a stream has no server to be on, as in a cluster of which not
// enough servers are there yet.
const (
	wrongLastSequence jetstream.ErrorCode = 10164
	noPlace           jetstream.ErrorCode = 10005
)

// IsConflict reports whether a compare-and-set, on a key of a bucket or a subject of a stream,
// found another revision than it expected.
func IsConflict(err error) bool {
	if errors.Is(err, jetstream.ErrKeyExists) {
		return true
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == wrongLastSequence)
}

// IsTransient reports whether an error of the bus may be gone at the next attempt: the bus is away,
// busy, or just coming up.
func IsTransient(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.Code == http.StatusServiceUnavailable || api.ErrorCode == noPlace
	}
	for _, passing := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse,
		nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrDisconnected,
	} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

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

// Deletion is the header of a message that says that a key of a bucket is gone, and itself goes
// after a time.
func Deletion(kept time.Duration) nats.Header {
	return nats.Header{proto.KVOperation: {proto.KVDelete}, jetstream.MsgTTLHeader: {kept.String()}}
}

// LastSeq is the stream's last sequence as its leader knows it now.
func LastSeq(ctx context.Context, js jetstream.JetStream, stream string) (uint64, error) {
	seq, _, err := streamEnd(ctx, js, stream)
	return seq, err
}

// streamEnd is the stream's last sequence, and when the stream was made.
func streamEnd(ctx context.Context, js jetstream.JetStream, stream string) (seq uint64, created time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	return s.CachedInfo().State.LastSeq, s.CachedInfo().Created, nil
}

// messageQuery asks JetStream for one message.
type messageQuery struct {
	Seq  uint64 `json:"seq,omitempty"`
	Last string `json:"last_by_subj,omitempty"`
	Next string `json:"next_by_subj,omitempty"` // from Seq on
}

// Last returns the last message of a subject of a stream. found is false if there is none. The
// stream's leader answers, who has every message that was acknowledged.
func Last(ctx context.Context, js jetstream.JetStream, stream, subject string) (m Message, found bool, err error) {
	return get(ctx, js, stream, messageQuery{Last: subject})
}

// Next returns the first message of a subject of a stream from a sequence on, as [Last] does.
func Next(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64) (m Message, found bool,
	err error) {
	return get(ctx, js, stream, messageQuery{Seq: from, Next: subject})
}

func get(ctx context.Context, js jetstream.JetStream, stream string, q messageQuery) (m Message, found bool,
	err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("get a message of %s: %w", stream, err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	data, err := json.Marshal(q)
	if err != nil {
		return m, false, err
	}
	prefix := strings.TrimSuffix(cmp.Or(js.Options().APIPrefix, jetstream.DefaultAPIPrefix), ".")
	reply, err := js.Conn().RequestWithContext(ctx, prefix+".STREAM.MSG.GET."+stream, data)
	if err != nil {
		return m, false, err
	}
	var a struct {
		Error   *jetstream.APIError
		Message struct {
			Subject string
			Seq     uint64
			Header  []byte `json:"hdrs"`
			Data    []byte
			Time    time.Time
		}
	}
	err = json.Unmarshal(reply.Data, &a)
	switch {
	case err != nil:
		return m, false, err
	case a.Error != nil && a.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return m, false, nil
	case a.Error != nil:
		return m, false, a.Error
	case a.Message.Seq == 0:
		return m, false, errors.New("JetStream's answer has no message")
	}
	m = Message{Seq: a.Message.Seq, Subject: a.Message.Subject, Data: a.Message.Data, Time: a.Message.Time}
	if len(a.Message.Header) > 0 {
		m.Header, err = nats.DecodeHeadersMsg(a.Message.Header)
	}
	return m, err == nil, err
}
