package purgatory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/grace"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/shards"
)

// removeAtOnce bounds the events whose removal is asked for in one go.
const removeAtOnce = 200

// errHosted: the repository is hosted, and so is not removed.
var errHosted = errors.New("the repository is hosted")

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
				if err != nil && ctx.Err() == nil && !errors.Is(err, shards.ErrElsewhere) && !errors.Is(err, errHosted) {
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
func (w *worker) removeOne(ctx context.Context, ref nip34.RepoRef, atOnce bool) error {
	if over, err := w.isOver(ctx, ref, atOnce); !over || err != nil {
		return err
	}
	if err := w.removeEvents(ctx, ref); err != nil {
		return err
	}
	unlock, err := w.shards.Write(ctx, ref.Identifier)
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
	w.metrics.removed.Inc()
	w.tell(ref.Identifier, proto.GitRemoved, proto.GitNotice{Owner: npub(ref.PubKey)})
	if atOnce {
		w.pruner.ask(ref.Identifier)
	}
	return nil
}

// isOver decides on all that is known at this moment whether a repository is to be removed. Where
// that cannot be known within lookTime, because nobody answers who has read the log to its end, it
// is an error, and nothing is removed.
func (w *worker) isOver(ctx context.Context, ref nip34.RepoRef, atOnce bool) (bool, error) {
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
	// The log says something else now, or the time that has passed is to be counted.
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

// removeEvents asks ingest to remove the events that were accepted for a repository and that
// nothing else needs: those that name it, and the states of those who spoke for it alone. States
// stay as long as another repository of the identifier is kept for its owner: they may be that
// one's.
func (w *worker) removeEvents(ctx context.Context, ref nip34.RepoRef) error {
	filters := namingOf(ref)
	others, err := w.keptBeside(ctx, ref)
	if err != nil {
		return err
	}
	if !others {
		filters = append(filters, statesOf(ref.Identifier))
	}
	for _, filter := range filters {
		if err := w.removeMatching(ctx, filter); err != nil {
			return fmt.Errorf("remove the events of %s: %w", ref, err)
		}
	}
	return nil
}

// namingOf finds the events that name a repository.
func namingOf(ref nip34.RepoRef) (filters []nostr.Filter) {
	for _, tag := range []string{"a", "A", "q"} {
		filters = append(filters, nostr.Filter{Tags: nostr.TagMap{tag: {ref.String()}}})
	}
	return filters
}

// statesOf finds the states of an identifier, by anybody.
func statesOf(identifier string) nostr.Filter {
	return nostr.Filter{Kinds: []int{nip34.KindState}, Tags: nostr.TagMap{"d": {identifier}}}
}

// keptBeside reports whether another repository of the identifier lies on the disk that ingest may
// not know of: it is not hosted, or it is an archive, which may be one by settings of earlier.
// Those of contributors have no states.
func (w *worker) keptBeside(ctx context.Context, ref nip34.RepoRef) (bool, error) {
	places, err := w.store.Pool(ref.Identifier).Places()
	if err != nil {
		return false, err
	}
	for _, other := range places {
		if other.PRs || other.RepoRef == ref {
			continue
		}
		repo, err := w.store.At(other)
		if err != nil {
			return true, err
		}
		hosted, err := w.announced(ctx, other.RepoRef, w.holdings.Of(other.Identifier))
		if err != nil || !hosted || repo.IsArchive() {
			return true, err
		}
	}
	return false, nil
}

func (w *worker) removeMatching(ctx context.Context, filter nostr.Filter) error {
	var asks []candidates.Candidate
	ask := func() error {
		verdicts, err := release.Ask(ctx, w.releaser.Offerer, asks)
		if err != nil {
			return err
		}
		for i, v := range verdicts {
			if v.Outcome == proto.Rejected { // an ingest of an earlier version does not know how
				return fmt.Errorf("ingest does not remove event %s: %s", asks[i].Event.ID, v.Message)
			}
			if v.Seq > 0 {
				w.log.Info("an event of a removed repository is removed", "event", asks[i].Event.ID, "kind", asks[i].Event.Kind)
			}
		}
		asks = asks[:0]
		return nil
	}
	for ev, err := range w.events.Query(ctx, filter) {
		if err != nil {
			return err
		}
		if slices.Contains([]int{nip34.KindAnnouncement, nip34.KindDeletion, nip34.KindUserGraspList}, ev.Kind) {
			continue // ingest keeps these
		}
		asks = append(asks, candidates.Candidate{Event: ev, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionRemove})
		if len(asks) == removeAtOnce {
			if err := ask(); err != nil {
				return err
			}
		}
	}
	return ask()
}
