package purgatory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
	"tendril.dev/services/purgatory/workqueue"
)

const (
	// surveyEvery is how often all repositories are looked at though nothing happened: what a killed
	// process left is swept up only when it is so old that no living one can own it.
	surveyEvery = 24 * time.Hour
	// housekeepingEvery is how often it is looked whether a repository must be cleaned up, though
	// nothing was written to it.
	housekeepingEvery = time.Hour
)

// survey looks through the disk for what the shards have that came, and once a day for all. All of
// it is reconciled when nothing else is due, because no worker may have been there when something
// happened.
func (w *survey) Run(ctx context.Context) error {
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
			time.AfterFunc(w.constants.BackOff, func() {
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
func (w *survey) lookThrough(ctx context.Context, shards map[int]bool) error {
	var found []repository.Place
	for at, err := range w.store.Places(ctx, nostr.RepoRef{}) {
		if err != nil {
			return err
		}
		if !shards[proto.ShardOf(at.Identifier)] || !w.shards.Holds(at.Identifier) || at.PRs &&
			!w.node.Settings.ContributorPRs {
			continue
		}
		if !at.PRs {
			w.statuses.LoadOrStore(at, proto.RepoStatus{Ref: at.RepoRef.String()})
		}
		found = append(found, at)
	}
	for _, at := range found {
		select {
		case <-w.schedule.queue.keys.Idle():
			w.schedule.queue.addRepository(at, time.Now(), groupAndAcceptedPRs)
		case <-ctx.Done():
			return nil
		}
	}
	return w.lookForClones(ctx, shards)
}

// lookForClones has those repositories of some shards looked at whose addresses accepted pull requests
// give as clone URLs. Anybody's may, and no index has these, so all pull requests are read.
func (w *survey) lookForClones(ctx context.Context, shards map[int]bool) error {
	crowd := w.releaser.Crowd()
	filter := nostr.Filter{Kinds: []int{nostr.KindPR, nostr.KindPRUpdate}}
	for ev, err := range w.knowledge.events.Query(ctx, filter) {
		if err != nil {
			return fmt.Errorf("read all pull requests: %w", err)
		}
		pr, err := nostr.ParsePullRequest(ev)
		if err != nil {
			continue
		}
		for _, ref := range repostate.Cloned(pr, w.knowledge.rules.Domain()) {
			repo, err := w.store.Repo(ref)
			if err != nil || !shards[proto.ShardOf(ref.Identifier)] || !w.shards.Holds(ref.Identifier) || !repo.Exists() ||
				repo.IsNamed(repostate.PrefixNostr+ev.ID, pr.Commit) {
				continue
			}
			full, err := crowd.Full(ctx, repo, ev.PubKey)
			if err != nil {
				return err
			}
			if !full {
				crowd.Add(repo.Place, ev.PubKey)
				w.schedule.queue.addIdentifier(ref.Identifier, time.Now(), ev.ID)
			}
		}
	}
	return nil
}

// housekeeping lets git clean up the repositories of this worker, one after the other.
type housekeeping struct {
	env
	knowledge *knowledge
	chores    *workqueue.Queue[repository.Place]
}

func newHousekeeping(of env, knowledge *knowledge) *housekeeping {
	h := &housekeeping{env: of, knowledge: knowledge}
	h.chores = workqueue.New(workqueue.Options[repository.Place]{Workers: 1, Work: h.cleanUp, BackOff: housekeepingEvery,
		MaxBackOff: housekeepingEvery})
	return h
}

// cleanUp lets git clean up a repository where that is due: something was written to it, or an hour
// is over. What goes wrong is for the next time.
func (h *housekeeping) cleanUp(ctx context.Context, at repository.Place) error {
	during, done, err := h.shards.During(ctx, at.Identifier)
	if err != nil {
		return nil // another worker's
	}
	defer done()
	repo, err := h.store.At(at)
	if err != nil || !repo.Exists() {
		return nil
	}
	due, err := repo.NeedsGc(time.Now())
	next := housekeepingEvery
	if err == nil && due {
		var busy bool
		if busy, err = tidy(during, repo, h.keepsAll); busy {
			next = h.constants.Again
		}
	}
	if err != nil && during.Err() == nil {
		h.log.Error("housekeeping failed; it is tried again later", "repository", at, "error", err)
	}
	h.chores.AddAt(at, time.Now().Add(next))
	return nil
}

// tidy lets git clean up one repository, unless a client writes in it: no client waits for
// housekeeping to begin. What keepsAll says is read under the lock, so that it holds while objects
// are removed.
func tidy(ctx context.Context, repo *repository.Repo, keepsAll func(context.Context, repository.Place) (bool,
	error)) (busy bool, err error) {
	locked, free := repo.TryLock()
	if !free {
		return true, nil
	}
	defer locked.Done()
	keeps, err := keepsAll(ctx, repo.Place)
	switch {
	case err != nil:
		return false, fmt.Errorf("look whether anything may be removed: %w", err)
	case keeps:
		return false, locked.Repack(ctx)
	}
	return false, locked.Gc(ctx)
}

// keepsAll reports whether no object of a repository may be removed now, though no reference
// reaches it.
func (w *housekeeping) keepsAll(ctx context.Context, at repository.Place) (bool, error) {
	if at.PRs {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime) // pushes wait meanwhile
	defer cancel()
	repo, err := w.store.At(at)
	if err != nil {
		return true, err
	}
	v, err := w.knowledge.around(ctx, at.Identifier, []string{at.PubKey}, nil)
	if err != nil {
		return true, err
	}
	refs, err := repo.BranchesAndTags()
	if err != nil {
		return true, err
	}
	moved, err := repo.Moved()
	follows := slices.ContainsFunc(v.StatesFor(at.PubKey), func(s repostate.State) bool { return !s.Held })
	return keepsObjects(len(v.Group(at.PubKey).Confirmed) > 0, follows, len(refs.ByName),
		moved.Add(w.node.Settings.DeletionGrace), time.Now()), err
}

// keepsObjects reports whether the objects of a repository stay that no reference reaches. Where
// no one has authority, or branches and tags stay though no state is left that applies, all stay:
// who has authority next may want them. Without any state and any branch or tag, the author of the
// last state has deleted it, and its objects have the time until removal.
func keepsObjects(authority, follows bool, branchesAndTags int, until, now time.Time) bool {
	switch {
	case !authority:
		return true
	case follows:
		return false
	}
	return branchesAndTags > 0 || now.Before(until)
}
