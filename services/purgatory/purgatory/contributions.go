package purgatory

import (
	"context"
	"errors"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
)

// contributions takes the pull requests of contributors below /prs/ (GRASP-06). Any path there may
// be pushed to: a repository is made by a push that is allowed, and goes with its last reference.
type contributions struct{ *worker }

// Repository implements githttp.Authority. What nobody has pushed to is not on disk.
func (c contributions) Repository(_ context.Context, ref nostr.RepoRef) (*repository.Repo, error) {
	if !c.shards.Holds(ref.Identifier) {
		return nil, githttp.ErrElsewhere
	}
	return c.store.At(repository.Place{RepoRef: ref, PRs: true})
}

// Authorize implements githttp.Authority.
func (c contributions) Authorize(ctx context.Context, push githttp.PushRequest) error {
	at := repository.Place{RepoRef: push.Ref, PRs: true}
	asked, err := c.authorise(ctx, push)
	if err == nil && c.shards.Holds(at.Identifier) {
		err = c.checkPending(ctx, at, push, asked.unknown)
	}
	return c.refusal(at, err)
}

// Push implements githttp.Authority: it authorises, receives, and releases the pull requests that
// the push brings the commits of. It returns when they are served.
func (c contributions) Push(ctx context.Context, push githttp.PushRequest, receive func(ctx context.Context) error) error {
	at := repository.Place{RepoRef: push.Ref, PRs: true}
	unlock, err := c.writeFor(ctx, push, func() bool {
		asked, err := c.authorise(ctx, push)
		return err != nil || len(asked.unknown) > 0
	})
	if err != nil {
		return err
	}
	defer unlock()
	asked, err := c.authorise(ctx, push)
	if err == nil {
		err = c.checkPending(ctx, at, push, asked.unknown)
	}
	if err := c.refusal(at, err); err != nil {
		return err
	}
	if err := c.receive(ctx, at, push, asked, receive); err != nil {
		// Whatever was begun is brought in line, and what is empty goes.
		c.due.addAt(at.Identifier, time.Now().Add(c.node.Settings.HuntInterval))
		return err
	}
	if err := c.releaseOffered(context.WithoutCancel(ctx), at, asked, push.PackBytes); err != nil {
		return err
	}
	c.tell(at.Identifier, proto.GitPushed, proto.GitNotice{Owner: npub(at.PubKey), Objects: some(newIDs(push.Commands))})
	c.log.Info("pushed", "repository", at, "references", len(push.Commands))
	c.chores.ask(at)
	return nil
}

// receive takes the push into the contributor's repository, which it makes if need be.
func (c contributions) receive(ctx context.Context, at repository.Place, push githttp.PushRequest, asked offered, receive func(ctx context.Context) error) error {
	repo, err := c.store.At(at)
	if err != nil {
		return err
	}
	c.contributors.note(at.Identifier, at.PubKey)
	c.releaser.ForgetRepository(at)
	if err := ensure(ctx, repo); err != nil {
		return err
	}
	waiting, err := c.admitPending(ctx, repo, push, asked.unknown, false)
	if err := c.refusal(at, err); err != nil {
		return err
	}
	err = receive(ctx)
	c.countPending(waiting)
	return err
}

// offered is what a push brings, by what is known of its events.
type offered struct {
	held    []string // ids of events that wait for their commit
	unknown []string // ids of events that have not come
}

// authorise decides a push by what is known of the events that it names references for. A
// *dossier.Refused says why it is not allowed.
func (c contributions) authorise(ctx context.Context, push githttp.PushRequest) (offered, error) {
	if err := errors.Join(c.readHeld(ctx), c.readAccepted(ctx)); err != nil {
		return offered{}, err
	}
	var asked offered
	for _, command := range push.Commands {
		change := dossier.Change{Name: command.Name, New: command.New}
		if command.Delete() {
			change.New = ""
		}
		id, err := dossier.EventOf(change)
		if err != nil {
			return offered{}, err
		}
		waits, err := c.heldEvent(id)
		if err != nil {
			return offered{}, err
		}
		accepted, err := c.accepted(id)
		if err != nil {
			return offered{}, err
		}
		ev := accepted
		switch {
		case accepted != nil:
		case waits != nil:
			ev = waits
			asked.held = append(asked.held, id)
		default:
			asked.unknown = append(asked.unknown, id)
			continue
		}
		if err := dossier.CheckContribution(ev, push.Ref, change.New, c.rules.Domain()); err != nil {
			return offered{}, err
		}
	}
	return asked, nil
}

// releaseOffered releases what a push satisfied, and says whether the events that waited for it are
// served then. What went wrong with other repositories of the identifier is no concern of the push.
func (c contributions) releaseOffered(ctx context.Context, at repository.Place, asked offered, packBytes int64) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTime(packBytes))
	defer cancel()
	_, failed := c.settle(ctx, at.Identifier)
	if failed != nil {
		c.log.Warn("not all events of a push could be released", "repository", at, "error", failed)
		c.due.addAt(at.Identifier, time.Now().Add(c.node.Settings.HuntInterval))
	}
	for _, id := range asked.held {
		served, err := c.accepted(id)
		switch {
		case err != nil:
			return err
		case served != nil:
			continue
		case failed != nil:
			return failed
		}
		if still, err := c.heldEvent(id); still != nil || err != nil {
			return err // for another identifier: it is released with that one's commit
		}
		return &githttp.Refusal{Reason: "the pull request " + id + " does not count any more: it was refused, deleted, or its time was over"}
	}
	return nil
}

// heldEvent returns a held event, whatever identifier it waits for, or nil.
func (w *worker) heldEvent(id string) (*nostr.Event, error) {
	if entry := w.holdings.ByID(id); entry != nil {
		return entry.Event, nil
	}
	return nil, nil
}

// awaited hears of an event that is held or accepted now: a contributor may have pushed its commit
// before, to whatever repository.
func (w *worker) awaited(id string) {
	for _, at := range w.pending.At(id) {
		if at.PRs {
			w.contributors.note(at.Identifier, at.PubKey)
			w.due.add(at.Identifier)
		}
	}
}

// heardWithdrawal hears of a deletion request: commits that its author has offered go with their
// events.
func (w *worker) heardWithdrawal(ev *nostr.Event) {
	if !w.contributors.on {
		return
	}
	named := map[string]bool{}
	for tag := range ev.Tags.FindAll("e") {
		named[tag[1]] = true
	}
	if len(named) == 0 {
		return
	}
	for at, err := range w.store.PRsOf(context.Background(), ev.PubKey) {
		if err != nil {
			w.log.Warn("deletion requests of contributors could not be looked up", "author", ev.PubKey, "error", err)
			return
		}
		if !w.shards.Holds(at.Identifier) {
			continue
		}
		repo, err := w.store.At(at)
		if err != nil {
			continue
		}
		tips, err := release.Tips(context.Background(), repo)
		if err != nil {
			w.log.Warn("deletion requests of contributors could not be looked up", "repository", at, "error", err)
		}
		for event := range tips {
			if named[event] {
				w.contributors.note(at.Identifier, at.PubKey)
				w.due.add(at.Identifier)
				break
			}
		}
	}
}

// lookAtContribution looks whether something must be done about a contributor's repository that is
// found on the disk: a killed process has left something, or what it waits for may be over.
func (w *worker) lookAtContribution(ctx context.Context, ref nostr.RepoRef) error {
	if !w.contributors.on {
		return nil
	}
	repo, err := w.store.At(repository.Place{RepoRef: ref, PRs: true})
	if err != nil {
		return err
	}
	if err := repo.Sweep(); err != nil {
		return err
	}
	has, err := repo.HasData(ctx)
	if err != nil {
		return err
	}
	killed, err := repo.HasLeftPushes()
	if err != nil {
		return err
	}
	waiting, err := release.Waiting(ctx, repo, w.accepted)
	if !has || killed || len(waiting) > 0 {
		w.releaser.Forget(ref.Identifier)
		w.contributors.note(ref.Identifier, ref.PubKey)
		w.due.add(ref.Identifier)
	}
	return err
}
