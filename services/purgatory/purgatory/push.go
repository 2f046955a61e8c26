package purgatory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/held"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
	"tendril.dev/services/purgatory/shards"
)

// Releasing what a push satisfied may take afterPush, and afterEach for each MiB of its pack:
// everything that it brought is walked through. The client may have gone meanwhile, the data has
// not.
const (
	afterPush = time.Minute
	afterEach = time.Second
)

// releaseTime is how long releasing what a push of that many bytes satisfied may take.
func releaseTime(packBytes int64) time.Duration {
	return afterPush + time.Duration(packBytes>>20)*afterEach
}

// authority implements githttp.Authority: for announced repositories, or for those below /prs/
// (GRASP-06), in which contributors offer pull requests. Any path there may be pushed to: a
// repository is made by a push that is allowed, and goes with its last reference.
type authority struct {
	*worker
	prs bool
}

func (a authority) place(ref nostr.RepoRef) repository.Place {
	return repository.Place{RepoRef: ref, PRs: a.prs}
}

// Repository implements githttp.Authority: a repository is here if its announcement is served or
// waits. What this worker has read so far mostly tells; a client that was told of its announcement
// a moment ago may be ahead of it.
func (a authority) Repository(ctx context.Context, ref nostr.RepoRef) (*repository.Repo, error) {
	if !a.shards.Holds(ref.Identifier) {
		return nil, githttp.ErrElsewhere
	}
	repo, err := a.store.At(a.place(ref))
	if a.prs || err != nil {
		return repo, err
	}
	hosted, err := a.announced(ctx, ref, a.holdings.OfIdentifier(ref.Identifier))
	if err == nil && !hosted {
		hosted, err = a.announcedNow(ctx, ref)
	}
	if err == nil && !hosted {
		err = githttp.ErrNotFound
	}
	if err == nil && !repo.Exists() {
		err = a.makeRepository(ctx, repo)
	}
	return repo, err
}

// makeRepository makes a repository that is announced but not on disk yet: a client was quicker
// than we, or the disk is a new one.
func (w *worker) makeRepository(ctx context.Context, repo *repository.Repo) error {
	unlock, err := w.shards.Write(ctx, repo.Place())
	if errors.Is(err, shards.ErrElsewhere) {
		return githttp.ErrElsewhere
	}
	if err != nil {
		return err
	}
	defer unlock()
	// Looked at again under the lock: it may just have been removed because its announcement is
	// over.
	hosted, err := w.announcedNow(ctx, repo.Ref())
	if err == nil && !hosted {
		err = githttp.ErrNotFound
	}
	if err != nil {
		return err
	}
	return ensure(ctx, repo)
}

// ensure makes a repository that is not there.
func ensure(ctx context.Context, repo *repository.Repo) error {
	err := repo.Ensure(ctx)
	if err == nil || ctx.Err() != nil || errors.Is(err, repository.ErrBusy) {
		return err
	}
	return githttp.Unavailable(githttp.Unwritable, err)
}

// announced reports whether a repository is here by what its owner has announced, whatever others
// announce of that identifier. It costs little: any client may ask.
func (w *worker) announced(ctx context.Context, ref nostr.RepoRef, entries []*held.Entry) (bool, error) {
	var waiting []proto.Held
	for _, e := range entries {
		if e.Event.Kind == nostr.KindAnnouncement && e.Event.PubKey == ref.PubKey {
			waiting = append(waiting, e.Held)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	var have []*nostr.Event
	ev, err := query.Addressable(ctx, w.events, nostr.KindAnnouncement, ref.PubKey, ref.Identifier)
	switch {
	case err == nil:
		have = append(have, ev)
	case !errors.Is(err, query.ErrNotFound):
		return false, fmt.Errorf("read the announcement of %s: %w", ref, err)
	}
	return repostate.New(ref.Identifier, w.rules, have, waiting).Hosts(ref.PubKey), nil
}

// announcedNow is announced after everything is read that there is now, in the order that read
// explains.
func (w *worker) announcedNow(ctx context.Context, ref nostr.RepoRef) (bool, error) {
	if err := w.readHeld(ctx); err != nil {
		return false, err
	}
	entries := w.holdings.OfIdentifier(ref.Identifier)
	if err := w.readAccepted(ctx); err != nil {
		return false, err
	}
	return w.announced(ctx, ref, entries)
}

// decision is what allows a push.
type decision struct {
	view    repostate.View
	entries []*held.Entry
	state   *repostate.State // that allows its branches and tags
	waiting []string         // ids of held events that it brings the commits of
	unknown []string         // ids of events that have not come
}

// decide decides a push by what is known of its identifier and by the references as they are. It
// changes nothing. A *repostate.Refused says why a push is not allowed.
func (a authority) decide(ctx context.Context, push githttp.PushRequest) (d decision, err error) {
	if d.view, d.entries, err = a.read(ctx, push.Ref.Identifier, nil); err != nil {
		return d, err
	}
	commitOf := func(id string) (string, bool, error) { return release.CommitOf(ctx, d.view, a.accepted, id) }
	if a.prs {
		for _, change := range changes(push) {
			id, err := repostate.EventOf(change)
			if err != nil {
				return d, err
			}
			if err := a.checkContribution(ctx, push, id, change.New); err != nil {
				return d, err
			}
		}
		commitOf = func(id string) (string, bool, error) {
			ev, err := a.accepted(ctx, id)
			return "", ev != nil || a.heldEvent(id) != nil, err
		}
	} else if d.state, err = a.authorise(ctx, d.view, push, commitOf); err != nil {
		return d, err
	}
	for _, c := range push.Commands {
		id, is := strings.CutPrefix(c.Name, release.PrefixNostr)
		if !is || c.Delete() {
			continue
		}
		_, known, err := commitOf(id)
		switch {
		case err != nil:
			return d, err
		case !known:
			d.unknown = append(d.unknown, id)
		case a.heldEvent(id) != nil:
			d.waiting = append(d.waiting, id)
		}
	}
	return d, nil
}

// authorise decides a push to an announced repository.
func (a authority) authorise(ctx context.Context, v repostate.View, push githttp.PushRequest, commitOf func(id string) (string, bool, error)) (*repostate.State, error) {
	if !v.Hosts(push.Ref.PubKey) {
		return nil, &repostate.Refused{Reason: "authorisation failed: the repository is not hosted here any more"}
	}
	repo, err := a.store.Repo(push.Ref)
	if err != nil {
		return nil, err
	}
	var refs repository.Refs
	if repo.Exists() {
		if refs, err = repo.Refs(); err != nil {
			return nil, err
		}
	}
	return v.Authorise(repostate.Push{Owner: push.Ref.PubKey, Refs: nostr.BranchesAndTags(refs.ByName), Changes: changes(push), Commit: commitOf})
}

// checkContribution decides about one reference that a contributor pushes for an event.
func (a authority) checkContribution(ctx context.Context, push githttp.PushRequest, id, commit string) error {
	ev, err := a.accepted(ctx, id)
	if ev == nil && err == nil {
		ev = a.heldEvent(id)
	}
	if ev == nil || err != nil {
		return err
	}
	return repostate.CheckContribution(ev, push.Ref, commit, a.rules.Domain())
}

func changes(push githttp.PushRequest) (list []repostate.Change) {
	for _, c := range push.Commands {
		change := repostate.Change{Name: c.Name, New: c.New}
		if c.Delete() {
			change.New = ""
		}
		list = append(list, change)
	}
	return list
}

// Authorize implements githttp.Authority. It only reads: it takes no lock, for the answer may be
// out of date by the time the pack is here either way, and Push decides again under the lock.
func (a authority) Authorize(ctx context.Context, push githttp.PushRequest) error {
	d, err := a.decide(ctx, push)
	// What waits in a shard is known to its worker. Where it has moved, that one decides.
	if err == nil && d.state == nil && a.shards.Holds(push.Ref.Identifier) {
		err = a.checkPending(ctx, a.place(push.Ref), push, d.unknown)
	}
	return a.refusal(a.place(push.Ref), err)
}

// Push implements githttp.Authority: it authorises, starts the clocks of what the push uses anew,
// receives, and releases what is complete in that repository then. It returns when that is served.
// Other repositories of the maintainers follow.
func (a authority) Push(ctx context.Context, push githttp.PushRequest, receive func(ctx context.Context) error) error {
	at := a.place(push.Ref)
	unlock, err := a.lockFor(ctx, at, push)
	if err != nil {
		return err
	}
	defer unlock()
	d, err := a.decide(ctx, push)
	if err := a.refusal(at, err); err != nil {
		return err
	}
	repo, err := a.store.At(at)
	if err != nil {
		return err
	}
	// The client may go in the middle of it: what was moved is brought in line in any case.
	defer func() { a.queue.add(at, time.Now()) }()
	// It may have been removed and announced anew since the request came in.
	if err := ensure(ctx, repo); err != nil {
		return err
	}
	if err := a.extend(ctx, d, at); err != nil {
		return fmt.Errorf("keep what the push uses from expiring: %w", err)
	}
	arriving, err := a.admitPending(ctx, repo, push, d.unknown, d.state != nil)
	if err := a.refusal(at, err); err != nil {
		return err
	}
	err = receive(ctx)
	a.countPending(arriving)
	if err != nil {
		return err
	}
	if err := a.releasePushed(context.WithoutCancel(ctx), at, d, push.PackBytes); err != nil {
		return err
	}
	var objects []string
	for _, change := range changes(push) {
		if change.New != "" {
			objects = append(objects, change.New)
		}
	}
	a.tell(at.Identifier, proto.GitPushed, proto.GitNotice{Owner: npub(at.PubKey), Objects: some(objects)})
	a.log.Info("pushed", "repository", at, "references", len(push.Commands))
	a.chores.add(at)
	return nil
}

// lockFor waits until a push may write. What it may do is decided when it holds the lock.
func (a authority) lockFor(ctx context.Context, at repository.Place, push githttp.PushRequest) (unlock func(), err error) {
	isStranger := func() bool {
		d, err := a.decide(ctx, push)
		return err != nil || len(d.unknown) > 0 || !a.prs && d.state == nil
	}
	unlock, err = a.shards.WriteFor(ctx, push.Client, isStranger, at)
	switch {
	case errors.Is(err, shards.ErrElsewhere):
		return nil, githttp.ErrElsewhere
	case errors.Is(err, limit.ErrFull):
		return nil, githttp.Unavailable("too many push to this repository at once, try again later", nil)
	}
	return unlock, err
}

// Refusals are told to the log and to whoever watches, of all pushes of this worker together: a
// client can be refused as often as there is time for.
const (
	refusalsPerSecond = 5
	refusalsAtOnce    = 50
)

// refusal tells that a push is not allowed, and returns what its user is told.
func (w *worker) refusal(at repository.Place, err error) error {
	refused, ok := errors.AsType[*repostate.Refused](err)
	if !ok {
		return err
	}
	if w.refusals.Allow() {
		w.log.Info("push refused", "repository", at, "reason", refused.Reason)
		w.tell(at.Identifier, proto.GitRefused, proto.GitNotice{Owner: npub(at.PubKey), Reason: refused.Reason})
	}
	return githttp.Refuse(refused.Reason)
}

// extend starts the clocks anew of the owner's held announcement and of the held state that a push
// uses.
func (a authority) extend(ctx context.Context, d decision, at repository.Place) error {
	if a.prs {
		return nil
	}
	var asks []candidates.Candidate
	ask := candidates.Candidate{Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionExtend}
	for _, announcement := range d.view.Announcements {
		if announcement.Held && announcement.Ref.PubKey == at.PubKey {
			ask.Event = announcement.Event
			asks = append(asks, ask)
		}
	}
	if d.state != nil && d.state.Held {
		ask.Event = d.state.Event
		asks = append(asks, ask)
	}
	_, err := release.Ask(ctx, a.releaser.Offerer, asks)
	return err
}

// releasePushed releases what a push satisfied, and says whether the events that it brings the data
// of are served then.
func (a authority) releasePushed(ctx context.Context, at repository.Place, d decision, packBytes int64) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTime(packBytes))
	defer cancel()
	scope := release.Scope{Owners: []string{at.PubKey}}
	if a.prs {
		scope = release.Scope{Contributors: []string{at.PubKey}}
	}
	unlock := a.alsoTagged(d, &scope)
	defer unlock()
	_, failed := a.release(ctx, d.view, d.entries, scope)
	if failed != nil {
		a.log.Warn("not all events of a push could be released", "repository", at, "error", failed)
	}
	if d.state != nil && d.state.Held {
		served, err := a.accepted(ctx, d.state.Event.ID)
		if served == nil && err == nil && failed == nil {
			return githttp.Refuse("the state event that allowed this push does not count any more: it was refused, or a newer one has taken its place")
		}
		if served != nil {
			failed = nil
		}
		return errors.Join(err, failed)
	}
	for _, id := range d.waiting {
		served, err := a.accepted(ctx, id)
		switch {
		case err != nil:
			return err
		case served != nil:
			continue
		case failed != nil:
			return failed
		case a.heldEvent(id) == nil:
			return githttp.Refuse("the pull request " + id + " does not count any more: it was refused, deleted, or its time was over")
		}
		// Held still: it is released when other repositories that it is for have the commit.
	}
	if len(d.waiting) > 0 {
		return nil
	}
	return failed
}

// alsoTagged adds the other repositories that the pull requests of a push are for to its scope, as
// far as they are free.
func (a authority) alsoTagged(d decision, scope *release.Scope) (unlock func()) {
	var unlocks []func()
	for _, pr := range d.view.PullRequests {
		if !slices.Contains(d.waiting, pr.Event.ID) {
			continue
		}
		for _, owner := range d.view.Tagged(pr) {
			if len(scope.Owners) == maxTouched || slices.Contains(scope.Owners, owner) {
				continue
			}
			place := repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: d.view.Identifier}}
			if unlock, free := a.shards.TryWrite(place); free {
				unlocks = append(unlocks, unlock)
				scope.Owners = append(scope.Owners, owner)
			}
		}
	}
	return func() {
		for _, unlock := range unlocks {
			unlock()
		}
	}
}
