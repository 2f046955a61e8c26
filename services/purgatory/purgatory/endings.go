package purgatory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/grace"
	"tendril.dev/services/purgatory/repository"
)

// maxLeavers bounds the owners that wait to be looked after; beyond it all repositories are.
const maxLeavers = 10_000

// leavers are owners who may have ended the hosting of some of their repositories: each once,
// however many deletion requests they send before they are looked after.
type leavers struct {
	mu   sync.Mutex
	in   map[string]bool
	all  bool // there were too many: any owner may have
	wake chan struct{}
}

func newLeavers() *leavers { return &leavers{in: map[string]bool{}, wake: make(chan struct{}, 1)} }

func (l *leavers) add(pubkey string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.in) < maxLeavers {
		l.in[pubkey] = true
	} else {
		l.all = true
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *leavers) take() (owners map[string]bool, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	owners, all = l.in, l.all
	l.in, l.all = map[string]bool{}, false
	return owners, all
}

// followLeavers looks after the repositories of owners who have sent deletion requests, until ctx
// ends. A request may name an announcement by its id alone, which tells no identifier once the
// announcement is gone; the disk does.
func (w *worker) followLeavers(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.leavers.wake:
		}
		owners, all := w.leavers.take()
		if all {
			w.survey.askAll()
			continue
		}
		var again []string
		for pubkey := range owners {
			if err := w.lookAfter(ctx, pubkey); err != nil && ctx.Err() == nil {
				w.log.Error("the repositories of an owner who deletes could not be looked through, trying again", "owner", npub(pubkey), "error", err)
				again = append(again, pubkey)
			}
		}
		if len(again) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(w.node.Settings.HuntBackoffBase):
		}
		for _, pubkey := range again {
			w.leavers.add(pubkey)
		}
	}
}

func (w *worker) lookAfter(ctx context.Context, pubkey string) error {
	for ref, err := range w.store.Of(ctx, pubkey) {
		if err != nil {
			return err
		}
		if !w.shards.Holds(ref.Identifier) {
			continue
		}
		hosted, err := w.announced(ctx, ref, w.holdings.OfIdentifier(ref.Identifier))
		if err != nil {
			return err
		}
		if !hosted {
			w.orphans.add(ref)
			w.due.add(ref.Identifier)
		}
	}
	return nil
}

// clearOne looks after a repository that may not be hosted any more, or may be hosted again. The
// caller has the identifier's lock.
func (w *worker) clearOne(ctx context.Context, d dossier.Dossier, ref nostr.RepoRef) error {
	repo, err := w.store.Repo(ref)
	if err != nil {
		return err
	}
	if !repo.Exists() {
		w.endings.Forget(ref)
		return nil
	}
	if d.Hosts(ref.PubKey) {
		return w.welcome(repo)
	}
	// What was pushed for an event that never came has no reference any more.
	refs, err := repo.Refs(ctx)
	if err != nil {
		return err
	}
	if len(refs.ByName) == 0 {
		return w.removeRepository(ctx, repo, "an empty repository is removed")
	}
	return w.keepForAWhile(ctx, repo)
}

// welcome is for a repository that is hosted. If it was not for a while, nothing of that is left.
func (w *worker) welcome(repo *repository.Repo) error {
	ref := repo.Ref()
	w.endings.Forget(ref)
	note, err := repo.Ended()
	if note == nil || err != nil {
		return err
	}
	if err := repo.ForgetEnded(); err != nil {
		return err
	}
	w.releaser.Forget(ref.Identifier) // it was not kept in line meanwhile
	w.log.Info("a repository is hosted again", "repository", ref, "away_since", note.Since)
	w.tell(ref.Identifier, proto.GitReturned, proto.GitNotice{Owner: npub(ref.PubKey)})
	return nil
}

// keepForAWhile notes that the hosting of a repository has ended, if its owner has ended it, how
// much of its time has passed since, and when it must be removed. The caller has the identifier's
// lock.
func (w *worker) keepForAWhile(ctx context.Context, repo *repository.Repo) error {
	ref := repo.Ref()
	ending, err := w.ending(ctx, ref)
	if err != nil {
		return err
	}
	note, err := repo.Ended()
	if err != nil {
		return err
	}
	now := time.Now()
	step, until := grace.Decide(ending, note, w.node.Settings.DeletionGrace, now)
	switch step {
	case grace.Note:
		note = &repository.Ended{Announcement: ending.Announcement, Reason: ending.Reason, Since: now.UTC()}
	case grace.Count:
		counting := grace.Counting(*note, now)
		note = &counting
	}
	if step == grace.Note || step == grace.Count {
		if err := repo.SetEnded(*note); err != nil {
			return err
		}
	}
	if step == grace.Note {
		w.releaser.Forget(ref.Identifier)
		w.log.Info("the hosting of a repository has ended", "repository", ref, "reason", ending.Reason, "kept_until", until)
		w.tell(ref.Identifier, proto.GitEnded, proto.GitNotice{Owner: npub(ref.PubKey), Event: ending.Announcement, Reason: ending.Reason})
	}
	var look time.Time
	if !until.IsZero() {
		look = now.Add(grace.CountEvery)
	}
	w.endings.Set(grace.Entry{Ref: ref, Note: note, Until: until}, look)
	return nil
}

// ending reads from the log how the hosting of a repository has ended that is not hosted. The log
// has the owner's last announcement also when that was deleted.
func (w *worker) ending(ctx context.Context, ref nostr.RepoRef) (grace.Ending, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	last, acceptedAt, err := w.lastAnnouncement(ctx, ref)
	if last == nil || err != nil {
		return grace.Ending{}, err
	}
	deleted, err := w.isDeleted(ctx, last)
	if err != nil {
		return grace.Ending{}, fmt.Errorf("look for a deletion of the announcement of %s: %w", ref, err)
	}
	isHere := func(a *nostr.Announcement) bool {
		return w.isHere(a) || acceptedAt.Before(w.belongs.Since) // it may list a domain that nobody remembers
	}
	return grace.EndingOf(ref, isHere, last, deleted), nil
}

// isHere reports whether an announcement is of a repository that is here as long as it stands: it
// lists us, under this or an earlier domain, or it is archived.
func (w *worker) isHere(a *nostr.Announcement) bool {
	return w.rules.Keeps(a) || slices.ContainsFunc(w.belongs.Domains, a.ListsService)
}

// isDeleted reports whether an accepted deletion request by its author names an announcement.
func (w *worker) isDeleted(ctx context.Context, announcement *nostr.Event) (bool, error) {
	if w.node.Settings.IgnoreDeletions {
		return false, nil
	}
	for _, filter := range grace.DeletionsOf(announcement) {
		for request, err := range w.events.Query(ctx, filter) {
			if err != nil || grace.Deletes(request, announcement) {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// lastAnnouncement returns the last announcement of a repository that was ever accepted, or nil,
// and when that was. The stream's leader is asked, not any replica: that could be behind.
func (w *worker) lastAnnouncement(ctx context.Context, ref nostr.RepoRef) (last *nostr.Event, at time.Time, err error) {
	place := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: ref.PubKey, Tags: nostr.Tags{{"d", ref.Identifier}}}
	message, found, err := bus.Last(ctx, w.node.Bus.JS, proto.StreamEvents, proto.EventSubjectOf(place).String())
	if err != nil {
		return nil, at, fmt.Errorf("read the last announcement of %s: %w", ref, err)
	}
	if !found {
		return nil, at, nil
	}
	last = &nostr.Event{}
	if err := last.UnmarshalJSON(message.Data); err != nil {
		return nil, at, nil // it has left the log
	}
	return last, message.Time, nil
}
