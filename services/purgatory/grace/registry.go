package grace

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

// Entry is a repository on the disk that is not hosted.
type Entry struct {
	Ref  nostr.RepoRef
	Note *repository.Ended // nil: the log does not say that its hosting has ended
	// Until is up to when it is kept; zero: without an end.
	Until time.Time
}

// Registry is those of the shards that one worker holds. What is in it can be read again from the
// disk and the log. It is safe for concurrent use.
type Registry struct {
	mu   sync.Mutex
	by   map[nostr.RepoRef]*listed
	next time.Time // nothing is due before
}

type listed struct {
	Entry
	due time.Time // when to look again; zero: never
}

// NewRegistry makes an empty one.
func NewRegistry() *Registry { return &Registry{by: map[nostr.RepoRef]*listed{}} }

// Set notes a repository, which is due at the end of its time, or at look if that is earlier. The
// zero time is never.
func (r *Registry) Set(e Entry, look time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if look.IsZero() || !e.Until.IsZero() && e.Until.Before(look) {
		look = e.Until
	}
	r.put(e, look)
}

func (r *Registry) put(e Entry, due time.Time) {
	r.by[e.Ref] = &listed{e, due}
	if !due.IsZero() && (r.next.IsZero() || due.Before(r.next)) {
		r.next = due
	}
}

// Postpone makes a repository due at a later time, if it is there.
func (r *Registry) Postpone(ref nostr.RepoRef, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.by[ref]; l != nil {
		r.put(l.Entry, until)
	}
}

// Forget is for a repository that is hosted again, or gone.
func (r *Registry) Forget(ref nostr.RepoRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.by, ref)
}

// DropShard forgets the repositories of a shard, which another worker looks after.
func (r *Registry) DropShard(shard int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref := range r.by {
		if proto.ShardOf(ref.Identifier) == shard {
			delete(r.by, ref)
		}
	}
}

// Due returns the repositories whose time is over, those that are over the longest first. It costs
// nothing while there are none.
func (r *Registry) Due(now time.Time) (refs []nostr.RepoRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next.IsZero() || now.Before(r.next) {
		return nil
	}
	r.next = time.Time{}
	var over []*listed
	for _, l := range r.by {
		if l.due.IsZero() {
			continue
		}
		if !now.Before(l.due) {
			over = append(over, l)
		}
		if r.next.IsZero() || l.due.Before(r.next) {
			r.next = l.due
		}
	}
	slices.SortFunc(over, func(a, b *listed) int { return cmp.Or(a.due.Compare(b.due), compare(a.Ref, b.Ref)) })
	for _, l := range over {
		refs = append(refs, l.Ref)
	}
	return refs
}

// Get returns what is known of a repository.
func (r *Registry) Get(ref nostr.RepoRef) (Entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.by[ref]; l != nil {
		return l.Entry, true
	}
	return Entry{}, false
}

// Shard lists at most so many repositories of a shard behind after, in order of their references
// (nostr.RepoRef.String); after is empty for the first ones.
func (r *Registry) Shard(shard int, after string, most int) (list []Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, l := range r.by {
		if proto.ShardOf(ref.Identifier) == shard && ref.String() > after {
			list = append(list, l.Entry)
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return compare(a.Ref, b.Ref) })
	return list[:min(len(list), most)]
}

// Count is how many there are: those with an end, and those that are kept without one.
func (r *Registry) Count() (ending, kept int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.by {
		if l.Until.IsZero() {
			kept++
		} else {
			ending++
		}
	}
	return ending, kept
}

func compare(a, b nostr.RepoRef) int { return strings.Compare(a.String(), b.String()) }
