package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// Message is one message of a stream that is followed.
type Message struct {
	Seq     uint64
	Subject string
	Header  nats.Header
	Data    []byte
	Time    time.Time // when the stream stored it
	Pending uint64    // how many are behind it, as the stream stood when it was sent
}

// Deletes reports whether a message of a bucket's stream says that its key is gone: deleted, purged
// or expired.
func (m Message) Deletes() bool {
	return m.Header.Get(proto.KVOperation) != "" || m.Header.Get(jetstream.MarkerReasonHeader) != ""
}

// Reading says what to follow.
type Reading struct {
	Stream      string
	Filters     []string // subjects; none: all
	HeadersOnly bool     // leave the data away
	After       uint64   // begin behind this sequence; 0: with the first message
	// Read is called once, when everything was read that was there at the beginning. nil: nobody
	// wants to know.
	Read func()
}

// prefetch is how many messages are asked for at once.
const prefetch = 1000

// followPause is the wait before it is tried again to begin to follow a stream.
const followPause = 500 * time.Millisecond

// Follow hands every message of a stream to read, in order, from the first on (or from where r
// says) and then as they come, until ctx ends. While the bus is away or has no such stream it tries
// again; so it does not fail. It must be ended when the stream is replaced by another of the same
// name.
func Follow(ctx context.Context, js jetstream.JetStream, r Reading, log *slog.Logger, read func(Message)) error {
	f, told := &follower{Reading: r, log: log, read: read}, false
	for {
		consume, err := f.begin(ctx, js)
		if err == nil {
			<-ctx.Done()
			consume.Stop()
			<-consume.Closed()
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errCrowded) && !told {
			told = true
			log.Warn("a stream cannot be followed: NATS lets it have no more consumers, which limits of the NATS server or account say", "stream", r.Stream, "subjects", r.Filters)
		}
		log.Debug("a stream cannot be followed yet", "stream", r.Stream, "error", err)
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// errCrowded is JetStream's answer where a stream has as many consumers as it may.
var errCrowded = &jetstream.APIError{ErrorCode: 10026}

// follower follows one stream.
type follower struct {
	Reading
	log  *slog.Logger
	read func(Message)
	once sync.Once // for Reading.Read
}

func (f *follower) begin(ctx context.Context, js jetstream.JetStream) (jetstream.ConsumeContext, error) {
	cfg := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy, FilterSubjects: f.Filters, HeadersOnly: f.HeadersOnly}
	if f.After > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.After+1
	}
	consumer, err := js.OrderedConsumer(ctx, f.Stream, cfg)
	if err != nil {
		return nil, fmt.Errorf("follow stream %s: %w", f.Stream, err)
	}
	if consumer.CachedInfo().NumPending == 0 {
		f.allRead()
	}
	consume, err := consumer.Consume(f.take, jetstream.PullMaxMessages(prefetch),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			// The consumer makes itself anew after whatever this is; it begins where it was.
			f.log.Debug("following a stream", "stream", f.Stream, "error", err)
		}))
	if err != nil {
		return nil, fmt.Errorf("follow stream %s: %w", f.Stream, err)
	}
	return consume, nil
}

func (f *follower) take(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		f.log.Warn("message without metadata", "stream", f.Stream, "error", err)
		return
	}
	f.read(Message{
		Seq: meta.Sequence.Stream, Subject: m.Subject(), Header: m.Headers(), Data: m.Data(), Time: meta.Timestamp, Pending: meta.NumPending,
	})
	if meta.NumPending == 0 {
		f.allRead()
	}
}

func (f *follower) allRead() {
	if f.Read != nil {
		f.once.Do(f.Read)
	}
}
