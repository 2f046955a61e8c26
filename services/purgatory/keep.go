package purgatory

import (
	"context"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

const (
	// surveyEvery is how often all repositories are looked at though nothing happened: what a killed
	// process left is swept up only when it is so old that no living one can own it.
	surveyEvery = 24 * time.Hour
	// housekeepingEvery is how often it is looked whether a repository must be cleaned up, though
	// nothing was written to it.
	housekeepingEvery = time.Hour
	// housekeepingWhenBusy is when it is tried again in a repository that somebody wrote in.
	housekeepingWhenBusy = time.Minute
)

// survey looks through the disk for what the shards have that came, and once a day for all. All of
// it is reconciled when nothing else is due, because no worker may have been there when something
// happened.
func (w *worker) survey(ctx context.Context) error {
	daily := time.NewTicker(surveyEvery)
	defer daily.Stop()
	for {
		shards := map[int]bool{}
		select {
		case <-ctx.Done():
			return nil
		case n := <-w.arrivals:
			shards[n] = true
		case <-daily.C:
			for n := range proto.Shards {
				shards[n] = true
			}
		}
		for len(w.arrivals) > 0 {
			shards[<-w.arrivals] = true
		}
		if err := w.lookThrough(ctx, shards); err != nil && ctx.Err() == nil {
			w.log.Error("the repositories could not be looked through; trying again", "error", err)
			time.AfterFunc(w.node.Settings.HuntBackoffBase, func() {
				for n := range shards {
					select {
					case w.arrivals <- n:
					case <-ctx.Done():
					}
				}
			})
		}
	}
}

// lookThrough has the repositories of some shards looked at. It starts no git.
func (w *worker) lookThrough(ctx context.Context, shards map[int]bool) error {
	var found []repository.Place
	for at, err := range w.store.Places(ctx, nostr.RepoRef{}) {
		if err != nil {
			return err
		}
		if !shards[proto.ShardOf(at.Identifier)] || !w.shards.Holds(at.Identifier) || at.PRs && !w.node.Settings.ContributorPRs {
			continue
		}
		if !at.PRs {
			w.statuses.LoadOrStore(at, proto.RepoStatus{Ref: at.RepoRef.String()})
		}
		found = append(found, at)
	}
	for _, at := range found {
		select {
		case <-w.queue.keys.Idle():
			w.queue.addRepository(at, time.Now(), groupAndAcceptedPRs)
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// cleanUp lets git clean up a repository where that is due: something was written to it, or an hour
// is over. What goes wrong is for the next time.
func (w *worker) cleanUp(ctx context.Context, at repository.Place) error {
	during, done, err := w.shards.During(ctx, at.Identifier)
	if err != nil {
		return nil // another worker's
	}
	defer done()
	repo, err := w.store.At(at)
	if err != nil || !repo.Exists() {
		return nil
	}
	due, err := repo.NeedsGc(time.Now())
	next := housekeepingEvery
	if err == nil && due {
		var busy bool
		if busy, err = tidy(during, repo); busy {
			next = housekeepingWhenBusy
		}
	}
	if err != nil && during.Err() == nil {
		w.log.Error("housekeeping failed; it is tried again later", "repository", at, "error", err)
	}
	w.chores.AddAt(at, time.Now().Add(next))
	return nil
}

// tidy lets git clean up one repository, unless somebody writes in it: nobody waits for housekeeping
// to begin.
func tidy(ctx context.Context, repo *repository.Repo) (busy bool, err error) {
	locked, free := repo.TryLock()
	if !free {
		return true, nil
	}
	defer locked.Done()
	return false, locked.Gc(ctx)
}
