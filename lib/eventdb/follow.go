package eventdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
)

// followBatch is the most messages of the log that are applied at once.
const followBatch = 500

// retryFollow is the pause before a broken follow is taken up again.
const retryFollow = time.Second

// Bind makes sure that the index belongs to the log that js has now: an index of another log, or of a later state of this one, is dropped
// and starts from nothing. Call it before the index is used.
func Bind(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	stream, err := js.Stream(ctx, proto.StreamEvents)
	if err != nil {
		return fmt.Errorf("look at the log: %w", err)
	}
	info := stream.CachedInfo()
	identity := info.Created.UTC().Format(time.RFC3339Nano)
	known, err := db.logIdentity()
	if err != nil {
		return err
	}
	if known == identity && db.Seq() <= info.State.LastSeq {
		return nil
	}
	if known != "" {
		log.Warn("the event index is of another log and is made anew", "index_seq", db.Seq(), "log_seq", info.State.LastSeq)
	}
	return db.reset(identity)
}

// Follow applies the log from where the index stands, and then follows it until ctx ends. A broken connection to the bus is taken up
// again; other errors end it.
func Follow(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	if err := Bind(ctx, js, db, log); err != nil {
		return err
	}
	for {
		err := followOnce(ctx, js, db, log)
		if ctx.Err() != nil {
			return nil
		}
		var broken *indexError
		if errors.As(err, &broken) {
			return err
		}
		log.Warn("following the log broke off, trying again", "error", err)
		select {
		case <-time.After(retryFollow):
		case <-ctx.Done():
			return nil
		}
	}
}

// indexError is a failure of the index itself, which no new connection mends.
type indexError struct{ err error }

func (e *indexError) Error() string { return e.err.Error() }
func (e *indexError) Unwrap() error { return e.err }

func followOnce(ctx context.Context, js jetstream.JetStream, db *DB, log *slog.Logger) error {
	consumer, err := js.OrderedConsumer(ctx, proto.StreamEvents, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   db.Seq() + 1,
	})
	if err != nil {
		return fmt.Errorf("open log consumer: %w", err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(2 * followBatch))
	if err != nil {
		return fmt.Errorf("open log consumer: %w", err)
	}
	defer messages.Stop()
	for {
		recs, head, err := nextBatch(ctx, messages, log)
		if err != nil {
			return err
		}
		if err := db.Apply(recs); err != nil {
			return &indexError{err}
		}
		if err := db.Advance(head); err != nil {
			return &indexError{err}
		}
	}
}

// nextBatch waits for a message and takes with it what the server has ready, up to followBatch.
func nextBatch(ctx context.Context, messages jetstream.MessagesContext, log *slog.Logger) (recs []Record, head uint64, err error) {
	for pending := uint64(1); pending > 0 && len(recs) < followBatch; {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, 0, fmt.Errorf("read the log: %w", err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return nil, 0, fmt.Errorf("read the log: %w", err)
		}
		pending, head = meta.NumPending, meta.Sequence.Stream
		if _, err := proto.ParseEventSubject(msg.Subject()); err != nil {
			continue // a writer's mark
		}
		ev := new(nostr.Event)
		if err := ev.UnmarshalJSON(msg.Data()); err != nil {
			// Ingest wrote it, so this is a bug somewhere; but one bad message must not stop every index there is.
			log.Error("the log holds a message that is no event", "seq", head, "subject", msg.Subject(), "error", err)
			continue
		}
		recs = append(recs, Record{Seq: head, Event: ev, Raw: msg.Data()})
	}
	return recs, head, nil
}
