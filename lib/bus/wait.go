package bus

import (
	"context"
	"log/slog"
	"time"
)

const (
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
	endless  bool              // it waits as long as it takes
	tell     func(what string) // see Options.Waiting
	log      *slog.Logger
	deadline time.Time // of a start that is not endless
	next     time.Time // when the log is told
	told     string
}

func newWaiting(o Options) *waiting {
	w := &waiting{endless: o.Waiting != nil, tell: o.Waiting, log: o.Log, deadline: time.Now().Add(startPatience), next: time.Now().Add(tellAfter)}
	if !w.endless {
		w.tell = func(string) {}
	}
	return w
}

// until tries again until do succeeds, fails with an error that does not pass, or ctx ends. Unless
// the start is endless, it gives up in time with the last error.
func (w *waiting) until(ctx context.Context, do func(ctx context.Context) error, passes func(error) bool) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := do(attempt)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !passes(err), !w.endless && time.Now().After(w.deadline):
			return err
		}
		w.note(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(attemptPause):
		}
	}
}

// note tells what the start waits for.
func (w *waiting) note(err error) {
	if why := err.Error(); why != w.told {
		w.told = why
		w.tell(why)
	}
	if now := time.Now(); now.After(w.next) {
		w.next = now.Add(tellAgain)
		w.log.Warn("waiting for the bus", "error", err)
	}
}

// over says that the start waits no longer.
func (w *waiting) over() { w.tell("") }
