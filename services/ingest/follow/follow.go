// Package follow reads a stream from its start and goes on as it grows: how the held events and the rejected ids, which live in
// memory, come to be and stay in step.
package follow

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is one message of a stream.
type Message struct {
	Seq     uint64
	Subject string
	Header  nats.Header
	Data    []byte
	Time    time.Time // when the stream stored it
}

// prefetch is how many messages are asked for at once.
const prefetch = 1000

// Stream hands every message of a stream to read, in order, until ctx ends. It gives nil then.
func Stream(ctx context.Context, js jetstream.JetStream, name string, log *slog.Logger, read func(Message)) error {
	consumer, err := js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return fmt.Errorf("follow stream %s: %w", name, err)
	}
	consume, err := consumer.Consume(func(m jetstream.Msg) {
		meta, err := m.Metadata()
		if err != nil {
			log.Warn("message without metadata", "stream", name, "error", err)
			return
		}
		read(Message{Seq: meta.Sequence.Stream, Subject: m.Subject(), Header: m.Headers(), Data: m.Data(), Time: meta.Timestamp})
	}, jetstream.PullMaxMessages(prefetch), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		// The consumer makes itself anew after whatever this is; it begins where it was.
		log.Debug("following a stream", "stream", name, "error", err)
	}))
	if err != nil {
		return fmt.Errorf("follow stream %s: %w", name, err)
	}
	<-ctx.Done()
	consume.Stop()
	<-consume.Closed()
	return nil
}
