package release

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// Look says which references below refs/nostr/ a call of Release compares with their events. There
// may be thousands in a repository, and pushes wait meanwhile.
type Look struct {
	// Events are ids of events that came, changed or ended: the references that are named for them are
	// looked at.
	Events []string

	// Whole says of which repositories all of these references are looked at. Of the others those that
	// wait for their events are. Optional; without it only those of Events are looked at.
	Whole func(at repository.Place) bool
}

// readTips reads the references of a repository that are looked at: by event, what they name. They
// are remembered before anything is asked of their events, so that none ends unnoticed meanwhile.
func (p *pass) readTips(repo *repository.Locked, waiting []repository.WaitingPush) (tips map[string]string, err error) {
	whole := repo.PRs || p.look.Whole != nil && p.look.Whole(repo.Place)
	var refs repository.Refs
	if whole {
		refs, err = repo.RefsBelow(repostate.PrefixNostr)
	} else {
		events := slices.Concat(p.look.Events, p.namedNow[repo.Place])
		for _, w := range waiting {
			events = append(events, w.Event)
		}
		if len(events) > 0 {
			refs, err = repo.RefsBelow(refNames(events)...)
		}
	}
	if err != nil {
		return nil, err
	}
	tips = map[string]string{}
	for name, id := range refs.ByName {
		tips[strings.TrimPrefix(name, repostate.PrefixNostr)] = id
	}
	if events := slices.Collect(maps.Keys(tips)); whole {
		p.Tips.Set(repo.Place, events)
	} else {
		p.Tips.Add(repo.Place, events)
	}
	return tips, nil
}

// refNames are the references for events.
func refNames(events []string) (names []string) {
	for _, event := range events {
		if nostr.IsHex64(event) {
			names = append(names, repostate.PrefixNostr+event)
		}
	}
	return names
}

// checkTips compares references below refs/nostr/ of a repository with their events, and returns of
// those that were looked at the events for which they stay. One that was pushed before its event has
// a note: it waits for that, and check compares the two when it is known. Any other was compared
// before it was made, and goes when its event is deleted.
func (p *pass) checkTips(ctx context.Context, repo *repository.Locked,
	check func(ev *nostr.Event, commit string) error) (left []string, err error) {
	all, err := repo.Waiting()
	if err != nil {
		return nil, err
	}
	waiting := all
	if p.look.Whole == nil {
		waiting = slices.DeleteFunc(slices.Clone(all),
			func(w repository.WaitingPush) bool { return !slices.Contains(p.look.Events, w.Event) })
	}
	tips, err := p.readTips(repo, waiting)
	if err != nil || len(tips)+len(waiting) == 0 {
		return nil, err
	}
	unknown, err := p.Events.Unknown(ctx, slices.Collect(maps.Keys(tips)))
	if err != nil {
		return nil, err
	}
	remove := map[string]string{} // event → why
	for _, event := range unknown {
		remove[event] = "its event has not come, or is gone"
	}
	over := map[string]bool{} // events for which no reference waits any more
	for _, w := range waiting {
		waits, why, err := p.checkWaiting(ctx, repo, w.Event, tips[w.Event], remove[w.Event] != "", check)
		if err != nil {
			return nil, err
		}
		if over[w.Event] = !waits; waits {
			delete(remove, w.Event)
		} else if why != "" {
			remove[w.Event] = why
		}
	}
	for event, why := range remove {
		if err := repo.DeleteRef(ctx, repostate.PrefixNostr+event); err != nil {
			return nil, fmt.Errorf("remove %s%s: %w", repostate.PrefixNostr, event, err)
		}
		p.Log.Info("a pushed commit is removed", "repository", repo.Place, "event", event, "reason", why)
		delete(tips, event)
		p.Tips.Remove(repo.Place, event)
	}
	still := slices.DeleteFunc(slices.Clone(all), func(w repository.WaitingPush) bool { return over[w.Event] })
	if len(still) < len(all) {
		if err := repo.SetWaiting(still); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(tips)), nil
}

// checkWaiting reports whether a reference that was pushed before its event waits still, and why it
// must go; "": it does not, or its event has not come in time. commit is what it names; "": it is not
// there. unknown: its event is not here.
func (p *pass) checkWaiting(ctx context.Context, repo *repository.Locked, event, commit string, unknown bool,
	check func(ev *nostr.Event, commit string) error) (waits bool, why string, err error) {
	if unknown {
		until := placed(repo.Repo, event).Add(p.Hold)
		if waits = time.Now().Before(until); waits {
			p.Later(repo.Place, until)
		}
		return waits, "", nil
	}
	if commit == "" {
		return false, "", nil
	}
	ev, err := Find(ctx, p.Events, event)
	if err != nil || ev == nil {
		return true, "", err // it has gone at this moment
	}
	err = check(ev, commit)
	if err == nil && !repo.PRs && !p.v.Serves(ev.PubKey) {
		full, failed := p.crowd.Full(ctx, repo.Repo, ev.PubKey)
		if err = failed; full {
			err = TooMany(ev.PubKey)
		}
	}
	if refused, is := errors.AsType[*repostate.Refused](err); is {
		return false, refused.Reason, nil
	}
	return false, "", err
}

// placed is when a reference under refs/nostr/ was pushed; what has no file of its own is as old as
// can be.
func placed(repo *repository.Repo, event string) (at time.Time) {
	if info, err := os.Lstat(filepath.Join(repo.Path, filepath.FromSlash(repostate.PrefixNostr), event)); err == nil {
		at = info.ModTime()
	}
	return at
}
