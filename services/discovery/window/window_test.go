package window_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/discovery/window"
)

func TestLaterChangesDoNotMoveTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{}, 1)
		signal := func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		start := time.Now()
		var ends []time.Duration
		done := make(chan error, 1)
		go func() {
			done <- window.Run(ctx, 5*time.Second, changed, func(context.Context) error {
				ends = append(ends, time.Since(start))
				return nil
			})
		}()
		signal() // opens at 0, ends at 5
		for range 4 {
			time.Sleep(time.Second)
			signal()
		}
		time.Sleep(8 * time.Second) // at 12
		signal()                    // ends at 17
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if want := []time.Duration{5 * time.Second, 17 * time.Second}; !slices.Equal(ends, want) {
			t.Fatalf("windows ended at %v, want %v", ends, want)
		}
	})
}

func TestAFailedFlushEndsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		changed := make(chan struct{}, 1)
		changed <- struct{}{}
		broken := errors.New("broken")
		if err := window.Run(t.Context(), time.Second, changed, func(context.Context) error { return broken }); !errors.Is(err, broken) {
			t.Fatalf("ended with %v", err)
		}
	})
}
