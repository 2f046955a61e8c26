// Package backoff has the rule by which everything waits that tries again after a failure.
package backoff

import (
	"context"
	"time"
)

// After is the wait after so many failures in a row: first after one, twice as long after each
// further one, at most longest. Without a failure there is no wait.
func After(failures int, first, longest time.Duration) time.Duration {
	if failures <= 0 {
		return 0
	}
	wait := min(first, longest)
	for range failures - 1 {
		if wait > longest/2 {
			return longest
		}
		if wait *= 2; wait <= 0 {
			return 0
		}
	}
	return wait
}

// Sleep waits for d, or until ctx ends. It returns the cause of that end, nil after d.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Retry calls try until it succeeds or ctx ends, and waits after each failure. failed hears why.
func Retry(ctx context.Context, first, longest time.Duration, try func() error, failed func(error)) {
	for failures := 1; ; failures++ {
		err := try()
		if err == nil {
			return
		}
		failed(err)
		if Sleep(ctx, After(failures, first, longest)) != nil {
			return
		}
	}
}
