package purgatory

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
	"tendril.dev/services/purgatory/shards"
)

// TestLeftoversAreSweptFromQuietRepositories: at the start they may still be somebody's, and later
// nothing may happen that makes anybody look.
func TestLeftoversAreSweptFromQuietRepositories(t *testing.T) {
	t.Parallel()
	store := gittest.Store(t)
	repo := gittest.Repo(t, store, "quiet")
	synctest.Test(t, func(t *testing.T) {
		leftover := func(name string, since time.Time) (path string) {
			path = filepath.Join(repo.Path(), "objects", name)
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, since, since); err != nil {
				t.Fatal(err)
			}
			return path
		}
		old := leftover("tmp_objdir-pack-1", time.Now().Add(-48*time.Hour))
		young := leftover("tmp_objdir-incoming-2", time.Now().Add(-time.Minute))
		w := &worker{log: slog.New(slog.DiscardHandler), store: store, shards: shards.New(), arrivals: newBag[int](), queue: newQueue(), pending: newPushes(config.Git{})}
		w.shards.Open(proto.ShardOf("quiet"), t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.survey(ctx) }()
		w.arrivals.add(proto.ShardOf("quiet"))
		synctest.Wait()
		if !gone(old) || gone(young) {
			t.Errorf("at the start: the old one is gone %t, the young one %t", gone(old), gone(young))
		}
		time.Sleep(surveyEvery + time.Second)
		synctest.Wait()
		if !gone(young) {
			t.Error("a day later: the young one is still there")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return os.IsNotExist(err)
}

// TestReleaseTime: what a large push brought is walked through, which takes longer than a minute.
func TestReleaseTime(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int64]time.Duration{0: time.Minute, 1 << 20: 61 * time.Second, 2 << 30: 2108 * time.Second} {
		if got := releaseTime(bytes); got != want {
			t.Errorf("%d bytes: %v, want %v", bytes, got, want)
		}
	}
}
