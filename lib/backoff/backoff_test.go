package backoff_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/backoff"
)

// TestAfter: each wait is twice the one before, up to the longest, however many failures there are.
func TestAfter(t *testing.T) {
	t.Parallel()
	const most = time.Duration(math.MaxInt64)
	for _, c := range []struct {
		failures             int
		first, longest, want time.Duration
	}{
		{-1, time.Second, time.Minute, 0},
		{0, time.Second, time.Minute, 0},
		{1, time.Second, time.Minute, time.Second},
		{2, time.Second, time.Minute, 2 * time.Second},
		{6, time.Second, time.Minute, 32 * time.Second},
		{7, time.Second, time.Minute, time.Minute},
		{math.MaxInt, time.Second, time.Minute, time.Minute},
		{math.MaxInt, 1, most, most},
		{3, time.Hour, time.Minute, time.Minute},
		{math.MaxInt, 0, time.Minute, 0},
	} {
		if got := backoff.After(c.failures, c.first, c.longest); got != c.want {
			t.Errorf("after %d failures, first %s, longest %s: %s, want %s", c.failures, c.first, c.longest, got, c.want)
		}
	}
}

// TestSleepEndsWithItsContext, and says why.
func TestSleepEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, over := time.Now(), errors.New("over")
		if err := backoff.Sleep(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("slept %s: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(over) })
		if err := backoff.Sleep(ctx, time.Hour); !errors.Is(err, over) {
			t.Errorf("the end of its context: %v", err)
		}
	})
}
