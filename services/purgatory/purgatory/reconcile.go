package purgatory

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// reconcilers is how many identifiers are reconciled at once; git processes have a bound of
	// their own.
	reconcilers = 4
	// maxTouched bounds the repositories that are changed in one go: a crowd may name somebody
	// popular as its maintainer, but others need not wait for it.
	maxTouched = 16
)

// reconcileDue reconciles the identifiers in the queue until ctx ends.
func (w *worker) reconcileDue(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for range reconcilers {
		group.Go(func() error {
			for {
				t, ok := w.queue.next(ctx)
				if !ok {
					return nil
				}
				if w.shards.Holds(t.identifier) {
					if err := w.reconcile(ctx, t); err != nil {
						w.again(ctx, t, err)
					}
				}
				w.queue.done(t.identifier)
			}
		})
	}
	return group.Wait()
}

// again has a task that failed done later. While the bus is away that is no news of any one of
// them.
func (w *worker) again(ctx context.Context, t task, err error) {
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelError
	if !w.node.Bus.Conn.IsConnected() {
		level = slog.LevelDebug
	}
	w.log.Log(ctx, level, "events that wait for git data could not be processed", "identifier", t.identifier, "error", err)
	at := time.Now().Add(w.node.Settings.HuntBackoffBase)
	for place, wide := range t.places {
		w.queue.addLook(place, look{at, wide})
	}
	w.queue.add(itself(t.identifier), at)
	for _, id := range t.pulls {
		w.queue.addPull(t.identifier, id, at)
	}
	if t.allPulls {
		w.queue.addAllPulls(t.identifier)
	}
}

// reconcile brings what must be looked at of an identifier in line with its events: it keeps or
// ends what is not hosted any more, releases what is complete, hunts what is missing, and lets go
// of what is overdue. It may be called at any time and again. Other repositories of the identifier
// are left alone: any number of strangers may announce it.
func (w *worker) reconcile(ctx context.Context, t task) error {
	hunted, attempt := w.hunter.Wanted(t.identifier)
	v, entries, scope, unlock, err := w.enter(ctx, t)
	if err != nil {
		return err
	}
	defer unlock()
	var failed error
	for _, owner := range scope.Owners {
		place := repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: t.identifier}}
		if _, due := t.places[place]; due {
			failed = errors.Join(failed, w.lookAfter(ctx, v.Hosts(owner), place))
		}
	}
	result, err := w.release(ctx, v, entries, scope)
	failed = errors.Join(failed, err)
	if err == nil {
		w.queue.owe(t.identifier, result.Owed, w.node.Settings.HoldDuration)
	}
	if len(result.Owed) > 0 {
		w.hunter.Ensure(t.identifier, w.node.Settings.HuntSyncDelay)
	}
	for _, ev := range result.Expired {
		v = v.Without(ev.ID)
	}
	if hunted {
		w.seek(ctx, v, scope.Owners, attempt)
	}
	w.hunter.Remind(t.identifier)
	next, err := w.expire(ctx, t.identifier)
	if !next.IsZero() {
		w.queue.addOnly(itself(t.identifier), next)
	}
	return errors.Join(failed, err)
}

// enter locks the repositories that a task is about and reads what is known then. Those that a push
// has at the moment are left out: it has them looked at when it ends.
func (w *worker) enter(ctx context.Context, t task) (v repostate.View, entries []*held.Entry, scope release.Scope, unlock func(), err error) {
	pulls := slices.Concat(t.pulls, t.owed)
	fail := func(err error) (repostate.View, []*held.Entry, release.Scope, func(), error) {
		return v, nil, scope, nil, err
	}
	if v, err = w.known(ctx, t.identifier, w.holdings.OfIdentifier(t.identifier), pulls); err != nil {
		return fail(err)
	}
	scope, rest := scopeOf(v, t)
	if t.allPulls {
		owed, err := w.owedPulls(ctx, v, scope.Owners)
		if err != nil {
			return fail(err)
		}
		pulls = append(pulls, owed...)
	}
	for _, owner := range rest {
		w.queue.addOnly(repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: t.identifier}}, time.Now())
	}
	unlock = w.lock(t.identifier, &scope)
	if v, entries, err = w.read(ctx, t.identifier, pulls); err != nil {
		unlock()
		return fail(err)
	}
	return v, entries, scope, unlock, nil
}

// scopeOf are the repositories that a task is about, and the owners of those that are too many for
// now. Those that are served come first, then those that the task names itself.
func scopeOf(v repostate.View, t task) (scope release.Scope, rest []string) {
	var wide, group []string
	for place, others := range t.places {
		switch {
		case place.PRs:
			scope.Contributors = append(scope.Contributors, place.PubKey)
		case place.PubKey == "":
		default:
			scope.Owners = append(scope.Owners, place.PubKey)
			if others {
				wide = append(wide, place.PubKey)
			}
		}
	}
	slices.Sort(scope.Owners)
	group = v.Group(wide)
	for _, pr := range v.PullRequests {
		if slices.Contains(t.pulls, pr.Event.ID) || slices.Contains(t.owed, pr.Event.ID) && len(t.places) == 0 {
			group = append(group, v.Tagged(pr)...)
		}
		if slices.Contains(t.pulls, pr.Event.ID) && slices.Contains(pr.Offered, t.identifier) {
			scope.Contributors = append(scope.Contributors, pr.Event.PubKey)
		}
	}
	in, served := map[string]bool{}, map[string]bool{}
	scope.Owners = slices.DeleteFunc(append(scope.Owners, group...), func(owner string) bool {
		again := in[owner]
		in[owner] = true
		return again
	})
	for _, a := range v.Announcements {
		served[a.Ref.PubKey] = served[a.Ref.PubKey] || !a.Held
	}
	slices.SortStableFunc(scope.Owners, func(a, b string) int {
		switch {
		case served[a] == served[b]:
			return 0
		case served[a]:
			return -1
		}
		return 1
	})
	slices.Sort(scope.Contributors)
	scope.Contributors = slices.Compact(scope.Contributors)
	if len(scope.Owners) > maxTouched {
		scope.Owners, rest = scope.Owners[:maxTouched], scope.Owners[maxTouched:]
	}
	return scope, rest
}

// release releases what is complete in the repositories of a scope, waits until that is served, and
// tells about it.
func (w *worker) release(ctx context.Context, v repostate.View, entries []*held.Entry, scope release.Scope) (release.Result, error) {
	result, failed := w.releaser.Release(ctx, v, scope)
	for at, when := range result.Later {
		w.queue.addOnly(at, when)
	}
	for _, u := range result.Unfit {
		w.tell(v.Identifier, proto.GitUnfit, proto.GitNotice{Owner: npub(u.Owner), Event: u.State.ID, Kind: u.State.Kind, Reason: u.Err.Error()})
	}
	if err := w.events.Reached(ctx, result.Seq); err != nil {
		return result, errors.Join(failed, err)
	}
	since := map[string]time.Time{}
	for _, e := range entries {
		since[e.Event.ID] = e.HeldAt
	}
	for _, ev := range result.Released {
		w.metrics.left(ev.Kind, "released", since[ev.ID])
		w.tell(v.Identifier, proto.GitReleased, proto.GitNotice{Event: ev.ID, Kind: ev.Kind})
		w.log.Info("released", "identifier", v.Identifier, "kind", ev.Kind, "event", ev.ID, "waited", time.Since(since[ev.ID]).Round(time.Millisecond))
	}
	for _, ev := range result.Expired {
		w.metrics.left(ev.Kind, release.Superseded, since[ev.ID])
		w.tell(v.Identifier, proto.GitExpired, proto.GitNotice{Event: ev.ID, Kind: ev.Kind, Reason: release.Superseded})
	}
	for _, owner := range scope.Owners {
		w.chores.add(repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: v.Identifier}})
	}
	return result, failed
}

// seek tells the hunter what repositories of an identifier miss and where that may be: those of
// some owners, or all if an attempt begins.
func (w *worker) seek(ctx context.Context, v repostate.View, owners []string, all bool) {
	var wants []repostate.Want
	of := func(owner string) bool { return all || slices.Contains(owners, owner) }
	for _, want := range v.Wants() {
		if !of(want.Owner) {
			continue
		}
		repo, err := w.store.Repo(nostr.RepoRef{PubKey: want.Owner, Identifier: v.Identifier})
		if err == nil {
			want.Objects, err = repo.Missing(ctx, want.Objects)
		}
		if err != nil && ctx.Err() == nil {
			w.log.Error("missing objects could not be looked for", "identifier", v.Identifier, "owner", want.Owner, "error", err)
		}
		if err == nil && len(want.Objects) > 0 {
			wants = append(wants, want)
		}
	}
	if ctx.Err() == nil {
		w.hunter.Seek(v.Identifier, wants, v.Sources(), of, all)
	}
}

// touch has a repository looked at, and those that may change with it.
func (w *worker) touch(place repository.Place) {
	if w.shards.Holds(place.Identifier) && (!place.PRs || w.node.Settings.ContributorPRs) {
		w.queue.add(place, time.Now())
	}
}

// lock takes the locks of the repositories of a scope, and takes those out of it that a push or an
// operator has at the moment. These are looked at later.
func (w *worker) lock(identifier string, scope *release.Scope) (unlock func()) {
	var unlocks []func()
	take := func(keys []string, prs bool) []string {
		return slices.DeleteFunc(keys, func(key string) bool {
			place := repository.Place{RepoRef: nostr.RepoRef{PubKey: key, Identifier: identifier}, PRs: prs}
			unlock, free := w.shards.TryWrite(place)
			if free {
				unlocks = append(unlocks, unlock)
			} else {
				w.queue.add(place, time.Now().Add(w.node.Settings.HuntInterval))
			}
			return !free
		})
	}
	scope.Owners, scope.Contributors = take(scope.Owners, false), take(scope.Contributors, true)
	return func() {
		for _, unlock := range unlocks {
			unlock()
		}
	}
}
