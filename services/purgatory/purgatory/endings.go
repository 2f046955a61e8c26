package purgatory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// ended is a repository on the disk that is not hosted.
type ended struct {
	ref  nostr.RepoRef
	note *repository.Ended // nil: the log does not say that its hosting has ended
	// until is up to when it is kept; zero: without an end.
	until time.Time
}

// endings are those of this worker's shards. The disk and the log tell the same.
type endings struct {
	mu sync.Mutex
	by map[nostr.RepoRef]ended
}

func (e *endings) set(one ended) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.by[one.ref] = one
}

// forget is for repositories that are hosted again, gone, or another worker's.
func (e *endings) forget(which func(ref nostr.RepoRef) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ref := range e.by {
		if which(ref) {
			delete(e.by, ref)
		}
	}
}

// shard lists those of a shard behind after (nostr.RepoRef.String), in that order.
func (e *endings) shard(shard int, after string) (list []ended) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ref, one := range e.by {
		if proto.ShardOf(ref.Identifier) == shard && ref.String() > after {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b ended) int { return strings.Compare(a.ref.String(), b.ref.String()) })
	return list
}

// count is how many have an end, and how many are kept without one.
func (e *endings) count() (ending, kept int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.by {
		if one.until.IsZero() {
			kept++
		} else {
			ending++
		}
	}
	return ending, kept
}

// lookAfter looks after a repository that may not be hosted any more, or may be hosted again. The
// caller has its lock.
func (w *worker) lookAfter(ctx context.Context, hosted bool, at repository.Place) error {
	repo, err := w.store.At(at)
	if err == nil && repo.Exists() && hosted {
		err = w.welcome(repo)
	} else if err == nil && repo.Exists() {
		err = w.end(ctx, repo)
	} else if err == nil {
		w.endings.forget(func(ref nostr.RepoRef) bool { return ref == at.RepoRef })
	}
	if err != nil {
		return fmt.Errorf("look after %s: %w", at, err)
	}
	return nil
}

// welcome is for a repository that is hosted. If it was not for a while, nothing of that is left.
func (w *worker) welcome(repo *repository.Repo) error {
	w.endings.forget(func(ref nostr.RepoRef) bool { return ref == repo.Ref() })
	note, err := repo.Ended()
	if note == nil || err != nil {
		return err
	}
	if err := repo.ForgetEnded(); err != nil {
		return err
	}
	w.queue.addAllPulls(repo.Ref().Identifier) // it was not kept in line meanwhile
	w.touch(repo.Place())
	w.log.Info("a repository is hosted again", "repository", repo.Ref(), "away_since", note.Since)
	w.tell(repo.Ref().Identifier, proto.GitReturned, proto.GitNotice{Owner: npub(repo.Ref().PubKey)})
	return nil
}

// end is for a repository that is not hosted. One that never got data goes at once. Another is kept
// for a while if its owner has ended the hosting, how much of that time has passed is noted, and
// when it is over the repository is removed.
func (w *worker) end(ctx context.Context, repo *repository.Repo) error {
	ref := repo.Ref()
	refs, err := repo.Refs()
	if err != nil {
		return err
	}
	if len(refs.ByName) == 0 {
		return w.removeRepository(ctx, repo, "an empty repository is removed")
	}
	now := time.Now()
	one, step, err := w.howItEnds(ctx, repo, now)
	if err != nil {
		return err
	}
	switch step {
	case repostate.Remove:
		err := w.remove(ctx, repo, false)
		if errors.Is(err, errHosted) || errors.Is(err, errNotOver) {
			return nil
		}
		return err
	case repostate.CountTime:
		note := repostate.Counting(*one.note, now)
		one.note = &note
		err = repo.SetEnded(note)
	case repostate.NoteEnd:
		err = repo.SetEnded(*one.note)
	}
	if err != nil {
		return err
	}
	if step == repostate.NoteEnd {
		w.log.Info("the hosting of a repository has ended", "repository", ref, "reason", one.note.Reason, "kept_until", one.until)
		w.tell(ref.Identifier, proto.GitEnded, proto.GitNotice{Owner: npub(ref.PubKey), Event: one.note.Announcement, Reason: one.note.Reason})
	}
	w.endings.set(one)
	if !one.until.IsZero() {
		look := now.Add(repostate.CountEvery)
		if one.until.Before(look) {
			look = one.until
		}
		w.queue.addOnly(repo.Place(), look)
	}
	return nil
}

// howItEnds reads how a repository stands that is not hosted, and what must be done about it.
func (w *worker) howItEnds(ctx context.Context, repo *repository.Repo, now time.Time) (one ended, step repostate.Step, err error) {
	one.ref = repo.Ref()
	ending, err := w.ending(ctx, one.ref)
	if err != nil {
		return one, repostate.Keep, err
	}
	note, err := repo.Ended()
	if err != nil {
		return one, repostate.Keep, err
	}
	step, one.until = repostate.DecideEnding(ending, note, w.node.Settings.DeletionGrace, now)
	if step == repostate.NoteEnd {
		note = &repository.Ended{Announcement: ending.Announcement, Reason: ending.Reason, Since: now.UTC()}
	}
	if (ending != repostate.Ending{}) {
		one.note = note
	}
	return one, step, nil
}

var (
	// errHosted: the repository is hosted, and so is not removed.
	errHosted = errors.New("the repository is hosted")
	// errNotOver: what the log says has changed while its events were being removed.
	errNotOver = errors.New("the repository's time is not over any more")
)

// remove removes a repository that is not hosted, and what was accepted for it alone. At once: an
// operator has asked for it, so that neither its time nor how its hosting has ended matters. The
// caller has its lock.
//
// Events go first. Whether anything still needs them is decided by ingest, on the head of the log;
// while they go the note stays, so that a removal that breaks off is begun again by the worker that
// has the shard then.
func (w *worker) remove(ctx context.Context, repo *repository.Repo, atOnce bool) error {
	if err := w.isOver(ctx, repo, atOnce); err != nil {
		return err
	}
	removed, err := w.removeEvents(ctx, repo, atOnce)
	if err != nil {
		return err
	}
	// Its owner may have come back just now.
	if err := w.isOver(ctx, repo, atOnce); err != nil {
		return err
	}
	ref := repo.Ref()
	if err := w.removeRepository(ctx, repo, "a repository is removed"); err != nil {
		return err
	}
	w.log.Info("events that were accepted for a removed repository alone are removed", "repository", ref, "events", removed)
	w.metrics.removed.Inc()
	w.tell(ref.Identifier, proto.GitRemoved, proto.GitNotice{Owner: npub(ref.PubKey)})
	return nil
}

// isOver decides on all that is known at this moment whether a repository must be removed. The
// error is errHosted or errNotOver where it must not. Where that cannot be known within lookTime it
// is another error, and nothing is removed.
func (w *worker) isOver(ctx context.Context, repo *repository.Repo, atOnce bool) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	hosted, err := w.announcedNow(ctx, repo.Ref())
	if err == nil && hosted {
		w.touch(repo.Place())
		err = errHosted
	}
	if err != nil || atOnce {
		return err
	}
	_, step, err := w.howItEnds(ctx, repo, time.Now())
	if err == nil && step != repostate.Remove {
		w.touch(repo.Place()) // the log says something else now, or the time must be counted
		err = errNotOver
	}
	return err
}

// removeRepository takes a repository off the disk. The caller has its lock.
func (w *worker) removeRepository(ctx context.Context, repo *repository.Repo, message string) error {
	if err := repo.Remove(ctx); err != nil {
		return err
	}
	gone := func(other repository.Place) bool { return other == repo.Place() }
	w.pending.Drop(gone)
	w.releaser.Tips.Drop(gone)
	w.endings.forget(func(ref nostr.RepoRef) bool { return ref == repo.Ref() })
	w.log.Info(message, "repository", repo.Ref())
	return nil
}

// ending reads from the log how the hosting of a repository has ended that is not hosted. The log
// has the owner's last announcement also when that was deleted.
func (w *worker) ending(ctx context.Context, ref nostr.RepoRef) (repostate.Ending, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	last, acceptedAt, err := w.lastAnnouncement(ctx, ref)
	if last == nil || err != nil {
		return repostate.Ending{}, err
	}
	deleted, err := w.isDeleted(ctx, last)
	if err != nil {
		return repostate.Ending{}, fmt.Errorf("look for a deletion of the announcement of %s: %w", ref, err)
	}
	// It is of a repository that is here as long as it lists us, under this or an earlier domain, or
	// is archived. One of before the folder's time may list a domain that is not known any more.
	isHere := func(a *nostr.Announcement) bool {
		return w.rules.Keeps(a) || slices.ContainsFunc(w.belongs.Domains, a.ListsService) || acceptedAt.Before(w.belongs.Since)
	}
	return repostate.EndingOf(ref, isHere, last, deleted), nil
}

// isDeleted reports whether an accepted deletion request by its author names an announcement.
func (w *worker) isDeleted(ctx context.Context, announcement *nostr.Event) (bool, error) {
	if w.node.Settings.IgnoreDeletions {
		return false, nil
	}
	for _, filter := range repostate.DeletionsOf(announcement) {
		for request, err := range w.events.Query(ctx, filter) {
			if err != nil || repostate.Deletes(request, announcement) {
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
