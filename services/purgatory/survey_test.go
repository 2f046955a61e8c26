package purgatory

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture/gittest"
)

// TestQuietRepositoriesAreLookedAt at the start and once a day, though nothing happens there: what
// a killed process left is swept up when it is old.
func TestQuietRepositoriesAreLookedAt(t *testing.T) {
	t.Parallel()
	store := gittest.Store(t)
	repo := gittest.Repo(t, store, "quiet")
	synctest.Test(t, func(t *testing.T) {
		w := &worker{log: slog.New(slog.DiscardHandler), store: store, shards: newShards(), arrivals: make(chan int, 1), queue: newQueue(), chores: newQueue()}
		w.shards.Open(proto.ShardOf("quiet"), t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.survey(ctx) }()
		w.arrivals <- proto.ShardOf("quiet")
		for _, when := range []string{"at the start", "a day later"} {
			synctest.Wait()
			w.queue.mu.Lock()
			if !slices.Equal(w.queue.idle, []repository.Place{repo.Place()}) {
				t.Errorf("%s: it is not to be looked at", when)
			}
			w.queue.idle = nil
			w.queue.mu.Unlock()
			time.Sleep(surveyEvery + time.Second)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
