package purgatory

import (
	"context"
	"maps"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

// surveyEvery is how often all repositories are looked at though nothing happened: what a killed
// process left is swept up only when it is so old that no living one can own it.
const surveyEvery = 24 * time.Hour

// survey looks through the disk for what the shards have that came, and once a day for all. All of
// it is reconciled when nothing else is due, because no worker may have been there when something
// happened.
func (w *worker) survey(ctx context.Context) error {
	again := time.NewTicker(surveyEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.arrivals.wake:
		case <-again.C:
			for n := range proto.Shards {
				w.arrivals.add(n)
			}
		}
		shards := w.arrivals.take()
		err := w.lookThrough(ctx, shards)
		if err == nil || ctx.Err() != nil {
			continue
		}
		w.log.Error("the repositories could not be looked through", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(w.node.Settings.HuntBackoffBase):
		}
		w.arrivals.add(slices.Collect(maps.Keys(shards))...)
	}
}

// lookThrough counts what waits for its events in the repositories of some shards. It starts no git.
func (w *worker) lookThrough(ctx context.Context, shards map[int]bool) error {
	var places []repository.Place
	for at, err := range w.store.Places(ctx, nostr.RepoRef{}) {
		if err != nil {
			return err
		}
		if !shards[proto.ShardOf(at.Identifier)] || !w.shards.Holds(at.Identifier) || at.PRs && !w.node.Settings.ContributorPRs {
			continue
		}
		repo, err := w.store.At(at)
		if err != nil {
			return err
		}
		if !w.pending.isOpen(proto.ShardOf(at.Identifier)) {
			notes, err := repo.Waiting()
			if err != nil {
				return err
			}
			for _, note := range notes {
				w.pending.Set(at, note)
			}
		}
		places = append(places, at)
	}
	for n := range shards {
		if w.shards.HoldsShard(n) {
			w.pending.open(n)
		}
	}
	w.queue.addIdle(places)
	return nil
}
