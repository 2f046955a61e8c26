package workqueue

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestIdle: what is not urgent comes when a worker has nothing else to do.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		took := make(chan string, 3)
		q := New(Options[string]{Workers: 1, Work: func(_ context.Context, key string) error {
			time.Sleep(time.Second)
			took <- key
			return nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- q.Run(ctx) }()
		q.Add("a")
		q.Add("b")
		synctest.Wait()
		began := time.Now()
		<-q.Idle()
		if waited := time.Since(began); waited != 2*time.Second {
			t.Errorf("a worker was idle after %v, want 2s", waited)
		}
		q.Add("idle")
		if got := <-took + <-took + <-took; got != "abidle" {
			t.Error(got)
		}
		cancel()
		<-ended
	})
}

// TestManyKeysCostNoGoroutines: a key that waits, for its time or for a worker, costs no timer and
// no goroutine.
func TestManyKeysCostNoGoroutines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(Options[int]{Workers: 1})
		before := runtime.NumGoroutine()
		for n := range 5000 {
			q.AddAt(n, time.Now().Add(time.Duration(n)*time.Second))
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 100 {
			t.Errorf("%d goroutines wait with what is due", n)
		}
		q.Drop(func(int) bool { return true })
		if n := q.Len(); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}

// TestRandomHistories: with all that is added, now or later, by any number, no key is with two
// workers at once, and each is worked on after it was last added. Nothing is left in the end.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			const keys = 5
			var mu sync.Mutex
			busy, begun, added := [keys]bool{}, [keys]time.Time{}, [keys]time.Time{}
			var source sync.Mutex
			dice := rand.New(rand.NewPCG(seed, 0))
			roll := func(n int) int {
				source.Lock()
				defer source.Unlock()
				return dice.IntN(n)
			}
			q := New(Options[int]{Workers: 3, BackOff: time.Second, MaxBackOff: time.Minute, Work: func(_ context.Context, key int) error {
				mu.Lock()
				if busy[key] {
					t.Errorf("seed %d: two workers have %d", seed, key)
				}
				busy[key], begun[key] = true, time.Now()
				mu.Unlock()
				time.Sleep(time.Duration(roll(1000)) * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				busy[key] = false
				if roll(10) == 0 {
					return errors.New("it fails")
				}
				return nil
			}})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- q.Run(ctx) }()
			var adders sync.WaitGroup
			for range 3 {
				adders.Go(func() {
					for range 100 {
						key, at := roll(keys), time.Now().Add(time.Duration(roll(5000)-1000)*time.Millisecond)
						mu.Lock()
						added[key] = time.Now()
						mu.Unlock()
						q.AddAt(key, at)
						time.Sleep(time.Duration(roll(300)) * time.Millisecond)
					}
				})
			}
			adders.Wait()
			time.Sleep(time.Hour)
			cancel()
			<-ended
			if n := q.Len(); n != 0 {
				t.Errorf("seed %d: %d keys are left", seed, n)
			}
			for key := range keys {
				if begun[key].Before(added[key]) {
					t.Errorf("seed %d: %d was added at %v and last worked on at %v", seed, key, added[key], begun[key])
				}
			}
		})
	}
}
