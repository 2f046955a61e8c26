package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

const (
	// lookEvery is how often a process looks whether the streams are still there. It looks after
	// each reconnect besides.
	lookEvery   = 2 * time.Second
	lookTimeout = 4 * time.Second
	// goneFor is how long a stream of the disk must be missing before it is believed: a cluster
	// that comes up may not know of it yet.
	goneFor = 10 * time.Second
)

// keeper looks after the streams while the bus is open: a process that provisions makes those of
// the memory again that NATS has lost, and each tells when one of the disk is lost.
type keeper struct {
	bus        *Bus
	log        *slog.Logger
	provisions bool
	durable    map[string]found

	era      Era       // as it was seen last
	eraSince time.Time // when it was first seen
	told     string    // what the log was told last
}

// found is a stream of the disk that the process stands on.
type found struct {
	made time.Time
	gone time.Time // since when it is missing; zero: it is there
}

// Lost returns an error when NATS has lost a stream that was on disk, or has another one in its
// place: what this process knows is of a log that is not there any more. The process should end and
// say so, because what it serves and decides could not be made good again.
func (b *Bus) Lost() <-chan error { return b.lost }

// run looks until ctx ends.
func (k *keeper) run(ctx context.Context) {
	reconnected := k.bus.Conn.StatusChanged(nats.CONNECTED)
	defer k.bus.Conn.RemoveStatusListener(reconnected)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		k.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-reconnected:
		case <-tick.C:
		}
	}
}

func (k *keeper) look(ctx context.Context) {
	if !k.bus.Conn.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := k.lookAtDisk(ctx, time.Now()); err != nil {
		select {
		case k.bus.lost <- err:
		default:
		}
		return
	}
	if !k.provisions || k.missing() {
		return // nothing is made beside a log that is not ours
	}
	err := errors.Join(k.remake(ctx), k.settleInTime(ctx))
	why := ""
	if err != nil && ctx.Err() == nil {
		why = err.Error()
	}
	if why != "" && why != k.told {
		k.log.Warn("the streams in memory cannot be looked after; it will be tried again", "error", err)
	}
	k.told = why
}

// lookAtDisk returns an error when a stream of the disk is lost for good.
func (k *keeper) lookAtDisk(ctx context.Context, now time.Time) error {
	for name, f := range k.durable {
		stream, err := k.bus.JS.Stream(ctx, name)
		switch {
		case err == nil && !stream.CachedInfo().Created.Equal(f.made):
			return fmt.Errorf("NATS has another stream %s now: it was made at %s, the one before at %s; is NATS on its right volume? "+
				"(docs/running.md, When NATS has lost its disk)", name, stream.CachedInfo().Created.UTC().Format(time.RFC3339), f.made.UTC().Format(time.RFC3339))
		case err == nil:
			f.gone = time.Time{}
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			continue // it is not known
		case f.gone.IsZero():
			f.gone = now
		case now.Sub(f.gone) > goneFor:
			return fmt.Errorf("NATS has lost stream %s, which was on its disk; is NATS on its right volume? (docs/running.md, When NATS has lost its disk)", name)
		}
		k.durable[name] = f
	}
	return nil
}

// missing reports whether a stream of the disk is not there at this moment.
func (k *keeper) missing() bool {
	for _, f := range k.durable {
		if !f.gone.IsZero() {
			return true
		}
	}
	return false
}

// remake makes what is missing of the streams in memory, of their consumers, and the turn message.
// What is there is left as it is: a process of another version may have declared it differently.
func (k *keeper) remake(ctx context.Context) error {
	b := k.bus
	consumers := proto.Consumers(b.sizing)
	for _, cfg := range proto.Streams(b.sizing) {
		if !proto.Passing(cfg.Name) {
			continue
		}
		stream, err := b.JS.Stream(ctx, cfg.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			k.log.Warn("NATS has lost a stream that was in memory; it is made again", "stream", cfg.Name)
			stream, err = b.JS.CreateStream(ctx, declared(cfg))
			if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another replica made it
				stream, err = b.JS.Stream(ctx, cfg.Name)
			}
		}
		if err != nil {
			return fmt.Errorf("make stream %s again: %w", cfg.Name, err)
		}
		for _, consumer := range consumers[cfg.Name] {
			_, err := stream.Consumer(ctx, consumer.Durable)
			if errors.Is(err, jetstream.ErrConsumerNotFound) {
				err = b.ensureConsumer(ctx, cfg.Name, consumer)
			}
			if err != nil {
				return fmt.Errorf("make consumer %s again: %w", consumer.Durable, err)
			}
		}
		if cfg.Name == proto.StreamWriter && stream.CachedInfo().State.Msgs == 0 {
			if err := b.makeTurn(ctx); err != nil {
				return fmt.Errorf("make the writer's turn again: %w", err)
			}
		}
	}
	return nil
}

// settleInTime settles an era once every claim of the one before must have ended: WorkerTTL after
// it was first seen, which is later than it began. So workers that start after that need not wait.
func (k *keeper) settleInTime(ctx context.Context) error {
	era, settled, err := k.bus.Era(ctx)
	if err != nil {
		return err
	}
	if era != k.era {
		k.era, k.eraSince = era, time.Now()
	}
	if settled || time.Since(k.eraSince) <= k.bus.sizing.WorkerTTL {
		return nil
	}
	return k.bus.settle(ctx, era)
}
