package purgatory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// watch remembers of the repositories of this worker on which announcements and states they depend.
// A change of what one key says finds by it the repositories concerned, and no others: also those
// that depended on what is gone now, and those of other owners where the key has no folder. It is
// memory only; a worker that takes a shard looks at all of its repositories.
type watch struct {
	mu      sync.Mutex
	repos   map[repository.Place]watched
	places  map[string]map[repository.Place]bool // by key or event id
	follows map[repository.Place]*nostr.Event    // the state that the references follow
}

type watched []string // keys and event ids

func newWatch() *watch {
	return &watch{
		repos: map[repository.Place]watched{}, places: map[string]map[repository.Place]bool{},
		follows: map[repository.Place]*nostr.Event{},
	}
}

// set notes what a repository depends on; without names it is forgotten.
func (w *watch) set(at repository.Place, names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.repos[at] {
		if delete(w.places[name], at); len(w.places[name]) == 0 {
			delete(w.places, name)
		}
	}
	if len(names) == 0 {
		delete(w.repos, at)
		delete(w.follows, at)
		return
	}
	w.repos[at] = names
	for _, name := range names {
		if w.places[name] == nil {
			w.places[name] = map[repository.Place]bool{}
		}
		w.places[name][at] = true
	}
}

// follow notes the state that the references of a repository follow.
func (w *watch) follow(at repository.Place, state *nostr.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.follows[at] = state
}

// followed is the state that the references of a repository follow, as far as that is known, or
// nil.
func (w *watch) followed(at repository.Place) *nostr.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.follows[at]
}

// of are the repositories that depend on a key or an event.
func (w *watch) of(name string) (places []repository.Place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at := range w.places[name] {
		places = append(places, at)
	}
	return places
}

// drop forgets the repositories of the identifiers that which picks.
func (w *watch) drop(which func(identifier string) bool) {
	w.mu.Lock()
	var gone []repository.Place
	for at := range w.repos {
		if which(at.Identifier) {
			gone = append(gone, at)
		}
	}
	w.mu.Unlock()
	for _, at := range gone {
		w.set(at, nil)
	}
}

// enqueueDependent has the repositories looked at that depend on a key or an event. identifier "":
// those of every identifier.
func (w *schedule) enqueueDependent(name, identifier string) {
	for _, at := range w.watch.of(name) {
		if identifier == "" || at.Identifier == identifier {
			w.enqueue(at, maintainerGroup)
		}
	}
}

// remember notes what the repositories of a scope depend on now, and looks at them again when some
// of that expires.
func (w *schedule) remember(v repostate.View, scope []*repository.Locked, applied map[string]repostate.State) {
	for _, repo := range scope {
		at := repo.Place
		if at.PRs {
			continue
		}
		if !v.Hosts(at.PubKey) {
			w.watch.set(at, nil)
			continue
		}
		group := v.Group(at.PubKey)
		names := slices.Clone(group.Looked)
		depends := func(ev *nostr.Event) {
			names = append(names, ev.ID)
			if ends, will := expiresAt(ev, time.Now()); will {
				w.queue.addExpiration(at, ends)
			}
		}
		for _, key := range group.Looked {
			if a := v.By(key); a != nil {
				depends(a.Event)
			}
		}
		for _, state := range v.StatesFor(at.PubKey) {
			depends(state.Event)
		}
		w.watch.set(at, names)
		if state, is := applied[at.PubKey]; is {
			w.watch.follow(at, state.Event)
		}
	}
}

// StateDeleted reports whether the state that the references of a repository follow was deleted by
// its author, who is one of the confirmed maintainers. Which state that is a worker knows that has
// applied it. One that has taken the shard since goes by the requests that name the address of a
// state.
func (w forRelease) StateDeleted(ctx context.Context, at repository.Place, confirmed []string) (bool, error) {
	if w.knowledge.node.Settings.IgnoreDeletions {
		return false, nil
	}
	requests := nostr.Filter{Kinds: []int{nostr.KindDeletion}, Limit: 1}
	addressOf := func(author string) string {
		return nostr.Address{Kind: nostr.KindState, PubKey: author, Identifier: at.Identifier}.String()
	}
	var filters []nostr.Filter
	if state := w.schedule.watch.followed(at); state != nil {
		if !slices.Contains(confirmed, state.PubKey) {
			return false, nil
		}
		byID, byAddress := requests, requests
		byID.Authors, byID.Tags = []string{state.PubKey}, nostr.TagMap{"e": {state.ID}}
		byAddress.Authors, byAddress.Tags = []string{state.PubKey}, nostr.TagMap{"a": {addressOf(state.PubKey)}}
		byAddress.Since = &state.CreatedAt
		filters = append(filters, byID, byAddress)
	} else {
		for _, author := range confirmed {
			byAddress := requests
			byAddress.Authors, byAddress.Tags = []string{author}, nostr.TagMap{"a": {addressOf(author)}}
			filters = append(filters, byAddress)
		}
	}
	for _, filter := range filters {
		_, err := query.First(ctx, w.knowledge.events, filter)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, query.ErrNotFound):
			return false, fmt.Errorf("look for the deletion of a state of %s: %w", at, err)
		}
	}
	return false, nil
}
