package purgatory

import (
	"context"
	"errors"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/grace"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/shards"
)

var (
	// errHosted: the repository is hosted, and so is not removed.
	errHosted = errors.New("the repository is hosted")
	// errNotOver: what the log says has changed while its events were being removed.
	errNotOver = errors.New("the repository's time is not over any more")
)

// removeEnded removes the repositories whose grace period is over, one after the other, until ctx
// ends.
func (w *worker) removeEnded(ctx context.Context) error {
	tick := time.NewTicker(w.node.Settings.HuntInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, ref := range w.endings.Due(now) {
				// What cannot be done is tried again after a while.
				w.endings.Postpone(ref, now.Add(w.node.Settings.HuntBackoffMax))
				err := w.removeOne(ctx, ref, false)
				expected := errors.Is(err, shards.ErrElsewhere) || errors.Is(err, errHosted) || errors.Is(err, errNotOver)
				if err != nil && !expected && ctx.Err() == nil {
					w.log.Error("a repository whose time is over could not be removed", "repository", ref, "error", err)
				}
			}
		}
	}
}

// removeOne removes a repository that is not hosted, and what was accepted for it alone. At once:
// an operator has asked for it, so that neither its time nor how its hosting has ended matters.
//
// Events go first. Whether anything still needs them is decided by ingest, on the head of the log;
// while they go the note stays, so that a removal that breaks off is begun again by whoever has the
// shard then.
func (w *worker) removeOne(ctx context.Context, ref nostr.RepoRef, atOnce bool) error {
	if over, err := w.isOver(ctx, ref, atOnce); !over || err != nil {
		return err
	}
	removed, err := w.removeEvents(ctx, ref, atOnce)
	if err != nil {
		return err
	}
	unlock, err := w.shards.Write(ctx, all(ref.Identifier))
	if err != nil {
		return err
	}
	defer unlock()
	// Decided again under the lock: its owner may have come back just now.
	if over, err := w.isOver(ctx, ref, atOnce); !over || err != nil {
		return err
	}
	repo, err := w.store.Repo(ref)
	if err != nil {
		return err
	}
	if err := w.removeRepository(ctx, repo, "a repository is removed"); err != nil {
		return err
	}
	w.log.Info("events that were accepted for a removed repository alone are removed", "repository", ref, "events", removed)
	w.metrics.removed.Inc()
	w.tell(ref.Identifier, proto.GitRemoved, proto.GitNotice{Owner: npub(ref.PubKey)})
	return nil
}

// isOver decides on all that is known at this moment whether a repository must be removed. Where
// that cannot be known within lookTime, because nobody answers who has read the log to its end, it
// is an error, and nothing is removed.
func (w *worker) isOver(ctx context.Context, ref nostr.RepoRef, atOnce bool) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	hosted, err := w.announcedNow(ctx, ref)
	if err != nil {
		return false, err
	}
	if hosted {
		w.orphans.add(ref)
		w.due.add(ref.Identifier)
		return false, errHosted
	}
	if atOnce {
		return true, nil
	}
	repo, err := w.store.Repo(ref)
	if err != nil {
		return false, err
	}
	ending, err := w.ending(ctx, ref)
	if err != nil {
		return false, err
	}
	note, err := repo.Ended()
	if err != nil {
		return false, err
	}
	step, _ := grace.Decide(ending, note, w.node.Settings.DeletionGrace, time.Now())
	if step == grace.Remove {
		return true, nil
	}
	// The log says something else now, or the time that has passed must be counted.
	w.orphans.add(ref)
	w.due.add(ref.Identifier)
	return false, nil
}

// removeRepository takes a repository off the disk. The caller has the identifier's lock.
func (w *worker) removeRepository(ctx context.Context, repo *repository.Repo, message string) error {
	ref := repo.Ref()
	w.releaser.Forget(ref.Identifier)
	if err := repo.Remove(ctx); err != nil {
		return err
	}
	w.pending.Drop(func(other repository.Place) bool { return other == repo.Place() })
	w.endings.Forget(ref)
	w.log.Info(message, "repository", ref)
	return nil
}
