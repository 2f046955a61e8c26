package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// quietFor is how long no message may come, though the server has announced more, before it is
// asked what is left: those that it announced may have left the stream before they were sent.
const quietFor = 300 * time.Millisecond

// mostUnanswered is how many questions in a row about what is left may find no answer, while no
// message comes, before another consumer reads on.
const mostUnanswered = 3

// errLost: the consumer is gone, with the server that had it, or cannot be reached.
var errLost = errors.New("its consumer is lost")

// Read hands every message to read that the stream has of some subjects, in order, and returns when
// that was all. Reading.Read and Reading.Idle are not used. Where NATS loses the consumer another
// one reads on; the error says that none could be made.
func Read(ctx context.Context, js jetstream.JetStream, r Reading, read func(Message)) error {
	for {
		err := readOn(ctx, js, r, func(m Message) {
			r.After = m.Seq
			read(m)
		})
		if !errors.Is(err, errLost) {
			return err
		}
	}
}

// readOn reads with one consumer.
func readOn(ctx context.Context, js jetstream.JetStream, r Reading, read func(Message)) error {
	f := &follower{Reading: r}
	consumer, err := js.OrderedConsumer(ctx, r.Stream, f.config())
	if err != nil {
		return fmt.Errorf("read stream %s: %w", r.Stream, err)
	}
	if consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(prefetch, prefetchBytes))
	if err != nil {
		return fmt.Errorf("read stream %s: %w", r.Stream, err)
	}
	defer messages.Stop()
	// Only Stop ends the wait for a server that is away.
	defer context.AfterFunc(ctx, messages.Stop)()
	unanswered := 0
	for at := (delivery{}); ; {
		// So short a wait keeps the client from missing the heartbeats of a consumer that is lost.
		m, err := messages.Next(jetstream.NextMaxWait(quietFor))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, nats.ErrTimeout):
			over, err := at.last(ctx, consumer)
			switch {
			case over:
				return nil
			case err == nil:
				unanswered = 0
			case errors.Is(err, jetstream.ErrConsumerNotFound):
				return errLost
			default:
				if unanswered++; unanswered == mostUnanswered {
					return errLost
				}
			}
			continue
		case err != nil:
			return fmt.Errorf("read stream %s: %w", r.Stream, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read stream %s: %w", r.Stream, err)
		}
		unanswered = 0
		read(messageOf(m, meta))
		if at = deliveryOf(meta); at.announced == 0 {
			return nil
		}
	}
}

// delivery is which message of a consumer came last.
type delivery struct {
	consumer  string
	seq       uint64 // among those of the consumer
	announced uint64 // messages that were behind it when it was sent
}

func deliveryOf(meta *jetstream.MsgMetadata) delivery {
	return delivery{meta.Consumer, meta.Sequence.Consumer, meta.NumPending}
}

// last asks the server whether nothing is behind the message, and nothing on its way.
func (d delivery) last(ctx context.Context, consumer jetstream.Consumer) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, headTimeout)
	defer cancel()
	info, err := consumer.Info(ctx)
	switch {
	case err != nil:
		return false, fmt.Errorf("ask what is left: %w", err)
	case info.NumPending > 0:
		return false, nil
	case info.Name != d.consumer: // it was made anew meanwhile, behind the message
		return info.Delivered.Consumer == 0, nil
	}
	return info.Delivered.Consumer == d.seq, nil
}
