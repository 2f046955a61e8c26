package purgatory

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/proto"
	"tendril.dev/test/fixture/gittest"
)

// TestQuietRepositoriesAreLookedAt at the start and once a day, though nothing happens there: what
// a killed process left is swept up when it is old.
func TestQuietRepositoriesAreLookedAt(t *testing.T) {
	t.Parallel()
	store := gittest.Store(t)
	repo := gittest.Repo(t, store, "quiet")
	synctest.Test(t, func(t *testing.T) {
		w := &worker{log: slog.New(slog.DiscardHandler), store: store, shards: newShards(), arrivals: make(chan int, 1), queue: newQueue(1, nil), chores: newQueue(1, nil)}
		w.shards.Open(proto.ShardOf("quiet"), t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.survey(ctx) }()
		w.arrivals <- proto.ShardOf("quiet")
		began := time.Now()
		for days := range time.Duration(2) {
			if at := <-w.queue.idle; at != repo.Place || time.Since(began) != days*surveyEvery {
				t.Errorf("%v is looked at after %v", at, time.Since(began))
			}
		}
		close(w.chores.ended)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
