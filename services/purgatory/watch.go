package purgatory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	roles "tendril.dev/lib/authority"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// enqueueDependent has the repositories looked at that depend on a key or an event. identifier "":
// those of every identifier.
func (w *schedule) enqueueDependent(name, identifier string) {
	for _, at := range w.depends.Of(name) {
		if identifier == "" || at.Identifier == identifier {
			w.enqueue(at, maintainerGroup)
		}
	}
}

// enqueueConcerned has the repositories looked at whose maintainers may be others when an author
// announces something new that lists these keys, or nothing any more. identifier "": those of every
// identifier.
func (w *schedule) enqueueConcerned(author, identifier string, listed []string) {
	for _, at := range w.depends.Of(author) {
		if (identifier == "" || at.Identifier == identifier) && w.group(at).MayChange(author, listed) {
			w.enqueue(at, maintainerGroup)
		}
	}
}

// group is who speaks for a repository, as it was looked at last; zero: it was not, or is not hosted.
func (w *schedule) group(at repository.Place) roles.Group {
	group, _ := w.groups.Load(at)
	known, _ := group.(roles.Group)
	return known
}

// spoken are the repositories of an identifier of which a key is a confirmed maintainer.
func (w *schedule) spoken(identifier, key string) []repository.Place {
	return slices.DeleteFunc(w.speaks.Of(key), func(at repository.Place) bool { return at.Identifier != identifier })
}

// isFollower reports whether the owner of a repository is none of its confirmed maintainers, as it
// was looked at last: the owner points to a lead, as any number of strangers may.
func (w *schedule) isFollower(at repository.Place) bool {
	group := w.group(at)
	return group.Root != "" && !group.Has(at.PubKey)
}

// owe notes which of some accepted pull requests of an identifier are not named everywhere.
func (w *schedule) owe(identifier string, looked, owed []string) {
	all := union(slices.DeleteFunc(w.owedOf(identifier), func(id string) bool { return slices.Contains(looked, id) }), owed)
	if len(all) == 0 {
		w.owed.Delete(identifier)
		return
	}
	w.owed.Store(identifier, all[:min(len(all), maxOwed)])
}

// owedOf are the accepted pull requests of an identifier that are not named everywhere.
func (w *schedule) owedOf(identifier string) []string {
	owed, _ := w.owed.Load(identifier)
	ids, _ := owed.([]string)
	return slices.Clone(ids)
}

// forget forgets what repositories depend on that which picks.
func (w *schedule) forget(which func(repository.Place) bool) {
	w.depends.Drop(which)
	w.speaks.Drop(which)
	for _, remembered := range []*sync.Map{&w.groups, &w.follows} {
		for at := range remembered.Range {
			if which(at.(repository.Place)) {
				remembered.Delete(at)
			}
		}
	}
	for identifier := range w.owed.Range {
		if which(placeOf("", identifier.(string))) {
			w.owed.Delete(identifier)
		}
	}
}

// note notes what the repositories of a scope depend on, before what was read of them is used. It
// reports whether they depend on more than before: what came of that just now may have been missed,
// and must be read again. Confirmed maintainers whose own repositories are hosted since are looked
// at.
func (w *schedule) note(v repostate.View, scope []repository.Place) (grew bool) {
	for _, at := range scope {
		switch {
		case at.PRs:
			continue
		case !v.Hosts(at.PubKey):
			w.depends.Forget(at)
			w.speaks.Forget(at)
			w.groups.Delete(at)
			w.follows.Delete(at)
			continue
		}
		group, before := v.Group(at.PubKey), w.group(at)
		names := slices.Clone(group.Looked)
		for _, key := range group.Looked {
			if a := v.By(key); a != nil {
				names = append(names, a.Event.ID)
			}
		}
		for _, state := range v.StatesFor(at.PubKey) {
			names = append(names, state.Event.ID)
		}
		w.depends.Set(at, names)
		w.speaks.Set(at, group.Confirmed)
		w.groups.Store(at, group)
		grew = grew || slices.ContainsFunc(group.Looked, func(key string) bool {
			_, known := slices.BinarySearch(before.Looked, key)
			return !known
		})
		for _, key := range group.Confirmed {
			if other := placeOf(key, at.Identifier); v.Hosts(key) && !slices.Contains(scope, other) && !w.depends.Has(other) {
				w.enqueue(other, groupAndAcceptedPRs)
			}
		}
	}
	return grew
}

// remember looks at the repositories of a scope again when some of what they depend on expires, and
// notes what they follow.
func (w *schedule) remember(v repostate.View, scope []*repository.Locked, applied map[string]repostate.State) {
	for _, repo := range scope {
		at := repo.Place
		if at.PRs || !v.Hosts(at.PubKey) {
			continue
		}
		await := func(ev *nostr.Event) {
			if ends, will := expiresAt(ev, time.Now()); will {
				w.queue.addExpiration(at, ends, "")
			}
		}
		for _, key := range v.Group(at.PubKey).Looked {
			if a := v.By(key); a != nil {
				await(a.Event)
			}
		}
		for _, state := range v.StatesFor(at.PubKey) {
			await(state.Event)
		}
		if state, is := applied[at.PubKey]; is {
			w.follows.Store(at, followedOf(state))
		}
	}
}

func followedOf(s repostate.State) repository.Followed {
	return repository.Followed{Event: s.Event.ID, Author: s.Event.PubKey, At: s.Event.CreatedAt}
}

// StateDeleted reports whether the state that the references of a repository follow was taken away
// by its author, who is one of the confirmed maintainers: deleted, or with all that the author wrote.
// Which state that is a worker knows that has applied it; one that has taken the shard since reads it
// in the folder. Where that is not noted it is one that the log still has.
func (w forRelease) StateDeleted(ctx context.Context, at repository.Place, confirmed []string) (bool, error) {
	if w.knowledge.node.Settings.IgnoreDeletions {
		return false, nil
	}
	followed, err := w.schedule.followed(at)
	if err != nil {
		return false, err
	}
	var states []*nostr.Event
	switch {
	case followed.Event == "":
		for _, author := range confirmed {
			address := nostr.Address{Kind: nostr.KindState, PubKey: author, Identifier: at.Identifier}
			last, err := w.knowledge.lastAt(ctx, address)
			if err != nil {
				return false, err
			}
			if last.event != nil {
				states = append(states, last.event)
			}
		}
	case slices.Contains(confirmed, followed.Author):
		states = append(states, &nostr.Event{ID: followed.Event, Kind: nostr.KindState, PubKey: followed.Author,
			CreatedAt: followed.At, Tags: nostr.Tags{{"d", at.Identifier}}})
	}
	for _, state := range states {
		if how, err := w.knowledge.takenBy(ctx, state); err != nil || how != "" {
			return err == nil, err
		}
	}
	return false, nil
}

// Followed implements release.Events.
func (w forRelease) Followed(ctx context.Context, at repository.Place) (*nostr.Event, error) {
	followed, err := w.schedule.followed(at)
	if err != nil || followed.Event == "" {
		return nil, err
	}
	ev, err := w.knowledge.Accepted(ctx, followed.Event)
	if ev == nil || err != nil || w.knowledge.node.Bans.Event(ev) != nil {
		return nil, err
	}
	return ev, nil
}

// followed is which state the references of a repository follow, as far as is noted.
func (w *schedule) followed(at repository.Place) (followed repository.Followed, err error) {
	if known, is := w.follows.Load(at); is {
		return known.(repository.Followed), nil
	}
	repo, err := w.store.At(at)
	if err == nil {
		followed, err = repo.Followed()
	}
	if err != nil {
		return followed, fmt.Errorf("read which state %s follows: %w", at, err)
	}
	return followed, nil
}
