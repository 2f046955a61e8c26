package release

import (
	"maps"
	"sync"

	"tendril.dev/services/purgatory/repository"
)

// maxRemembered bounds the identifiers that are remembered; what is forgotten costs a look at the
// disk.
const maxRemembered = 20_000

// memory is what the releaser knows of the disk from having put it there, so that settling where
// nothing happened starts no git process. Whoever else changes a repository, a push above all,
// makes it forget.
type memory struct {
	mu sync.Mutex
	by map[string]*remembered // identifier
}

// remembered is what is known of the repositories of one identifier.
type remembered struct {
	swept   map[string]bool    // owners whose repository is there and without leftovers
	aligned map[string]aligned // owner
	tidy    map[string]bool    // owners below whose refs/nostr/ nothing waits and nothing is wrong
	unfit   map[string]bool    // ids of states that no repository can have
}

// aligned is the state whose references a repository has.
type aligned struct {
	state string // event id
	held  bool   // it was not accepted yet
}

// of returns what is remembered of an identifier. It is the caller's alone while the caller settles
// the identifier.
func (m *memory) of(identifier string) *remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.by[identifier]; known != nil {
		return known
	}
	if m.by == nil || len(m.by) >= maxRemembered {
		m.by = map[string]*remembered{}
	}
	m.by[identifier] = &remembered{
		swept: map[string]bool{}, aligned: map[string]aligned{}, tidy: map[string]bool{}, unfit: map[string]bool{},
	}
	return m.by[identifier]
}

// Forget makes the releaser look at the repositories of an identifier again: somebody else is about
// to change them, or may have.
func (r *Releaser) Forget(identifier string) {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	delete(r.memory.by, identifier)
}

// ForgetRepository makes the releaser look at one repository again: a push is about to change it.
// The others of the identifier are as they were.
func (r *Releaser) ForgetRepository(at repository.Place) {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	if known := r.memory.by[at.Identifier]; known != nil {
		key := at.PubKey
		if at.PRs {
			key = keyOf(key)
		}
		known.forget(key)
		delete(known.swept, key)
	}
}

// forget is for references that are not as they were remembered.
func (k *remembered) forget(key string) {
	delete(k.aligned, key)
	delete(k.tidy, key)
}

// ForgetAll forgets the identifiers that another may have worked on.
func (r *Releaser) ForgetAll(which func(identifier string) bool) {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	maps.DeleteFunc(r.memory.by, func(identifier string, _ *remembered) bool { return which(identifier) })
}
