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
	var failed error
	if len(t.places)+len(t.pulls) > 0 {
		failed = w.look(ctx, t, hunted)
	}
	if t.identifierOnly { // first: while an attempt is under way, not all has been asked
		failed = errors.Join(failed, w.expiry.expire(ctx, t.identifier))
	}
	if attempt {
		failed = errors.Join(failed, w.beginAttempt(ctx, t.identifier))
	}
	// This look may have taken the place of the one at which the next attempt begins.
	if next := w.schedule.hunter.Status(t.identifier).Next; !next.IsZero() {
		w.schedule.queue.addIdentifier(t.identifier, next)
	}
	return failed
}

// look brings the repositories that a task is about in line, under their locks.
func (w *reconciler) look(ctx context.Context, t task, hunted bool) error {
	v, scope, unlock, err := w.enter(ctx, &t, hunted)
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
	result, err := w.release(ctx, v, scope, release.Look{
		Events: t.pulls,
		Whole:  func(at repository.Place) bool { return t.places[at] == groupAndAcceptedPRs || !w.releaser.Tips.Has(at) },
	})
	failed = errors.Join(failed, err)
	w.schedule.owe(t.identifier, t.pulls, result.Owed)
	for _, repo := range scope {
		if repo.PRs || !repo.Exists() {
			continue
		}
		if state, is := result.Applied[repo.PubKey]; is { // here, because a push does not wait for it
			failed = errors.Join(failed, repo.SetFollowed(followedOf(state)))
		}
		s, _, err := w.retention.status(ctx, repo.Repo, v.Hosts(repo.PubKey))
		s.NoAuthority = noAuthorityOver(v, repo.PubKey)
		w.statuses.Store(repo.Place, s)
		failed = errors.Join(failed, err)
	}
	wanted, err := w.withRoom(ctx, v)
	failed = errors.Join(failed, err)
	isOurs := func(owner string) bool { return isAmong(scope, placeOf(owner, t.identifier)) }
	if hunted {
		w.updateHunt(ctx, wanted, hunt.Found{Of: isOurs})
	} else if next := w.schedule.hunter.Status(t.identifier).Next; next.IsZero() &&
		(len(result.Owed) > 0 || waits(wanted, isOurs, result.Released)) {
		w.schedule.hunter.Add(t.identifier, w.constants.SyncDelay)
	}
	for _, pr := range v.PullRequests {
		w.schedule.awaitExpiration(v, pr)
	}
	return failed
}

// beginAttempt tells the hunter, when an attempt to hunt begins, what all repositories of the
// identifier miss, and where that may be: the clone URLs of everybody who announces it. No
// repository is locked meanwhile.
func (w *reconciler) beginAttempt(ctx context.Context, identifier string) error {
	pulls, authors := w.schedule.owedOf(identifier), []string{}
	for _, e := range w.knowledge.holdings.OfKinds(identifier, nostr.KindPR, nostr.KindPRUpdate) {
		pulls = append(pulls, e.Event.ID)
	}
	for _, e := range w.knowledge.holdings.OfKinds(identifier, nostr.KindState) {
		authors = append(authors, e.Event.PubKey)
	}
	v, err := w.knowledge.around(ctx, identifier, w.schedule.withOwners(identifier, authors), pulls)
	if err == nil {
		v, err = w.withRoom(ctx, v)
	}
	if err != nil {
		return err
	}
	found := hunt.Found{All: true, Of: func(string) bool { return true }}
	if len(v.Wants()) > 0 {
		if found.Sources, err = w.knowledge.sources(ctx, identifier); err != nil {
			return err
		}
		found.Sources = append(v.Sources(), found.Sources...)
	}
	found.Rare = w.schedule.clock(identifier).isRare(v, w.knowledge.holdings.OfIdentifier(identifier))
	w.updateHunt(ctx, v, found)
	return nil
}

// withOwners are the authors of some states, and the owners of repositories here of which they are
// confirmed maintainers, a few for each: one of these may be no neighbour of the author, but only
// point to the author as lead.
func (w *schedule) withOwners(identifier string, authors []string) (owners []string) {
	for _, author := range authors {
		owners = append(owners, author)
		spoken := w.spoken(identifier, author)
		for _, at := range spoken[:min(len(spoken), maxTouched)] {
			owners = append(owners, at.PubKey)
		}
	}
	return union(owners, nil)
}

// withRoom is a view without the pull requests whose authors have no room for one more in any of the
// repositories that they are for: no git server is asked for what would not be named.
func (w *reconciler) withRoom(ctx context.Context, v repostate.View) (repostate.View, error) {
	crowd, full := w.releaser.Crowd(), []string{}
	for _, pr := range v.PullRequests {
		has, err := w.hasRoom(ctx, v, pr, crowd)
		if err != nil {
			return v, fmt.Errorf("look whether there is room for pull request %s: %w", pr.Event.ID, err)
		}
		if !has {
			full = append(full, pr.Event.ID)
		}
	}
	if len(full) == 0 {
		return v, nil
	}
	return v.Without(full...), nil
}

// hasRoom reports whether a pull request may be named in a repository that it is for, and counts it
// there.
func (w *reconciler) hasRoom(ctx context.Context, v repostate.View, pr repostate.PullRequest, crowd *release.Crowd) (bool,
	error) {
	owners := v.Tagged(pr)
	if len(owners) == 0 || v.Serves(pr.Event.PubKey) {
		return true, nil
	}
	for _, owner := range owners[:min(len(owners), maxTouched)] {
		repo, err := w.store.At(placeOf(owner, v.Identifier))
		if err != nil {
			return false, err
		}
		if repo.IsNamed(repostate.PrefixNostr+pr.Event.ID, pr.Commit) {
			return true, nil
		}
		full, err := crowd.Full(ctx, repo, pr.Event.PubKey)
		if err != nil {
			return false, err
		}
		if !full {
			crowd.Add(repo.Place, pr.Event.PubKey)
			return true, nil
		}
	}
	return false, nil
}

// waits reports whether something is held still that needs git data in some owners' repositories. A
// hunt ends when nothing counts that waits, and what waits may count again later: when a ban ends, or
// when its author has authority again.
func waits(v repostate.View, of func(owner string) bool, released []*nostr.Event) bool {
	if !slices.ContainsFunc(v.States, func(s repostate.State) bool { return s.Held }) &&
		!slices.ContainsFunc(v.PullRequests, func(pr repostate.PullRequest) bool { return pr.Held }) {
		return false
	}
	var ids []string
	for _, ev := range released {
		ids = append(ids, ev.ID)
	}
	return slices.ContainsFunc(v.Without(ids...).Wants(), func(want repostate.Want) bool {
		return want.Waits && of(want.Owner)
	})
}

// readAgain bounds how often a look is read again because more was found on which it depends. It is
// put into the queue once more then.
const readAgain = 3

// enter locks the repositories that a task is about and reads what is known then. Those that a push
// or an operator has at the moment are left out, and looked at later. To the task it adds the
// accepted pull requests whose commits are not named in all of its repositories: those that are
// hunted for, what happened while no worker held the shard, and what is for a repository that is new.
func (w *reconciler) enter(ctx context.Context, t *task, hunted bool) (v repostate.View, locked []*repository.Locked,
	unlock func(), err error) {
	scope, rest, err := w.scopeOf(ctx, *t)
	if err != nil {
		return v, nil, nil, err
	}
	if hunted {
		t.pulls = union(t.pulls, w.schedule.owedOf(t.identifier))
	}
	for _, at := range rest {
		w.schedule.queue.addRepository(at, time.Now(), t.places[at], t.pulls...)
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
		if l, free := w.lock(ctx, repo, len(locked) == 0); free {
			locked = append(locked, l)
		} else {
			w.schedule.queue.addRepository(at, time.Now().Add(w.constants.Again), max(maintainerGroup, t.places[at]),
				t.pulls...)
		}
	}
	if err == nil {
		v, err = w.readFor(ctx, t, scope)
	}
	if err != nil {
		unlock()
	}
	return v, locked, unlock, err
}

// lock takes the lock of a repository if it is free. Of several the first is waited for, for a short
// time and by one look at a time, where clients wait too: who always has pushes under way must not
// keep what is known of a repository from being done there.
func (w *reconciler) lock(ctx context.Context, repo *repository.Repo, first bool) (l *repository.Locked, free bool) {
	if first {
		select {
		case w.turn <- struct{}{}:
			defer func() { <-w.turn }()
			ctx, cancel := context.WithTimeout(ctx, w.constants.Turn)
			defer cancel()
			return repo.LockInTurn(ctx)
		default:
		}
	}
	return repo.TryLock()
}

// readFor reads what is known around the repositories of a scope, and notes on what these depend.
func (w *reconciler) readFor(ctx context.Context, t *task, scope []repository.Place) (v repostate.View, err error) {
	var owners []string
	whole := false
	for _, at := range scope {
		owners = append(owners, at.PubKey)
		whole = whole || t.places[at] == groupAndAcceptedPRs
	}
	for n := 0; ; n++ {
		if v, err = w.knowledge.around(ctx, t.identifier, owners, t.pulls); err != nil {
			return v, err
		}
		again := w.schedule.note(v, scope)
		if whole {
			whole = false
			owed, err := w.owedPulls(ctx, v, func(owner string) bool { return slices.Contains(owners, owner) })
			if err != nil {
				return v, err
			}
			before := len(t.pulls)
			t.pulls = union(t.pulls, owed)
			again = again || len(t.pulls) > before
		}
		switch {
		case !again:
			return v, nil
		case n == readAgain:
			for _, at := range scope {
				w.schedule.enqueue(at, repoOnly)
			}
			return v, nil
		}
	}
}

func isAmong(repos []*repository.Locked, at repository.Place) bool {
	return slices.ContainsFunc(repos, func(repo *repository.Locked) bool { return repo.Place == at })
}

// scopeOf are the repositories that a task is about, and those that are too many for now. Those whose
// owners only point to a lead come last, then those that are not served yet: any number of strangers
// may announce what they like.
func (w *reconciler) scopeOf(ctx context.Context, t task) (scope, rest []repository.Place, err error) {
	rank := map[repository.Place]int{}
	add := func(beside int, places ...repository.Place) {
		for _, at := range places {
			if _, is := rank[at]; is {
				continue
			}
			rank[at] = beside
			if w.schedule.isFollower(at) {
				rank[at] += 4
			}
			if len(w.retention.hosting.heldAt(at.RepoRef)) > 0 {
				rank[at] += 2
			}
		}
	}
	sorted := func() []repository.Place {
		return slices.SortedFunc(maps.Keys(rank), func(a, b repository.Place) int {
			return cmp.Or(rank[a]-rank[b], int(t.places[b]-t.places[a]), cmp.Compare(a.PubKey, b.PubKey))
		})
	}
	for at := range t.places {
		add(0, at)
	}
	var wide []string // keys whose events may change more than their own repositories
	if t.identifierOnly {
		announced, offered, err := w.placesOf(ctx, t)
		if err != nil {
			return nil, nil, err
		}
		add(0, offered...)
		for _, at := range announced {
			wide = append(wide, at.PubKey)
			if repo, err := w.store.At(at); err == nil && repo.Exists() {
				add(1, at)
			}
		}
	}
	named := sorted()
	for _, at := range named[:min(len(named), maxTouched)] {
		if t.places[at] >= maintainerGroup && !at.PRs {
			wide = append(wide, at.PubKey)
		}
	}
	beside, err := w.beside(ctx, t.identifier, wide)
	if err != nil {
		return nil, nil, err
	}
	add(1, beside...)
	scope = sorted()
	most := min(len(scope), maxTouched)
	return scope[:most], scope[most:], nil
}

// beside are the repositories of the confirmed maintainers of some keys' repositories, and of these
// keys. Those whose owners only point to a lead nobody's chain reaches; they were found to depend on
// the lead when they were looked at.
func (w *reconciler) beside(ctx context.Context, identifier string, keys []string) (places []repository.Place,
	err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	v, err := w.knowledge.around(ctx, identifier, keys, nil)
	if err != nil {
		return nil, err
	}
	for _, key := range union(keys, nil) {
		for _, speaker := range union(v.Group(key).Confirmed, []string{key}) {
			for _, owner := range v.OwnersFor(speaker) {
				places = append(places, placeOf(owner, identifier))
			}
			places = append(places, w.schedule.spoken(identifier, speaker)...)
		}
	}
	return places, nil
}

// placesOf are the repositories that the pull requests of a task are for, and those in which their
// authors offer them.
func (w *reconciler) placesOf(ctx context.Context, t task) (announced, offered []repository.Place, err error) {
	for _, id := range t.pulls {
		ev, err := release.Find(ctx, w.knowledge, id)
		if err != nil {
			return nil, nil, fmt.Errorf("read pull request %s: %w", id, err)
		}
		if ev == nil {
			continue
		}
		pr, err := nostr.ParsePullRequest(ev)
		if err != nil {
			continue
		}
		refs, err := w.knowledge.Repos(ctx, pr)
		if err != nil {
			return nil, nil, err
		}
		for _, ref := range slices.Concat(refs, repostate.Cloned(pr, w.knowledge.rules.Domain())) {
			if ref.Identifier == t.identifier {
				announced = append(announced, repository.Place{RepoRef: ref})
			}
		}
		if slices.Contains(pr.PRServiceIdentifiers(w.knowledge.rules.Domain()), t.identifier) {
			at := placeOf(ev.PubKey, t.identifier)
			at.PRs = true
			offered = append(offered, at)
		}
	}
	return announced, offered, nil
}

// release releases what is complete in the repositories of a scope, waits until that is served, and
// tells about it.
func (w *reconciler) release(ctx context.Context, v repostate.View, scope []*repository.Locked,
	look release.Look) (release.Result, error) {
	result, failed := w.releaser.Release(ctx, v, scope, look)
	if err := w.knowledge.events.Reached(ctx, result.Seq); err != nil {
		return result, errors.Join(failed, err)
	}
	for _, ev := range result.Released {
		waited := time.Since(cmp.Or(v.HeldAt[ev.ID], time.Now()))
		w.notices.metrics.released.WithLabelValues(strconv.Itoa(ev.Kind)).Inc()
		w.notices.metrics.waited.Observe(waited.Seconds())
		w.notices.tell(v.Identifier, proto.GitReleased, proto.GitNotice{Event: ev.ID, Kind: ev.Kind})
		w.log.Info("released", "identifier", v.Identifier, "kind", ev.Kind, "event", ev.ID, "waited",
			waited.Round(time.Millisecond))
	}
	for _, ev := range supersededBy(result.Released, v.States) {
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
func supersededBy(released []*nostr.Event, states []repostate.State) (lost []*nostr.Event) {
	for _, s := range states {
		isReplacedBy := func(ev *nostr.Event) bool {
			return ev.Kind == nostr.KindState && ev.PubKey == s.Event.PubKey && nostr.Replaces(ev, s.Event)
		}
		if s.Held && slices.ContainsFunc(released, isReplacedBy) {
			lost = append(lost, s.Event)
		}
	}
	return lost
}

// updateHunt tells the hunter what the repositories miss that found is about.
func (w *reconciler) updateHunt(ctx context.Context, v repostate.View, found hunt.Found) {
	for _, want := range v.Wants() {
		if !found.Of(want.Owner) {
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
			found.Wants = append(found.Wants, want)
		}
	}
	w.schedule.hunter.Seek(v.Identifier, found)
}

// missing are objects that a repository lacks, those that are there in part only, and commits of pull
// requests that only lie there.
func (w *reconciler) missing(ctx context.Context, v repostate.View, repo *repository.Repo, objects []string) ([]string,
	error) {
	missing, err := repo.Missing(ctx, objects)
	if err != nil || !repo.Exists() {
		return missing, err
	}
	here := slices.DeleteFunc(slices.Clone(objects), func(id string) bool { return slices.Contains(missing, id) })
	parts, err := repo.InPart(ctx, here)
	if err != nil {
		return nil, err
	}
	missing = append(missing, parts...)
	for _, pr := range v.PullRequests {
		if !slices.Contains(objects, pr.Commit) || slices.Contains(missing, pr.Commit) {
			continue
		}
		counts, err := w.releaser.Counts(ctx, repo, pr)
		if err != nil {
			return nil, err
		}
		if !counts {
			missing = append(missing, pr.Commit)
		}
	}
	return missing, nil
}

// enqueue has a repository looked at, with what is named for some pull requests there.
func (w *schedule) enqueue(place repository.Place, reach reach, pulls ...string) {
	if w.shards.Holds(place.Identifier) && (!place.PRs || w.node.Settings.ContributorPRs) {
		w.queue.addRepository(place, time.Now(), reach, pulls...)
	}
}
