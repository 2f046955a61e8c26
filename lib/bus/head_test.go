package bus

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestHeadIsAskedForEverybodyTogether: many who want to know at once are two questions, and none
// gets an answer to one that was asked before.
func TestHeadIsAskedForEverybodyTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), 0
		h := &Head{ask: func(context.Context) (uint64, error) {
			asked++
			at := time.Since(began)
			time.Sleep(10 * time.Millisecond)
			return uint64(at / time.Millisecond), nil
		}}
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				time.Sleep(time.Duration(i%5) * time.Millisecond)
				came := time.Since(began)
				if seq, err := h.Last(t.Context()); err != nil || seq < uint64(came/time.Millisecond) {
					t.Errorf("who came after %v was told what was true after %d ms (%v)", came, seq, err)
				}
			})
		}
		all.Wait()
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestHeadWhileTheBusIsAway: nobody waits for ever, and the next one asks again.
func TestHeadWhileTheBusIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &Head{ask: func(ctx context.Context) (uint64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		for range 2 {
			began := time.Now()
			if _, err := h.Last(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != headTimeout {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.Last(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		time.Sleep(headTimeout)
	})
}
