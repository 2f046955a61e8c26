package repository

import (
	"maps"
	"slices"
	"sync"
)

// Mentions remembers which names repositories mention, of keys and of events, and finds the
// repositories by these. It is in memory only. The zero value remembers none. It is safe for
// concurrent use.
type Mentions struct {
	mu     sync.Mutex
	names  map[Place]map[string]bool
	places map[string]map[Place]bool
}

// Set is all that a repository mentions. It is remembered also if that is nothing.
func (m *Mentions) Set(at Place, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names == nil {
		m.names, m.places = map[Place]map[string]bool{}, map[string]map[Place]bool{}
	}
	m.forget(at)
	m.names[at] = map[string]bool{}
	m.add(at, names)
}

// Add is more that a repository mentions. One that was not set yet will be.
func (m *Mentions) Add(at Place, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[at] != nil {
		m.add(at, names)
	}
}

func (m *Mentions) add(at Place, names []string) {
	for _, name := range names {
		if m.names[at][name] = true; m.places[name] == nil {
			m.places[name] = map[Place]bool{}
		}
		m.places[name][at] = true
	}
}

// Remove is a name that a repository does not mention any more.
func (m *Mentions) Remove(at Place, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(at, name)
}

func (m *Mentions) remove(at Place, name string) {
	delete(m.names[at], name)
	if delete(m.places[name], at); len(m.places[name]) == 0 {
		delete(m.places, name)
	}
}

// Forget forgets a repository.
func (m *Mentions) Forget(at Place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(at)
}

// Drop forgets the repositories that which picks.
func (m *Mentions) Drop(which func(Place) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at := range m.names {
		if which(at) {
			m.forget(at)
		}
	}
}

func (m *Mentions) forget(at Place) {
	for name := range m.names[at] {
		m.remove(at, name)
	}
	delete(m.names, at)
}

// Has reports whether a repository was set.
func (m *Mentions) Has(at Place) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names[at] != nil
}

// Of are the repositories that mention a name.
func (m *Mentions) Of(name string) []Place {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.places[name]))
}

// Names are all that any repository mentions.
func (m *Mentions) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.places))
}
