package purgatory

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestQueue: a key comes when its time has come, once however often it was added, by one worker at
// a time, and again if it was added while it was worked on.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, began := newQueue(), time.Now()
		var mu sync.Mutex
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		var workers sync.WaitGroup
		for range 3 {
			workers.Go(func() {
				for {
					key, ok := q.next(ctx)
					if !ok {
						return
					}
					mu.Lock()
					got = append(got, key+" "+time.Since(began).String())
					mu.Unlock()
					time.Sleep(time.Second)
					q.done(key)
				}
			})
		}
		for range 3 {
			q.add("x")
		}
		q.addAt("x", began.Add(time.Minute))
		q.addAt("y", began.Add(10*time.Second))
		q.addAt("y", began.Add(5*time.Second))
		time.Sleep(500 * time.Millisecond)
		q.add("x") // while it is worked on
		q.add("x")
		time.Sleep(time.Hour)
		cancel()
		workers.Wait()
		if want := []string{"x 0s", "x 1s", "y 5s", "y 10s", "x 1m0s"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if len(q.items) != 0 {
			t.Errorf("%d items are left", len(q.items))
		}
	})
}
