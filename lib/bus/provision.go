package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/backoff"
	"tendril.dev/proto"
)

const (
	// goneFor is how long a stream of the disk must be missing before it is believed: a cluster
	// that comes up may not know of it yet.
	goneFor = 10 * time.Second
	// startPatience bounds making everything where the start must not wait as long as it takes; a
	// cluster that is just coming up takes its time.
	startPatience  = 2 * time.Minute
	attemptTimeout = 15 * time.Second
	attemptPause   = 500 * time.Millisecond
	// tellAfter is how long the start waits before the log is told what for, and tellAgain how long
	// until it is told again.
	tellAfter = 5 * time.Second
	tellAgain = time.Minute
)

// waiting is a start that waits until the bus is as it must be.
type waiting struct {
	tell     func(what string) // see Options.Waiting
	log      *slog.Logger
	deadline time.Time // zero: it waits as long as it takes
	next     time.Time // when the log is told
}

func newWaiting(o Options) *waiting {
	w := &waiting{tell: o.Waiting, log: o.Log, next: time.Now().Add(tellAfter)}
	if w.tell == nil {
		w.tell, w.deadline = func(string) {}, time.Now().Add(startPatience)
	}
	return w
}

// until tries again until do succeeds, fails with an error that does not pass, or ctx ends. Unless
// it waits as long as it takes, it gives up in time with the last error.
func (w *waiting) until(ctx context.Context, do func(ctx context.Context) error, passes func(error) bool) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := do(attempt)
		cancel()
		switch now := time.Now(); {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !passes(err), !w.deadline.IsZero() && now.After(w.deadline):
			return err
		case now.After(w.next):
			w.next = now.Add(tellAgain)
			w.log.Warn("waiting for the bus", "error", err)
		}
		w.tell(err.Error())
		if err := backoff.Sleep(ctx, attemptPause); err != nil {
			return err
		}
	}
}

// prepare makes everything, or waits until it is there, and looks at it again after each reconnect.
func (b *Bus) prepare(ctx context.Context, o Options, wait *waiting) error {
	provisions := o.Provisions || b.server != nil
	if provisions {
		if err := b.provision(ctx, o, wait); err != nil {
			return err
		}
	}
	made := map[string]time.Time{}
	for _, name := range o.Needs {
		err := wait.until(ctx, func(ctx context.Context) error {
			stream, err := b.JS.Stream(ctx, name)
			if err != nil {
				return fmt.Errorf("look for stream %s: %w", name, err)
			}
			if !proto.IsCandidateStream(name) {
				made[name] = stream.CachedInfo().Created
			}
			return nil
		}, func(err error) bool { return IsTransient(err) || errors.Is(err, jetstream.ErrStreamNotFound) })
		if err != nil {
			return err
		}
	}
	o.Waiting = func(string) {} // from now on as long as it takes
	reconnected := b.Conn.StatusChanged(nats.CONNECTED)
	b.keeping.Go(func() {
		defer b.Conn.RemoveStatusListener(reconnected)
		for {
			select {
			case <-b.open.Done():
				return
			case <-reconnected:
			}
			err := b.lookAgain(newWaiting(o), made)
			if err == nil && provisions {
				err = b.provision(b.open, o, newWaiting(o))
			}
			if len(reconnected) > 0 {
				continue // NATS was started again meanwhile, and has lost its streams in memory again
			}
			if err != nil && b.open.Err() == nil {
				b.lose(err)
			}
		}
	})
	return nil
}

// lookAgain looks, after NATS may have been started again, whether the streams of the disk are the
// same as before.
func (b *Bus) lookAgain(wait *waiting, made map[string]time.Time) error {
	const hint = "is NATS on its right volume? (docs/running.md, When NATS has lost its disk)"
	began := time.Now()
	for name, before := range made {
		err := wait.until(b.open, func(ctx context.Context) error {
			stream, err := b.JS.Stream(ctx, name)
			switch {
			case errors.Is(err, jetstream.ErrStreamNotFound):
				return fmt.Errorf("NATS has lost stream %s, which was on its disk; "+hint+": %w", name, err)
			case err != nil:
				return err
			}
			if now := stream.CachedInfo().Created; !now.Equal(before) {
				return fmt.Errorf("NATS has another stream %s now: it was made at %s, the one before at %s; "+hint,
					name, now.UTC().Format(time.RFC3339), before.UTC().Format(time.RFC3339))
			}
			return nil
		}, func(err error) bool {
			return IsTransient(err) || errors.Is(err, jetstream.ErrStreamNotFound) && time.Since(began) < goneFor
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// provision makes or updates everything that proto declares.
func (b *Bus) provision(ctx context.Context, o Options, wait *waiting) error {
	patiently := func(what string, do func(ctx context.Context) error) error {
		if err := wait.until(ctx, do, IsTransient); err != nil {
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
	// To make again what is there as it is declared changes nothing.
	for _, cfg := range proto.Streams(b.sizing) {
		err := patiently("stream "+cfg.Name, func(ctx context.Context) error {
			_, err := b.JS.CreateStream(ctx, cfg)
			if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // with another declaration
				_, err = b.JS.UpdateStream(ctx, cfg)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for stream, cfg := range proto.Consumers(b.sizing) {
		err := patiently("the consumer of "+stream, func(ctx context.Context) error {
			_, err := b.JS.CreateOrUpdateConsumer(ctx, stream, cfg)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
