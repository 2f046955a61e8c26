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
	// Idle is called whenever everything was read that is there. No other function is called
	// meanwhile. nil: nobody wants to know.
	Idle func()
}

// prefetch and prefetchBytes are how many messages are asked for at once.
const (
	prefetch      = 1000
	prefetchBytes = 4 << 20
)

// followPause is the wait before it is tried again to begin to follow a stream.
const followPause = 500 * time.Millisecond

// Follow hands every message of a stream to read, in order, from the first on (or from where r
// says) and then as they come, until ctx ends. While the bus is away or has no such stream it tries
// again; so it does not fail. It must be ended when the stream is replaced by another of the same
// name.
func Follow(ctx context.Context, js jetstream.JetStream, r Reading, log *slog.Logger, read func(Message)) error {
	f, told := &follower{Reading: r, log: log, read: read}, false
	for {
		end, err := f.begin(ctx, js)
		if err == nil {
			<-ctx.Done()
			end()
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errCrowded) && !told {
			told = true
			log.Warn("a stream cannot be followed: the limits of the NATS server or account allow no more consumers", "stream", r.Stream, "subjects", r.Filters)
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

	mu    sync.Mutex // held while read, Read or Idle runs
	at    delivery
	quiet *time.Timer // runs while the server has announced more than came; nil: it never did
}

// config is that of a consumer.
func (f *follower) config() jetstream.OrderedConsumerConfig {
	cfg := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy, FilterSubjects: f.Filters, HeadersOnly: f.HeadersOnly}
	if f.After > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.After+1
	}
	return cfg
}

// begin begins to follow; what it gives ends that.
func (f *follower) begin(ctx context.Context, js jetstream.JetStream) (end func(), err error) {
	consumer, err := js.OrderedConsumer(ctx, f.Stream, f.config())
	if err != nil {
		return nil, fmt.Errorf("follow stream %s: %w", f.Stream, err)
	}
	if consumer.CachedInfo().NumPending == 0 {
		f.mu.Lock()
		f.allRead()
		f.mu.Unlock()
	}
	take := func(m jetstream.Msg) { f.take(ctx, consumer, m) }
	consume, err := consumer.Consume(take, jetstream.PullMaxMessagesWithBytesLimit(prefetch, prefetchBytes),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			// The consumer makes itself anew after whatever this is; it begins where it was.
			f.log.Debug("following a stream", "stream", f.Stream, "error", err)
		}))
	if err != nil {
		return nil, fmt.Errorf("follow stream %s: %w", f.Stream, err)
	}
	return func() {
		consume.Stop()
		<-consume.Closed()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.quiet != nil {
			f.quiet.Stop()
		}
	}, nil
}

func (f *follower) take(ctx context.Context, consumer jetstream.Consumer, m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		f.log.Warn("message without metadata", "stream", f.Stream, "error", err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read(messageOf(m, meta))
	f.at = deliveryOf(meta)
	switch {
	case meta.NumPending == 0:
		if f.quiet != nil {
			f.quiet.Stop()
		}
		f.allRead()
	case f.quiet == nil:
		f.quiet = time.AfterFunc(quietFor, func() { f.ask(ctx, consumer) })
	default:
		f.quiet.Reset(quietFor)
	}
}

// ask asks whether there is more to read when none of it came for a while.
func (f *follower) ask(ctx context.Context, consumer jetstream.Consumer) {
	f.mu.Lock()
	at := f.at
	f.mu.Unlock()
	// A consumer that is lost makes itself anew when its heartbeats are missed.
	over, _ := at.last(ctx, consumer)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case ctx.Err() != nil || f.at != at:
	case over:
		f.allRead()
	default:
		f.quiet.Reset(quietFor)
	}
}

func messageOf(m jetstream.Msg, meta *jetstream.MsgMetadata) Message {
	return Message{
		Seq: meta.Sequence.Stream, Subject: m.Subject(), Header: m.Headers(), Data: m.Data(), Time: meta.Timestamp, Pending: meta.NumPending,
	}
}

// allRead tells that everything was read that is there; f.mu is held.
func (f *follower) allRead() {
	if f.Read != nil {
		f.once.Do(f.Read)
	}
	if f.Idle != nil {
		f.Idle()
	}
}
