package purgatory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// removeAtOnce and removeBytes bound the events whose removal is asked for in one go.
	removeAtOnce = 1000
	removeBytes  = 1 << 20
)

// lookAfter looks after a repository that may not be hosted any more, or may be hosted again.
func (w *retention) lookAfter(ctx context.Context, hosted bool, repo *repository.Locked) (err error) {
	switch {
	case !repo.Exists():
	case hosted:
		err = w.clearEnded(repo)
	default:
		err = w.end(ctx, repo)
	}
	if err != nil {
		return fmt.Errorf("look after %s: %w", repo.Place, err)
	}
	return nil
}

// clearEnded is for a repository that is hosted. If it was not for a while, its note goes.
func (w *retention) clearEnded(repo *repository.Locked) error {
	note, err := repo.Ended()
	if note == nil || err != nil {
		return err
	}
	if err := repo.SetEnded(nil); err != nil {
		return err
	}
	w.schedule.enqueue(repo.Place, groupAndAcceptedPRs) // it was not kept in line meanwhile
	w.log.Info("a repository is hosted again", "repository", repo.RepoRef, "away_since", note.Since)
	w.notices.tell(repo.Identifier, proto.GitReturned, proto.GitNotice{Owner: nostr.Npub(repo.PubKey)})
	return nil
}

// end is for a repository that is not hosted. One that never got data, or of which no announcement
// was ever accepted, goes at once: its announcement may have ended while the first push ran.
// Another is kept for a while if its owner has ended the hosting, and when that time is over it is
// removed.
func (w *retention) end(ctx context.Context, repo *repository.Locked) error {
	// References without objects are damage, of which an operator must hear. Objects without references
	// are there where the owner has deleted all states before.
	refs, err := repo.Refs()
	hasObjects, failed := repo.HasObjects()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	neverAccepted, err := w.neverAccepted(ctx, repo.Repo)
	if err != nil {
		return err
	}
	if !hasObjects && len(refs.ByName) == 0 || neverAccepted {
		return w.removeRepository(ctx, repo)
	}
	how, err := w.howItEnds(ctx, repo.Repo)
	switch {
	case err != nil || how.until.IsZero():
		return err
	case how.isOver():
		if err := w.remove(ctx, repo, false); !errors.Is(err, errStillHosted) {
			return err
		}
		return nil
	case !how.noted:
		if err := repo.SetEnded(how.note); err != nil {
			return err
		}
		ref := repo.RepoRef
		w.log.Info("the hosting of a repository has ended", "repository", ref, "reason", how.note.Reason, "kept_until",
			how.until)
		w.notices.tell(ref.Identifier, proto.GitEnded, proto.GitNotice{Owner: nostr.Npub(ref.PubKey), Event: how.note.Announcement,
			Reason: how.note.Reason})
	}
	w.schedule.later(repo.Place, how.until)
	return nil
}

// neverAccepted reports whether no announcement of a repository was ever accepted. The mark in its
// folder is not enough: it goes with the next look after the first announcement was accepted, and
// an owner who deletes that announcement sooner has the grace period too. The log is not enough
// either: it may have been lost.
func (w *retention) neverAccepted(ctx context.Context, repo *repository.Repo) (bool, error) {
	if !repo.IsUnproven() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	last, err := w.knowledge.lastAt(ctx, repo.RepoRef.Address())
	if err != nil {
		return false, fmt.Errorf("look for an accepted announcement of %s: %w", repo.RepoRef, err)
	}
	return last.event == nil && last.removed == "", nil
}

// ending is how a repository stands that is not hosted.
type ending struct {
	note  *repository.Ended // nil: the log does not say that its hosting has ended
	noted bool              // in its folder
	until time.Time         // up to when it is kept; zero: without an end
}

// isOver reports whether the repository must be removed now. How its hosting has ended is noted and
// told first.
func (e ending) isOver() bool { return e.noted && !e.until.IsZero() && !time.Now().Before(e.until) }

// howItEnds reads from the log how the hosting of a repository has ended that is not hosted. The
// log has the owner's last announcement also when that was deleted.
func (w *retention) howItEnds(ctx context.Context, repo *repository.Repo) (how ending, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	noted, err := repo.Ended()
	if err != nil {
		return how, err
	}
	logged, err := w.knowledge.lastAt(ctx, repo.RepoRef.Address())
	if err != nil {
		return how, fmt.Errorf("read the last announcement of %s: %w", repo.RepoRef, err)
	}
	last := logged.event
	var why *repository.Ended
	if ban := w.node.Bans.Repository(repo.RepoRef); ban != nil && ban.Purge {
		why = &repository.Ended{Reason: repostate.Banned}
	}
	switch {
	case last == nil && noted != nil && slices.Contains([]string{repostate.Expired, repostate.Deleted,
		repostate.Vanished}, noted.Reason):
		why = noted // what has expired, or was taken away long ago, leaves the log
	case logged.removed != "": // no worker was there before
		why = &repository.Ended{Announcement: logged.removed, Reason: repostate.Expired}
	case last == nil:
	default:
		taken := ""
		if !w.node.Settings.IgnoreDeletions {
			if taken, err = w.knowledge.takenBy(ctx, last); err != nil {
				return how, err
			}
		}
		// It is of a repository that is here as long as it lists us, under this or an earlier domain,
		// or is archived. A whitelist that does not have it any more ends its serving, and takes nothing
		// away. One of before the folder's time may list a domain that is not known any more.
		isHere := func(a *nostr.Announcement) bool {
			return w.knowledge.rules.Lists(a) || w.knowledge.rules.Archives(a) ||
				slices.ContainsFunc(w.belongs.Domains, a.ListsService) || logged.at.Before(w.belongs.Since)
		}
		if reason := repostate.EndingOf(repo.RepoRef, isHere, last, taken, isOver(last, time.Now())); reason != "" {
			why = &repository.Ended{Announcement: last.ID, Reason: reason}
		}
	}
	how.note, how.until = repostate.KeptUntil(why, noted, w.node.Settings.DeletionGrace, time.Now())
	how.noted = how.note == noted
	return how, nil
}

// logged is the last event that was ever accepted at an address, also if it counts no more.
type logged struct {
	event   *nostr.Event // nil: there was none, or it has left the log
	at      time.Time    // when it was accepted
	removed string       // the id of one that has left the log lately, because its time is over
}

// lastAt returns what was accepted last at an address. The stream's leader is asked, not any replica:
// that could be behind.
func (w *knowledge) lastAt(ctx context.Context, address nostr.Address) (last logged, err error) {
	place := &nostr.Event{Kind: address.Kind, PubKey: address.PubKey, Tags: nostr.Tags{{"d", address.Identifier}}}
	message, found, err := bus.Last(ctx, w.node.Bus.JS, proto.StreamEvents, proto.EventSubjectOf(place).String())
	if err != nil || !found {
		return last, err
	}
	last.at, last.removed = message.Time, message.Header.Get(proto.HeaderRemoved)
	if ev := (&nostr.Event{}); ev.UnmarshalJSON(message.Data) == nil {
		last.event = ev
	}
	return last, nil
}

// count counts the accepted events that match one of the filters.
func (w *knowledge) count(ctx context.Context, filters ...nostr.Filter) (n int, err error) {
	for _, filter := range filters {
		for _, err := range w.events.IDs(ctx, filter) {
			if err != nil {
				return 0, fmt.Errorf("count accepted events: %w", err)
			}
			n++
		}
	}
	return n, nil
}

// takenBy says how the author of an announcement or a state has taken it away: repostate.Deleted or
// Vanished; "": the author has not.
func (w *knowledge) takenBy(ctx context.Context, ev *nostr.Event) (how string, err error) {
	if n, err := w.count(ctx, repostate.DeletionsOf(ev)...); err != nil || n > 0 {
		return repostate.Deleted, err
	}
	vanished := nostr.Filter{Kinds: []int{nostr.KindVanish}, Authors: []string{ev.PubKey}, Since: &ev.CreatedAt}
	for request, err := range w.events.Query(ctx, vanished) {
		if err != nil {
			return "", fmt.Errorf("look for requests to vanish: %w", err)
		}
		if w.rules.Vanishes(request) {
			return repostate.Vanished, nil
		}
	}
	return "", nil
}

// errStillHosted: the repository is hosted, or what the log says has changed while its events were
// removed.
var errStillHosted = errors.New("the repository is hosted")

// remove removes a repository that is not hosted, and what was accepted for it alone. At once: an
// operator has asked for it, so that neither its time nor how its hosting has ended matters.
//
// Events go first. Whether anything still needs them is decided by ingest, on the head of the log;
// while they go the note stays, so that a removal that breaks off is begun again by the worker that
// has the shard then.
func (w *retention) remove(ctx context.Context, repo *repository.Locked, atOnce bool) error {
	ref := repo.RepoRef
	removed, err := w.removeEvents(ctx, repo, atOnce)
	if err == nil {
		err = w.confirmRemoval(ctx, repo, atOnce) // its owner may have come back just now
	}
	if err == nil {
		err = w.removeRepository(ctx, repo)
	}
	if err != nil {
		return err
	}
	w.log.Info("events that were accepted for a removed repository alone are removed", "repository", ref, "events",
		removed)
	w.notices.tell(ref.Identifier, proto.GitRemoved, proto.GitNotice{Owner: nostr.Npub(ref.PubKey)})
	return nil
}

// confirmRemoval decides on all that is known at this moment whether a repository must be removed;
// errStillHosted: it must not. Where that cannot be known within lookTime it is another error, and
// nothing is removed.
func (w *retention) confirmRemoval(ctx context.Context, repo *repository.Locked, atOnce bool) error {
	if err := repo.MayWrite(ctx); err != nil {
		return err // another worker decides from now on
	}
	stays, err := w.hosting.hosts(ctx, repo.RepoRef, true)
	if err == nil && !stays && !atOnce {
		var how ending
		how, err = w.howItEnds(ctx, repo.Repo)
		stays = !how.isOver()
	}
	if err == nil && stays {
		w.schedule.enqueue(repo.Place, maintainerGroup)
		err = errStillHosted
	}
	return err
}

// removeRepository takes a repository off the disk.
func (w *retention) removeRepository(ctx context.Context, repo *repository.Locked) error {
	if err := repo.Remove(ctx); err != nil {
		return err
	}
	w.releaser.Forget(func(at repository.Place) bool { return at == repo.Place })
	w.statuses.Delete(repo.Place)
	w.log.Info("a repository is removed", "repository", repo.RepoRef)
	return nil
}

// removeEvents asks ingest to remove the events that were accepted for a repository and that
// nothing else needs, and returns how many these were: those that name it, and the states of those
// who spoke for it alone. States stay as long as another repository of the identifier is kept for
// its owner: they may be that one's. Before each part it is decided again that the repository must
// be removed: its owner may have come back.
func (w *retention) removeEvents(ctx context.Context, repo *repository.Locked, atOnce bool) (removed int, err error) {
	ref := repo.RepoRef
	var part []*nostr.Event
	bytes := 0
	remove := func() error {
		if err := w.confirmRemoval(ctx, repo, atOnce); err != nil {
			return err
		}
		verdicts, err := release.Ask(ctx, w.sender, proto.ActionRemove, "", part...)
		for i, v := range verdicts {
			if v.Outcome == proto.Rejected {
				return fmt.Errorf("ingest does not remove event %s: %s", part[i].ID, v.Message)
			}
			if v.Seq > 0 {
				removed++
			}
		}
		part, bytes = nil, 0
		return err
	}
	filters := namingOf(ref)
	others, err := w.keptBeside(ctx, ref)
	if err == nil && !others {
		filters = append(filters, statesOf(ref.Identifier))
	}
	for _, filter := range filters {
		for ev, failed := range w.knowledge.events.Query(ctx, filter) {
			if err = errors.Join(err, failed); err != nil {
				return removed, fmt.Errorf("look for the events of %s: %w", ref, err)
			}
			if !w.removable(ref, ev) {
				continue
			}
			part = append(part, ev)
			if bytes += len(nostr.Encode(ev)); len(part) == removeAtOnce || bytes >= removeBytes {
				if err := remove(); err != nil {
					return removed, err
				}
			}
		}
	}
	if len(part) > 0 {
		err = remove()
	}
	return removed, err
}

// removable reports whether ingest must be asked for the removal of an event. What names another
// repository that is on the disk stays as long as that: its owner may have given it up too, and
// come back to it, which ingest does not know of.
func (w *retention) removable(of nostr.RepoRef, ev *nostr.Event) bool {
	switch {
	case ev.Kind == nostr.KindAnnouncement, ev.Kind == nostr.KindDeletion, ev.Kind == nostr.KindVanish,
		nostr.KindOf(ev.Kind).FromAnyone:
		return false // ingest keeps these
	case ev.Kind == nostr.KindState:
		return true // it is its author's, also where it names others
	}
	for _, address := range nostr.ReferencesOf(ev).Addresses {
		if ref, is := address.Repo(); is && ref != of {
			if repo, err := w.store.Repo(ref); err == nil && repo.Exists() {
				return false
			}
		}
	}
	return true
}

// namingOf finds the events that name a repository.
func namingOf(ref nostr.RepoRef) (filters []nostr.Filter) {
	for _, tag := range []string{"a", "A", "q"} {
		filters = append(filters, nostr.Filter{Tags: nostr.TagMap{tag: {ref.String()}}})
	}
	return filters
}

// statesOf finds the states of an identifier, by anybody.
func statesOf(identifier string) nostr.Filter {
	return nostr.Filter{Kinds: []int{nostr.KindState}, Tags: nostr.TagMap{"d": {identifier}}}
}

// keptBeside reports whether another repository of the identifier lies on the disk that ingest may
// not know of: it is not hosted, or it is an archive, which may be one by settings of earlier.
// Those of contributors have no states.
func (w *retention) keptBeside(ctx context.Context, ref nostr.RepoRef) (bool, error) {
	for other, err := range w.store.Places(ctx, nostr.RepoRef{Identifier: ref.Identifier}) {
		if err != nil {
			return true, err
		}
		if other.PRs || other.RepoRef == ref {
			continue
		}
		v, err := w.knowledge.around(ctx, ref.Identifier, []string{other.PubKey}, nil)
		if err != nil || !v.Hosts(other.PubKey) || v.IsArchived(other.PubKey) {
			return true, err
		}
	}
	return false, nil
}
