package purgatory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/held"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/pending"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
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

// Repository implements githttp.Authority: a repository is here if its announcement is served or
// waits. What this worker has read so far mostly tells; a client that was told of its announcement
// a moment ago may be ahead of it.
func (w *worker) Repository(ctx context.Context, ref nostr.RepoRef) (*repository.Repo, error) {
	if !w.shards.Holds(ref.Identifier) {
		return nil, githttp.ErrElsewhere
	}
	hosted, err := w.announced(ctx, ref, w.holdings.OfIdentifier(ref.Identifier))
	if err == nil && !hosted {
		hosted, err = w.announcedNow(ctx, ref)
	}
	if err != nil {
		return nil, err
	}
	if !hosted {
		return nil, githttp.ErrNotFound
	}
	repo, err := w.store.Repo(ref)
	if err == nil && !repo.Exists() {
		err = w.makeRepository(ctx, repo)
	}
	return repo, err
}

// makeRepository makes a repository that is announced but not on disk yet: a client was quicker
// than we, or the disk is a new one.
func (w *worker) makeRepository(ctx context.Context, repo *repository.Repo) error {
	unlock, err := w.shards.Write(ctx, all(repo.Ref().Identifier))
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
	if err != nil {
		return err
	}
	if !hosted {
		return githttp.ErrNotFound
	}
	return ensure(ctx, repo)
}

// ensure makes a repository that is not there.
func ensure(ctx context.Context, repo *repository.Repo) error {
	err := repo.Ensure(ctx)
	if err == nil || ctx.Err() != nil || errors.Is(err, repository.ErrBusy) {
		return err
	}
	return &githttp.Unavailable{Reason: githttp.Unwritable, Err: err}
}

// announced reports whether a repository is here by what its owner has announced, whatever others
// announce of that identifier. It costs little: anybody may ask.
func (w *worker) announced(ctx context.Context, ref nostr.RepoRef, entries []*held.Entry) (bool, error) {
	var held []proto.Held
	for _, e := range entries {
		if e.Event.Kind == nostr.KindAnnouncement && e.Event.PubKey == ref.PubKey {
			held = append(held, e.Held)
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
	return dossier.New(ref.Identifier, w.rules, have, held).Hosts(ref.PubKey), nil
}

// announcedNow is announced after everything is read that there is now, in the order that dossier
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

// Authorize implements githttp.Authority. It only reads: it takes no lock, for the answer may be
// out of date by the time the pack is here either way, and Push decides again under the lock.
func (w *worker) Authorize(ctx context.Context, push githttp.PushRequest) error {
	d, _, err := w.dossier(ctx, push.Ref.Identifier)
	if err != nil {
		return err
	}
	state, err := w.authorise(ctx, d, push)
	// What waits in a shard is known to its worker. Where it has moved, that one decides.
	if err == nil && state == nil && w.shards.Holds(push.Ref.Identifier) {
		var events []string
		if events, err = w.unknownEvents(d, push); err == nil {
			err = w.checkPending(ctx, repository.Place{RepoRef: push.Ref}, push, events)
		}
	}
	return w.refusal(repository.Place{RepoRef: push.Ref}, err)
}

// Push implements githttp.Authority: it authorises, starts the clocks of what the push uses anew,
// receives, and releases what is complete then. It returns when that is served.
func (w *worker) Push(ctx context.Context, push githttp.PushRequest, receive func(ctx context.Context) error) error {
	ref := push.Ref
	unlock, err := w.writeFor(ctx, push, func() bool { return w.isStranger(ctx, push) })
	if err != nil {
		return err
	}
	defer unlock()
	d, _, err := w.dossier(ctx, ref.Identifier)
	if err != nil {
		return err
	}
	state, err := w.authorise(ctx, d, push)
	if err := w.refusal(repository.Place{RepoRef: ref}, err); err != nil {
		return err
	}
	repo, err := w.store.Repo(ref)
	if err != nil {
		return err
	}
	// It may have been removed and announced anew since the request came in.
	if err := ensure(ctx, repo); err != nil {
		return err
	}
	if err := w.extend(ctx, d, ref, state); err != nil {
		return fmt.Errorf("keep what the push uses from expiring: %w", err)
	}
	events, err := w.unknownEvents(d, push)
	if err != nil {
		return err
	}
	waiting, err := w.admitPending(ctx, repo, push, events, state != nil)
	if err := w.refusal(repo.Place(), err); err != nil {
		return err
	}
	w.releaser.ForgetRepository(repo.Place())
	err = receive(ctx)
	w.countPending(waiting)
	if err != nil {
		// The client may have gone in the middle of it: whatever was moved is brought in line.
		w.due.addAt(ref.Identifier, time.Now().Add(w.node.Settings.HuntInterval))
		return err
	}
	if err := w.releasePushed(context.WithoutCancel(ctx), ref, state, push.PackBytes); err != nil {
		return err
	}
	w.tell(ref.Identifier, proto.GitPushed, proto.GitNotice{Owner: npub(ref.PubKey), Objects: some(newIDs(push.Commands))})
	w.log.Info("pushed", "repository", ref, "references", len(push.Commands))
	w.chores.ask(repo.Place())
	return nil
}

// all is the lock of all repositories of an identifier.
func all(identifier string) repository.Place {
	return repository.Place{RepoRef: nostr.RepoRef{Identifier: identifier}}
}

// writeFor waits until a push may write. What it may do is decided when it holds the lock.
func (w *worker) writeFor(ctx context.Context, push githttp.PushRequest, isStranger func() bool) (unlock func(), err error) {
	unlock, err = w.shards.WriteFor(ctx, push.Client, isStranger, all(push.Ref.Identifier))
	switch {
	case errors.Is(err, shards.ErrElsewhere):
		return nil, githttp.ErrElsewhere
	case errors.Is(err, limit.ErrFull):
		return nil, &githttp.Unavailable{Reason: "too many push to repositories of this name at once, try again later"}
	}
	return unlock, err
}

// isStranger reports whether no state allows a push.
func (w *worker) isStranger(ctx context.Context, push githttp.PushRequest) bool {
	d, _, err := w.dossier(ctx, push.Ref.Identifier)
	if err != nil {
		return true
	}
	state, err := w.authorise(ctx, d, push)
	return state == nil || err != nil
}

// Refusals are told to the log and to whoever watches, of all pushes of this worker together:
// anybody can be refused as often as there is time for.
const (
	refusalsPerSecond = 5
	refusalsAtOnce    = 50
)

// refusal tells that a push is not allowed, and returns what its user is told.
func (w *worker) refusal(at repository.Place, err error) error {
	refused, ok := errors.AsType[*dossier.Refused](err)
	full, tooMuch := errors.AsType[*pending.Refused](err)
	switch {
	case tooMuch:
		refused = &dossier.Refused{Reason: full.Reason}
	case !ok:
		return err
	}
	w.tellRefused(at, refused.Reason)
	return &githttp.Refusal{Reason: refused.Reason}
}

// tellRefused tells of a refused push, unless there are too many.
func (w *worker) tellRefused(at repository.Place, reason string) {
	if w.refusals.Allow() {
		w.log.Info("push refused", "repository", at, "reason", reason)
		w.tell(at.Identifier, proto.GitRefused, proto.GitNotice{Owner: npub(at.PubKey), Reason: reason})
	}
}

// releasePushed releases what a push satisfied, and says whether the state that allowed it is
// served then. What went wrong with other repositories of the identifier is no concern of the push.
func (w *worker) releasePushed(ctx context.Context, ref nostr.RepoRef, state *dossier.State, packBytes int64) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTime(packBytes))
	defer cancel()
	_, failed := w.settle(ctx, ref.Identifier)
	if failed != nil {
		w.log.Warn("not all events of a push could be released", "repository", ref, "error", failed)
		w.due.addAt(ref.Identifier, time.Now().Add(w.node.Settings.HuntInterval))
	}
	if state == nil || !state.Held {
		return failed
	}
	served, err := w.accepted(state.Event.ID)
	switch {
	case err != nil:
		return err
	case served != nil:
		return nil
	case failed != nil:
		return failed
	}
	return &githttp.Refusal{Reason: "the state event that allowed this push does not count any more: it was refused, or a newer one has taken its place"}
}

// authorise decides a push by what is known of its identifier and by the references as they are. It
// changes nothing.
func (w *worker) authorise(ctx context.Context, d dossier.Dossier, asked githttp.PushRequest) (*dossier.State, error) {
	if !d.Hosts(asked.Ref.PubKey) {
		return nil, &dossier.Refused{Reason: "authorisation failed: the repository is not hosted here any more"}
	}
	repo, err := w.store.Repo(asked.Ref)
	if err != nil {
		return nil, err
	}
	var refs repository.Refs
	if repo.Exists() {
		if refs, err = repo.Refs(ctx); err != nil {
			return nil, err
		}
	}
	push := dossier.Push{
		Owner: asked.Ref.PubKey, Refs: nostr.BranchesAndTags(refs.ByName),
		Commit: func(id string) (string, bool, error) { return release.CommitOf(d, w.accepted, id) },
	}
	for _, c := range asked.Commands {
		change := dossier.Change{Name: c.Name, New: c.New}
		if c.Delete() {
			change.New = ""
		}
		push.Changes = append(push.Changes, change)
	}
	return d.Authorise(push)
}

// extend starts the clocks anew of the owner's held announcement and of the held state that a push
// uses.
func (w *worker) extend(ctx context.Context, d dossier.Dossier, ref nostr.RepoRef, state *dossier.State) error {
	var asks []candidates.Candidate
	ask := candidates.Candidate{Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionExtend}
	for _, a := range d.Announcements {
		if a.Held && a.Ref.PubKey == ref.PubKey {
			ask.Event = a.Event
			asks = append(asks, ask)
		}
	}
	if state != nil && state.Held {
		ask.Event = state.Event
		asks = append(asks, ask)
	}
	_, err := release.Ask(ctx, w.releaser.Offerer, asks)
	return err
}

func newIDs(commands []githttp.Command) (ids []string) {
	for _, c := range commands {
		if !c.Delete() {
			ids = append(ids, c.New)
		}
	}
	return ids
}
