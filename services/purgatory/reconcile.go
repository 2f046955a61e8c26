package purgatory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// reconcilers is how many identifiers are reconciled at once; git processes have a bound of
	// their own.
	reconcilers = 4
	// maxTouched bounds the repositories that are changed in one go: many announcements may
	// name the same maintainer, but others need not wait for them.
	maxTouched = 16
	// maxReconcileBackOff is the longest wait of an identifier that cannot be reconciled, if nothing
	// new comes for it.
	maxReconcileBackOff = 10 * time.Minute
)

// tryReconcile is reconcile while this worker holds the shard. On error the queue tries again.
func (w *reconciler) tryReconcile(ctx context.Context, t task) error {
	ctx, done, err := w.shards.During(ctx, t.identifier)
	if err != nil {
		return nil // another worker's
	}
	defer done()
	err = w.reconcile(ctx, t)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	w.log.Warn("a repository could not be brought in line with its events; trying again", "identifier", t.identifier,
		"error", err)
	return err
}

// reconcile brings what must be looked at of an identifier in line with its events: it keeps or
// ends what is not hosted any more, releases what is complete, hunts what is missing, and lets go
// of what is overdue. It may be called at any time and again. Other repositories of the identifier
// are left alone: any number of strangers may announce it.
func (w *reconciler) reconcile(ctx context.Context, t task) error {
	hunted, attempt := w.schedule.hunter.Wanted(t.identifier)
	v, scope, unlock, err := w.enter(ctx, &t, hunted, attempt)
	if err != nil {
		return err
	}
	defer unlock()
	var failed error
	for _, repo := range scope {
		if _, due := t.places[repo.Place]; due && !repo.PRs {
			failed = errors.Join(failed, w.retention.lookAfter(ctx, v.Hosts(repo.PubKey), repo))
		}
	}
	result, err := w.release(ctx, v, scope, w.releaser.Release)
	failed = errors.Join(failed, err)
	for _, repo := range scope {
		if repo.PRs || !repo.Exists() {
			continue
		}
		s, _, err := w.retention.status(ctx, repo.Repo, v.Hosts(repo.PubKey))
		s.Nobody = nobodyOver(v, repo.PubKey)
		w.statuses.Store(repo.Place, s)
		failed = errors.Join(failed, err)
	}
	if at := w.schedule.hunter.Status(t.identifier).Next; result.Owed && len(t.pulls) > 0 && !hunted && at.IsZero() {
		w.schedule.hunter.Add(t.identifier, w.node.Settings.HuntSyncDelay)
	}
	if hunted {
		w.updateHunt(ctx, v, func(owner string) bool { return attempt || isAmong(scope, placeOf(owner, t.identifier)) },
			attempt)
	}
	// This look may have taken the place of the one at which the next attempt begins.
	if next := w.schedule.hunter.Status(t.identifier).Next; !next.IsZero() {
		w.schedule.queue.addIdentifier(t.identifier, next)
	}
	w.schedule.awaitExpirations(v, scope)
	return errors.Join(failed, w.expiry.expire(ctx, v))
}

// enter locks the repositories that a task is about and reads what is known then. Those that a push
// or an operator has at the moment are left out, and looked at later. To the task it adds the
// accepted pull requests whose commits are not named in all of its repositories: what happened
// while no worker held the shard, and what is for a repository that is new. When an attempt to hunt
// begins these are all repositories of the identifier.
func (w *reconciler) enter(ctx context.Context, t *task, hunted, attempt bool) (v repostate.View,
	locked []*repository.Locked, unlock func(), err error) {
	if v, err = w.knowledge.known(ctx, t.identifier, w.knowledge.holdings.OfIdentifier(t.identifier),
		t.pulls); err != nil {
		return v, nil, nil, err
	}
	if t.former, err = w.formerlyListed(ctx, v, *t); err != nil {
		return v, nil, nil, err
	}
	scope, rest := scopeOf(v, *t)
	if hunted || slices.Contains(slices.Collect(maps.Values(t.places)), groupAndAcceptedPRs) {
		of := func(owner string) bool { return attempt || slices.Contains(scope, placeOf(owner, t.identifier)) }
		owed, err := w.owedPulls(ctx, v, of)
		if err != nil {
			return v, nil, nil, err
		}
		if t.pulls = union(t.pulls, owed); len(owed) > 0 {
			if v, err = w.knowledge.known(ctx, t.identifier, w.knowledge.holdings.OfIdentifier(t.identifier),
				t.pulls); err != nil {
				return v, nil, nil, err
			}
			scope, rest = scopeOf(v, *t)
		}
	}
	for _, at := range rest {
		w.schedule.queue.addRepository(at, time.Now(), repoOnly, t.pulls...)
	}
	unlock = func() {
		for _, repo := range locked {
			repo.Done()
		}
	}
	for _, at := range scope {
		var repo *repository.Repo
		if repo, err = w.store.At(at); err != nil {
			break
		}
		if l, free := repo.TryLock(); free {
			locked = append(locked, l)
		} else {
			w.schedule.queue.addRepository(at, time.Now().Add(w.node.Settings.HuntInterval), max(maintainerGroup, t.places[at]),
				t.pulls...)
		}
	}
	if err == nil {
		v, err = w.knowledge.read(ctx, t.identifier, t.pulls)
	}
	if err != nil {
		unlock()
	}
	return v, locked, unlock, err
}

// formerlyListed are the keys that the last announcements of a task's owners listed who have none
// any more. Such an owner may have been a confirmed maintainer of their repositories, whether or
// not the owner's own is here: what the owner signed counts there no longer.
func (w *reconciler) formerlyListed(ctx context.Context, v repostate.View, t task) (keys []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	for at, reach := range t.places {
		if reach < maintainerGroup || at.PRs || slices.ContainsFunc(v.Announcements,
			func(a repostate.Announcement) bool { return a.Ref == at.RepoRef }) {
			continue
		}
		last, _, err := w.knowledge.lastAnnouncement(ctx, at.RepoRef)
		if err != nil {
			return nil, fmt.Errorf("read the last announcement of %s: %w", at, err)
		}
		if last == nil {
			continue
		}
		if a, err := nostr.ParseAnnouncement(last); err == nil {
			keys = append(keys, a.Listed...)
		}
	}
	return keys, nil
}

func isAmong(repos []*repository.Locked, at repository.Place) bool {
	return slices.ContainsFunc(repos, func(repo *repository.Locked) bool { return repo.Place == at })
}

// scopeOf are the repositories that a task is about, and those that are too many for now. Those
// that are served come first, then those that the task names itself.
func scopeOf(v repostate.View, t task) (scope, rest []repository.Place) {
	rank := map[repository.Place]int{} // 1 for those that the task names, 2 for those that may change with these
	wide := slices.Clone(t.former)
	for at, reach := range t.places {
		if rank[at] = 1; reach >= maintainerGroup && !at.PRs {
			wide = append(wide, at.PubKey)
		}
	}
	with := v.Concerned(wide)
	for _, pr := range v.PullRequests {
		// Without a look at the identifier they are for those repositories that were put off.
		if !t.identifierOnly || !slices.Contains(t.pulls, pr.Event.ID) {
			continue
		}
		with = append(with, v.Tagged(pr)...)
		if slices.Contains(pr.Offered, t.identifier) {
			at := placeOf(pr.Event.PubKey, t.identifier)
			at.PRs = true
			rank[at] = 1
		}
	}
	for _, owner := range with {
		at := placeOf(owner, t.identifier)
		rank[at] = cmp.Or(rank[at], 2)
	}
	for _, a := range v.Announcements {
		if at := placeOf(a.Ref.PubKey, t.identifier); !a.Held && rank[at] > 0 {
			rank[at] -= 2
		}
	}
	scope = slices.SortedFunc(maps.Keys(rank), func(a, b repository.Place) int {
		return cmp.Or(rank[a]-rank[b], cmp.Compare(a.PubKey, b.PubKey))
	})
	most := min(len(scope), maxTouched)
	return scope[:most], scope[most:]
}

// release releases what is complete in the repositories of a scope, waits until that is served, and
// tells about it.
func (w *reconciler) release(ctx context.Context, v repostate.View, scope []*repository.Locked,
	by func(context.Context, repostate.View, []*repository.Locked) (release.Result, error),
) (release.Result, error) {
	since, waiting := map[string]time.Time{}, w.knowledge.holdings.OfIdentifier(v.Identifier)
	for _, e := range waiting {
		since[e.Event.ID] = e.HeldAt
	}
	result, failed := by(ctx, v, scope)
	if err := w.knowledge.events.Reached(ctx, result.Seq); err != nil {
		return result, errors.Join(failed, err)
	}
	for _, ev := range result.Released {
		waited := time.Since(cmp.Or(since[ev.ID], time.Now()))
		w.notices.metrics.released.WithLabelValues(strconv.Itoa(ev.Kind)).Inc()
		w.notices.metrics.waited.Observe(waited.Seconds())
		w.notices.tell(v.Identifier, proto.GitReleased, proto.GitNotice{Event: ev.ID, Kind: ev.Kind})
		w.log.Info("released", "identifier", v.Identifier, "kind", ev.Kind, "event", ev.ID, "waited",
			waited.Round(time.Millisecond))
	}
	for _, ev := range supersededBy(result.Released, waiting) {
		w.notices.expired(v.Identifier, ev, "superseded by a newer state of its author")
	}
	w.schedule.remember(v, scope, result.Applied)
	for _, repo := range scope {
		w.chores.Add(repo.Place)
	}
	return result, failed
}

// supersededBy are the held states of which a newer one of the same author was released: ingest has
// dropped them with it.
func supersededBy(released []*nostr.Event, waiting []*held.Entry) (lost []*nostr.Event) {
	for _, e := range waiting {
		isReplacedBy := func(ev *nostr.Event) bool {
			return ev.Kind == nostr.KindState && ev.PubKey == e.Event.PubKey && nostr.Replaces(ev, e.Event)
		}
		if e.Event.Kind == nostr.KindState && slices.ContainsFunc(released, isReplacedBy) {
			lost = append(lost, e.Event)
		}
	}
	return lost
}

// updateHunt tells the hunter what repositories of an identifier miss and where that may be: those
// of some owners, or all if an attempt begins.
func (w *reconciler) updateHunt(ctx context.Context, v repostate.View, of func(owner string) bool, all bool) {
	var wants []repostate.Want
	for _, want := range v.Wants() {
		if !of(want.Owner) {
			continue
		}
		repo, err := w.store.At(placeOf(want.Owner, v.Identifier))
		var missing []string
		if err == nil {
			missing, err = w.missing(ctx, v, repo, want.Objects)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // they may be missing
			w.log.Error("missing objects could not be looked for", "identifier", v.Identifier, "owner", want.Owner, "error", err)
		default:
			want.Objects = missing
		}
		if len(want.Objects) > 0 {
			wants = append(wants, want)
		}
	}
	clock := w.schedule.clock(v.Identifier)
	w.schedule.hunter.Seek(v.Identifier, hunt.Found{
		Wants: wants, Sources: v.Sources(), Of: of, All: all, Rare: clock.isRare(v,
			w.knowledge.holdings.OfIdentifier(v.Identifier)),
	})
}

// missing are objects that a repository lacks, and commits of pull requests that only lie there.
func (w *reconciler) missing(ctx context.Context, v repostate.View, repo *repository.Repo, objects []string) ([]string,
	error) {
	missing, err := repo.Missing(ctx, objects)
	if err != nil || !repo.Exists() {
		return missing, err
	}
	for _, pr := range v.PullRequests {
		if !slices.Contains(objects, pr.Commit) || slices.Contains(missing, pr.Commit) {
			continue
		}
		counts, err := w.releaser.Counts(ctx, repo, pr.Commit)
		if err != nil {
			return nil, err
		}
		if !counts {
			missing = append(missing, pr.Commit)
		}
	}
	return missing, nil
}

// enqueue has a repository looked at.
func (w *schedule) enqueue(place repository.Place, reach reach) {
	if w.shards.Holds(place.Identifier) && (!place.PRs || w.node.Settings.ContributorPRs) {
		w.queue.addRepository(place, time.Now(), reach)
	}
}
