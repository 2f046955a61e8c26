package bus_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/bus"
)

// TestWaitFor: each wait is ended by the advance that reaches its sequence, and by none before.
func TestWaitFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p bus.Progress
		began := time.Now()
		for _, want := range []uint64{0, 1, 3, 7} {
			go func() {
				if err := p.WaitFor(t.Context(), want); err != nil || p.Seq() < want {
					t.Errorf("waited for %d: at %d, %v", want, p.Seq(), err)
				}
				if waited := time.Since(began); waited > time.Duration(want)*time.Second {
					t.Errorf("waited %v for %d", waited, want)
				}
			}()
		}
		for seq := range uint64(8) {
			if moved := p.Advance(seq); moved != (seq > 0) {
				t.Errorf("moved to %d: %v", seq, moved)
			}
			synctest.Wait()
			time.Sleep(time.Second)
		}
		if p.Advance(3) || p.Seq() != 7 {
			t.Errorf("went back to %d", p.Seq())
		}
	})
}

// TestWaitEnds: the end of the waiting says why.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p bus.Progress
		why := errors.New("why")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, why)
		defer cancel()
		if err := p.WaitFor(ctx, 1); !errors.Is(err, why) {
			t.Errorf("ended with %v", err)
		}
	})
}
