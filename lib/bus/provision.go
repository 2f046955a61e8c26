package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

const (
	// provisionTimeout bounds making everything; a cluster that is just coming up takes its time.
	provisionTimeout = 2 * time.Minute
	attemptTimeout   = 15 * time.Second
	attemptPause     = 500 * time.Millisecond
	// metaConfig is the metadata of a stream or consumer that tells which declaration it was made from, so that the processes of a whole
	// deployment that start at once do not all update what is right already.
	metaConfig = "tendril-config"
)

// provision makes or updates everything that proto declares, and remembers which memory streams it found.
func (b *Bus) provision(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, provisionTimeout)
	defer cancel()
	for _, name := range proto.Retired() {
		err := patiently(ctx, func(ctx context.Context) error { return b.JS.DeleteStream(ctx, name) })
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("delete stream %s of an earlier version: %w", name, err)
		}
	}
	for _, cfg := range proto.Streams(b.sizing) {
		err := patiently(ctx, func(ctx context.Context) error { return b.ensureStream(ctx, cfg) })
		if err != nil {
			return fmt.Errorf("make stream %s: %w", cfg.Name, err)
		}
	}
	for stream, consumers := range proto.Consumers(b.sizing) {
		for _, cfg := range consumers {
			err := patiently(ctx, func(ctx context.Context) error { return b.ensureConsumer(ctx, stream, cfg) })
			if err != nil {
				return fmt.Errorf("make consumer %s of %s: %w", cfg.Durable, stream, err)
			}
		}
	}
	err := patiently(ctx, func(ctx context.Context) error {
		// The one turn message: expecting no earlier message on its subject makes it once, whoever is first.
		_, err := b.JS.Publish(ctx, proto.SubjectWriterTurn, []byte("whoever holds this message writes the log\n"),
			jetstream.WithExpectLastSequencePerSubject(0))
		if IsConflict(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("make the writer's turn: %w", err)
	}
	return nil
}

func (b *Bus) ensureStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	cfg.Metadata = map[string]string{metaConfig: fingerprint(cfg)}
	stream, err := b.JS.Stream(ctx, cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) || err == nil && stream.CachedInfo().Config.Metadata[metaConfig] != cfg.Metadata[metaConfig] {
		stream, err = b.JS.CreateOrUpdateStream(ctx, cfg)
	}
	if err != nil {
		return err
	}
	if cfg.Storage == jetstream.MemoryStorage {
		b.mu.Lock()
		b.memory[cfg.Name] = stream.CachedInfo().Created
		b.mu.Unlock()
	}
	return nil
}

func (b *Bus) ensureConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) error {
	cfg.Metadata = map[string]string{metaConfig: fingerprint(cfg)}
	consumer, err := b.JS.Consumer(ctx, stream, cfg.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || err == nil && consumer.CachedInfo().Config.Metadata[metaConfig] != cfg.Metadata[metaConfig] {
		_, err = b.JS.CreateOrUpdateConsumer(ctx, stream, cfg)
	}
	return err
}

// fingerprint tells one declaration from another.
func fingerprint(cfg any) string {
	data, err := json.Marshal(cfg)
	if err != nil {
		panic(err) // declarations are ours
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// patiently tries again what a cluster that is busy or just coming up could not do in time, until ctx ends.
func patiently(ctx context.Context, do func(ctx context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := do(attempt)
		cancel()
		if err == nil || !passes(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(attemptPause):
		}
	}
}

// passes reports whether an error may be gone at the next attempt.
func passes(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.Code == http.StatusServiceUnavailable
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// Lost gives an error when the bus has forgotten what lives in its memory: a single NATS server that was started anew has no claims, no candidates
// and no writer's turn any more, and followers of these streams would wait for sequences that never come. The process should end and begin again.
func (b *Bus) Lost() <-chan error { return b.lost }

// checkMemory looks, after a reconnect, whether the memory streams are still the ones that were found at the start.
func (b *Bus) checkMemory(ctx context.Context) {
	b.mu.Lock()
	memory := maps.Clone(b.memory)
	b.mu.Unlock()
	for name, created := range memory {
		err := patiently(ctx, func(ctx context.Context) error {
			stream, err := b.JS.Stream(ctx, name)
			if err == nil && !stream.CachedInfo().Created.Equal(created) {
				err = errors.New("it was made anew")
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			select {
			case b.lost <- fmt.Errorf("the bus was started anew and has lost stream %s: %w", name, err):
			default:
			}
			return
		}
	}
}
