package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// metaConfig is the metadata of a stream or consumer that tells which declaration it was made from,
// so that the processes of a whole deployment that start at once do not all update what is right
// already.
const metaConfig = "tendril-config"

// prepare makes everything, or waits until it is there, and looks at it again after each reconnect.
func (b *Bus) prepare(ctx context.Context, o Options, wait *waiting) error {
	provisions := o.Provisions || b.server != nil
	if provisions {
		if err := b.provision(ctx, o, wait); err != nil {
			return err
		}
	}
	if b.server != nil {
		// No worker outlived the server that has just started: without this, the records of a
		// killed process would keep its claims for a TTL.
		workers, err := b.JS.Stream(ctx, proto.KVStream(proto.BucketWorkers))
		if err == nil {
			err = workers.Purge(ctx)
		}
		if err != nil {
			return fmt.Errorf("remove the records of workers: %w", err)
		}
	}
	made := map[string]time.Time{}
	for _, name := range o.Needs {
		err := wait.until(ctx, func(ctx context.Context) error {
			stream, err := b.JS.Stream(ctx, name)
			if err != nil {
				return fmt.Errorf("look for stream %s: %w", name, err)
			}
			if !proto.Passing(name) {
				made[name] = stream.CachedInfo().Created
			}
			return nil
		}, func(err error) bool { return Passes(err) || errors.Is(err, jetstream.ErrStreamNotFound) })
		if err != nil {
			return err
		}
	}
	reconnected := b.Conn.StatusChanged(nats.CONNECTED)
	b.keeping.Go(func() {
		defer b.Conn.RemoveStatusListener(reconnected)
		for {
			select {
			case <-b.open.Done():
				return
			case <-reconnected:
			}
			err := b.lookAgain(o, provisions, made)
			if err != nil && b.open.Err() == nil {
				select {
				case b.lost <- err:
				default:
				}
			}
		}
	})
	return nil
}

// goneFor is how long a stream of the disk must be missing before it is believed: a cluster that
// comes up may not know of it yet.
const goneFor = 10 * time.Second

// Lost returns an error when this process cannot go on: NATS has lost a stream that was on disk, or
// has another one in its place, or the embedded server cannot write. The process should end and say
// so: what it knows is of a log that is not there any more.
func (b *Bus) Lost() <-chan error { return b.lost }

// lookAgain looks, after NATS may have been started again, whether the streams of the disk are the
// same as before. A process that provisions makes those of the memory again that NATS has lost.
func (b *Bus) lookAgain(o Options, provisions bool, made map[string]time.Time) error {
	o.Waiting = func(string) {}
	wait, began := newWaiting(o), time.Now()
	for name, before := range made {
		err := wait.until(b.open, func(ctx context.Context) error {
			stream, err := b.JS.Stream(ctx, name)
			switch {
			case errors.Is(err, jetstream.ErrStreamNotFound):
				return fmt.Errorf("NATS has lost stream %s, which was on its disk; is NATS on its right volume? (docs/running.md, When NATS has lost its disk): %w", name, err)
			case err != nil:
				return err
			}
			if now := stream.CachedInfo().Created; !now.Equal(before) {
				return fmt.Errorf("NATS has another stream %s now: it was made at %s, the one before at %s; is NATS on its right volume? "+
					"(docs/running.md, When NATS has lost its disk)", name, now.UTC().Format(time.RFC3339), before.UTC().Format(time.RFC3339))
			}
			return nil
		}, func(err error) bool {
			return Passes(err) || errors.Is(err, jetstream.ErrStreamNotFound) && time.Since(began) < goneFor
		})
		if err != nil {
			return err
		}
	}
	if !provisions {
		return nil
	}
	return b.provision(b.open, o, wait)
}

// provision makes or updates everything that proto declares.
func (b *Bus) provision(ctx context.Context, o Options, wait *waiting) error {
	patiently := func(what string, do func(ctx context.Context) error) error {
		if err := wait.until(ctx, do, Passes); err != nil {
			return fmt.Errorf("make %s: %w", what, err)
		}
		return nil
	}
	// The log first: where it is missing and should not be, nothing at all is made.
	fresh := false
	err := patiently("the log", func(ctx context.Context) error {
		_, err := b.JS.Stream(ctx, proto.StreamEvents)
		if fresh = errors.Is(err, jetstream.ErrStreamNotFound); fresh {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if fresh && o.NewLog != nil {
		if err := o.NewLog(); err != nil {
			return err
		}
	}
	for _, cfg := range proto.Streams(b.sizing) {
		if err := patiently("stream "+cfg.Name, func(ctx context.Context) error { return b.ensureStream(ctx, cfg) }); err != nil {
			return err
		}
	}
	for stream, consumers := range proto.Consumers(b.sizing) {
		for _, cfg := range consumers {
			err := patiently("consumer "+cfg.Durable+" of "+stream, func(ctx context.Context) error { return b.ensureConsumer(ctx, stream, cfg) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// declared is a stream's configuration with the metadata that tells which declaration it is.
func declared(cfg jetstream.StreamConfig) jetstream.StreamConfig {
	cfg.Metadata = map[string]string{metaConfig: fingerprint(cfg)}
	return cfg
}

func (b *Bus) ensureStream(ctx context.Context, cfg jetstream.StreamConfig) error {
	cfg = declared(cfg)
	stream, err := b.JS.Stream(ctx, cfg.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		_, err = b.JS.CreateOrUpdateStream(ctx, cfg)
	case err == nil && stream.CachedInfo().Config.Metadata[metaConfig] != cfg.Metadata[metaConfig]:
		_, err = b.JS.UpdateStream(ctx, cfg)
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
