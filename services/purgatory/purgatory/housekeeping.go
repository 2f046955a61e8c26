package purgatory

import (
	"context"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
)

const (
	// firstHousekeeping and housekeepingEvery are when all repositories are looked at.
	firstHousekeeping = time.Minute
	housekeepingEvery = time.Hour
)

// bag is what waits to be looked at, each thing once.
type bag[T comparable] struct {
	mu   sync.Mutex
	in   map[T]bool
	wake chan struct{}
}

func newBag[T comparable]() *bag[T] {
	return &bag[T]{in: map[T]bool{}, wake: make(chan struct{}, 1)}
}

func (b *bag[T]) add(things ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, thing := range things {
		b.in[thing] = true
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *bag[T]) take() map[T]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.in
	b.in = map[T]bool{}
	return taken
}

// keepHouse lets git clean up the repositories of the worker's shards, one at a time, until ctx
// ends.
func (w *worker) keepHouse(ctx context.Context) error {
	tick := time.NewTimer(firstHousekeeping)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.chores.wake:
			for at := range w.chores.take() {
				w.cleanUp(ctx, at)
			}
		case <-tick.C:
			for at, err := range w.store.Places(ctx, nostr.RepoRef{}) {
				if err != nil {
					w.log.Error("housekeeping: the repositories could not be listed", "error", err)
					break
				}
				w.cleanUp(ctx, at)
			}
			tick.Reset(housekeepingEvery)
		}
	}
}

// cleanUp cleans one repository up, if that is due. What goes wrong is for the next time.
func (w *worker) cleanUp(ctx context.Context, at repository.Place) {
	ctx, done, err := w.shards.During(ctx, at.Identifier)
	if err != nil {
		return // another worker's
	}
	defer done()
	cleaned, err := w.collectGarbage(ctx, at)
	switch {
	case err != nil && ctx.Err() == nil:
		w.metrics.housekeeping.WithLabelValues("error").Inc()
		w.log.Error("housekeeping failed; it is tried again later", "repository", at, "error", err)
	case err == nil && cleaned:
		w.metrics.housekeeping.WithLabelValues("ok").Inc()
	}
}

func (w *worker) collectGarbage(ctx context.Context, at repository.Place) (done bool, err error) {
	repo, err := w.store.At(at)
	if err != nil || !repo.Exists() {
		return false, err
	}
	due, err := repo.NeedsGc(time.Now())
	if err != nil || !due {
		return false, err
	}
	began := time.Now()
	before, err := repo.Bytes()
	if err == nil {
		err = repo.Gc(ctx)
	}
	if err != nil {
		return false, err
	}
	after, err := repo.Bytes()
	w.log.Debug("housekeeping done", "repository", at, "bytes_before", before, "bytes_after", after,
		"took", time.Since(began).Round(time.Millisecond))
	return true, err
}
