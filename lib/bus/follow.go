package bus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

// Reading says what to follow.
type Reading struct {
	Stream      string
	Filters     []string // subjects; none: all
	HeadersOnly bool     // leave the data away
}

// prefetch is how many messages are asked for at once.
const prefetch = 1000

// Follow hands every message of a stream to read, in order, from the first on and then as they come, until ctx ends. It gives nil then.
func Follow(ctx context.Context, js jetstream.JetStream, r Reading, log *slog.Logger, read func(Message)) error {
	consumer, err := js.OrderedConsumer(ctx, r.Stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy, FilterSubjects: r.Filters, HeadersOnly: r.HeadersOnly,
	})
	if err != nil {
		return fmt.Errorf("follow stream %s: %w", r.Stream, err)
	}
	consume, err := consumer.Consume(func(m jetstream.Msg) {
		meta, err := m.Metadata()
		if err != nil {
			log.Warn("message without metadata", "stream", r.Stream, "error", err)
			return
		}
		read(Message{
			Seq: meta.Sequence.Stream, Subject: m.Subject(), Header: m.Headers(), Data: m.Data(), Time: meta.Timestamp, Pending: meta.NumPending,
		})
	}, jetstream.PullMaxMessages(prefetch), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		// The consumer makes itself anew after whatever this is; it begins where it was.
		log.Debug("following a stream", "stream", r.Stream, "error", err)
	}))
	if err != nil {
		return fmt.Errorf("follow stream %s: %w", r.Stream, err)
	}
	<-ctx.Done()
	consume.Stop()
	<-consume.Closed()
	return nil
}
