package query_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/query"
)

// follower is a replica that follows the log until it is killed.
func (w *world) follower() (kill func()) {
	db, err := eventdb.Open("", eventdb.Options{})
	must(w.t, err)
	must(w.t, eventdb.Bind(w.t.Context(), w.JS, db, quiet))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := eventdb.Follow(ctx, w.JS, db, quiet); err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
	})
	running.Go(func() {
		if err := query.Serve(ctx, query.NewIndex(db, w.Bus), w.Conn, quiet); err != nil {
			w.t.Error(err)
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := db.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

// chaosTime is how long replicas come and go: a moment, or what TENDRIL_CHAOS says.
func chaosTime(t *testing.T) time.Duration {
	text := os.Getenv("TENDRIL_CHAOS")
	if text == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("TENDRIL_CHAOS: %v", err)
	}
	return d
}

// TestNoStaleAnswer: while events are accepted and two replicas are killed and start again at
// random, four askers are never told that an event is unknown that was accepted before they asked,
// nor that one is known that never came. Each question is answered.
func TestNoStaleAnswer(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var ids [][32]byte // of what is accepted
	more := func() {
		ev := event(1, len(ids), fmt.Sprint(len(ids))) // this goroutine alone adds to them
		w.accept(ev)
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, idOf(t, ev))
	}
	more()
	end := time.Now().Add(chaosTime(t))
	over := func() bool { return time.Now().After(end) }
	var running sync.WaitGroup
	running.Go(func() {
		for !over() {
			more()
		}
	})
	kills := 0
	running.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 1))
		replicas := []func(){w.follower(), w.follower()}
		for !over() {
			time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
			n := rnd.IntN(2)
			replicas[n]()
			kills++
			replicas[n] = w.follower()
		}
		t.Cleanup(func() { // the last questions are answered
			replicas[0]()
			replicas[1]()
		})
	})
	asked := make([]int, 4)
	for n := range asked {
		remote := w.remote()
		rnd := rand.New(rand.NewPCG(2, uint64(n)))
		running.Go(func() {
			for !over() {
				mu.Lock()
				some := make([][32]byte, 0, 60)
				for range 50 {
					some = append(some, ids[len(ids)-1-rnd.IntN(min(len(ids), 100))])
				}
				mu.Unlock()
				some = append(some, [32]byte{byte(n), 1})
				has, err := remote.Has(patient(t), some)
				if err != nil {
					t.Error(err)
					return
				}
				for m, known := range has {
					if known != (m < 50) {
						t.Errorf("asker %d, question %d: event %d of 51 is known: %v", n, asked[n], m, known)
					}
				}
				asked[n]++
			}
		})
	}
	running.Wait()
	t.Logf("%d events, %d kills, %v questions", len(ids), kills, asked)
}
