package release

import (
	"maps"
	"slices"
	"sync"

	"tendril.dev/services/purgatory/repository"
)

// Tips knows for which events references below refs/nostr/ are named, as far as the repositories
// were looked at: an event that comes or is deleted is looked for there. It is safe for concurrent
// use.
type Tips struct {
	mu sync.Mutex
	at map[string]map[repository.Place]bool // event → where; true: it is accepted and names that commit
	of map[repository.Place]map[string]bool // the same by place
	// doubts counts calls of Of: what was found right before one may not be any more.
	doubts int
}

// NewTips makes an empty one.
func NewTips() *Tips {
	return &Tips{at: map[string]map[repository.Place]bool{}, of: map[repository.Place]map[string]bool{}}
}

// Of returns where references are named for an event. They are looked at again.
func (t *Tips) Of(event string) []repository.Place {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.doubts++
	for at := range t.at[event] {
		t.at[event][at] = false
	}
	return slices.Collect(maps.Keys(t.at[event]))
}

// Drop forgets repositories.
func (t *Tips) Drop(which func(at repository.Place) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at := range t.of {
		if which(at) {
			t.set(at, nil)
		}
	}
}

func (t *Tips) where(event string) []repository.Place {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.at[event]))
}

func (t *Tips) isRight(at repository.Place, event string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[event][at]
}

func (t *Tips) doubted() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.doubts
}

// replace notes the events of a repository, and of each whether its reference was right since
// doubted was asked.
func (t *Tips) replace(at repository.Place, events map[string]bool, doubts int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for event, right := range events {
		events[event] = right && doubts == t.doubts
	}
	t.set(at, events)
}

func (t *Tips) set(at repository.Place, events map[string]bool) {
	for event := range t.of[at] {
		if delete(t.at[event], at); len(t.at[event]) == 0 {
			delete(t.at, event)
		}
	}
	if len(events) == 0 {
		delete(t.of, at)
		return
	}
	t.of[at] = map[string]bool{}
	for event, right := range events {
		t.of[at][event] = true
		if t.at[event] == nil {
			t.at[event] = map[repository.Place]bool{}
		}
		t.at[event][at] = right
	}
}
