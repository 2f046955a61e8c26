package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// metaConfig is the metadata of a stream or consumer that tells which declaration it was made from,
// so that the processes of a whole deployment that start at once do not all update what is right
// already.
const metaConfig = "tendril-config"

// prepare makes everything, or waits until it is there, and looks after it from then on.
func (b *Bus) prepare(ctx context.Context, o Options, wait *waiting) error {
	provisions, fresh := o.Provisions || b.server != nil, b.server != nil
	if provisions {
		made, err := b.provision(ctx, o, wait)
		if err != nil {
			return err
		}
		fresh = fresh || made
	}
	k := keeper{bus: b, log: o.Log, provisions: provisions, durable: map[string]found{}}
	for _, name := range o.Needs {
		err := wait.until(ctx, func(ctx context.Context) error {
			stream, err := b.JS.Stream(ctx, name)
			if err != nil {
				return fmt.Errorf("look for stream %s: %w", name, err)
			}
			if !proto.Passing(name) {
				k.durable[name] = found{made: stream.CachedInfo().Created}
			}
			return nil
		}, func(err error) bool { return Passes(err) || errors.Is(err, jetstream.ErrStreamNotFound) })
		if err != nil {
			return err
		}
	}
	if fresh {
		// Nobody can hold a claim from before: there was no log, or its server ran in a process
		// that has ended.
		if err := b.settleAtOnce(ctx, wait); err != nil {
			return err
		}
	}
	b.keeping.Go(func() { k.run(b.open) })
	return nil
}

func (b *Bus) settleAtOnce(ctx context.Context, wait *waiting) error {
	return wait.until(ctx, func(ctx context.Context) error {
		era, settled, err := b.Era(ctx)
		if err != nil || settled {
			return err
		}
		return b.settle(ctx, era)
	}, Passes)
}

// provision makes or updates everything that proto declares. fresh: there was no log.
func (b *Bus) provision(ctx context.Context, o Options, wait *waiting) (fresh bool, err error) {
	patiently := func(do func(ctx context.Context) error) error {
		return wait.until(ctx, do, Passes)
	}
	// The log first: where it is missing and should not be, nothing at all is made.
	err = patiently(func(ctx context.Context) error {
		_, err := b.JS.Stream(ctx, proto.StreamEvents)
		if fresh = errors.Is(err, jetstream.ErrStreamNotFound); fresh {
			return nil
		}
		return err
	})
	if err != nil {
		return fresh, fmt.Errorf("look for the log: %w", err)
	}
	if fresh && o.NewLog != nil {
		if err := o.NewLog(); err != nil {
			return fresh, err
		}
	}
	for _, name := range proto.Retired() {
		err := patiently(func(ctx context.Context) error { return b.JS.DeleteStream(ctx, name) })
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fresh, fmt.Errorf("delete stream %s of an earlier version: %w", name, err)
		}
	}
	for _, cfg := range proto.Streams(b.sizing) {
		err := patiently(func(ctx context.Context) error { return b.ensureStream(ctx, cfg) })
		if err != nil {
			return fresh, fmt.Errorf("make stream %s: %w", cfg.Name, err)
		}
	}
	for stream, consumers := range proto.Consumers(b.sizing) {
		for _, cfg := range consumers {
			err := patiently(func(ctx context.Context) error { return b.ensureConsumer(ctx, stream, cfg) })
			if err != nil {
				return fresh, fmt.Errorf("make consumer %s of %s: %w", cfg.Durable, stream, err)
			}
		}
	}
	if err := patiently(b.makeTurn); err != nil {
		return fresh, fmt.Errorf("make the writer's turn: %w", err)
	}
	return fresh, nil
}

// makeTurn publishes the one turn message. Expecting no earlier message on its subject makes it
// once, whoever is first.
func (b *Bus) makeTurn(ctx context.Context) error {
	_, err := b.JS.Publish(ctx, proto.SubjectWriterTurn, []byte("whoever holds this message writes the log\n"),
		jetstream.WithExpectLastSequencePerSubject(0))
	if IsConflict(err) {
		return nil
	}
	return err
}

// declared is a stream's configuration with the metadata that tells which declaration it is.
func declared(cfg jetstream.StreamConfig) jetstream.StreamConfig {
	cfg.Metadata = map[string]string{metaConfig: fingerprint(cfg)}
	return cfg
}

func (b *Bus) ensureStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	before, apply := jetstream.StreamConfig{MaxConsumers: -1}, b.JS.CreateOrUpdateStream
	stream, err := b.JS.Stream(ctx, cfg.Name)
	switch {
	case err == nil:
		before, apply = stream.CachedInfo().Config, b.JS.UpdateStream
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return err
	}
	ensure := func(cfg jetstream.StreamConfig) error {
		cfg = declared(cfg)
		if before.Metadata[metaConfig] == cfg.Metadata[metaConfig] {
			return nil
		}
		if settled, ok := before.Metadata[metaSettled]; ok {
			cfg.Metadata[metaSettled] = settled
		}
		_, err := apply(ctx, cfg)
		return err
	}
	err = ensure(cfg)
	if err != nil && !Passes(err) && cfg.MaxConsumers > 0 && before.MaxConsumers != cfg.MaxConsumers {
		// The account allows fewer, or NATS is older than 2.15, which cannot change this one number
		// and does not need it. The next start tries again.
		cfg.MaxConsumers = before.MaxConsumers
		err = ensure(cfg)
	}
	return err
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

// noPlace is JetStream's error code for a stream that has no server to be on, as in a cluster of
// which not enough servers are there yet.
const noPlace = 10005

// Passes reports whether an error of the bus may be gone at the next attempt: the bus is away,
// busy, or just coming up.
func Passes(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
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
