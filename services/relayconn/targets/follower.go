package targets

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"tendril.dev/services/relayconn/history"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// Mark says what is wanted of a relay: the repositories up to a sequence of GRASP_TARGETS, with the
// root events up to a sequence of the log. The zero value is nothing.
type Mark struct{ Target, Log uint64 }

// Follower keeps what is wanted of one relay.
type Follower struct {
	// Changed is sent on when something else may be wanted.
	Changed chan struct{}
	// Read is closed when everything is known that was wanted at the beginning.
	Read chan struct{}

	targets *Targets
	name    string
	past    Mark // what was confirmed before

	// The lock of the roots guards the following.
	news     []news          // messages that are not shown yet
	repos    map[string]repo // by reference
	sequence uint64          // of the last message that is shown
	using    map[string]bool // repositories of which the root events are followed
	moved    bool            // the relay's URL may be another
	shown    bool            // everything was read that was there at the beginning

	dirty    bool // something else may be wanted than what wanted says
	wanted   history.Set
	revision uint64          // of wanted
	marks    map[uint64]Mark // by revision
}

// repo is what is wanted of one repository, and the message that says so.
type repo struct {
	proto.Wanted
	seq uint64
}

// news is one message; its repository has no level if nothing is wanted of it any more.
type news struct {
	ref string
	repo
}

// Follow makes a follower of the relay of that name, of which was confirmed what was wanted at a
// mark.
func (t *Targets) Follow(name string, past Mark) *Follower {
	f := &Follower{
		Changed: make(chan struct{}, 1), Read: make(chan struct{}), targets: t, name: name, past: past,
		repos: map[string]repo{}, marks: map[uint64]Mark{},
	}
	if past != (Mark{}) {
		f.revision, f.marks = 1, map[uint64]Mark{1: past}
	}
	return f
}

// Run follows what is wanted of the relay until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	roots := f.targets.roots
	select {
	case <-f.targets.begun:
	case <-ctx.Done():
		return nil
	}
	roots.mu.Lock()
	f.targets.followers[f.name] = f
	roots.mu.Unlock()
	defer f.leave()
	// Messages that come meanwhile are passed on by the targets.
	reading := bus.Reading{Stream: proto.StreamTargets, Filters: []string{proto.AnyWantedOf(f.name)}}
	err := bus.Read(ctx, f.targets.js, reading, func(m bus.Message) {
		roots.mu.Lock()
		defer roots.mu.Unlock()
		if err := f.take(m); err != nil {
			f.targets.log.Error("a target cannot be read", "subject", m.Subject, "error", err)
		}
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("read target %s: %w", f.name, err)
	}
	roots.mu.Lock()
	f.show()
	roots.mu.Unlock()
	<-ctx.Done()
	return nil
}

// leave ends the follower.
func (f *Follower) leave() {
	f.targets.roots.mu.Lock()
	defer f.targets.roots.mu.Unlock()
	if f.targets.followers[f.name] == f {
		delete(f.targets.followers, f.name)
	}
	f.targets.roots.use(f, nil)
}

// take takes in what a message says of a repository, to be shown.
func (f *Follower) take(m bus.Message) error {
	_, ref, err := proto.ParseWantedSubject(m.Subject)
	if err != nil {
		return err
	}
	n := news{ref, repo{seq: m.Seq}}
	if len(m.Data) > 0 {
		if err := json.Unmarshal(m.Data, &n.Wanted); err != nil {
			return err
		}
	}
	f.news = append(f.news, n)
	return nil
}

// show makes what was read what is wanted. At the beginning messages may have come twice, and in
// another order.
func (f *Follower) show() {
	last := map[string]uint64{}
	for _, n := range f.news {
		if n.seq < last[n.ref] || n.seq < f.repos[n.ref].seq {
			continue
		}
		last[n.ref], f.sequence = n.seq, max(f.sequence, n.seq)
		if n.Level == "" {
			delete(f.repos, n.ref)
		} else {
			f.repos[n.ref] = n.repo
		}
	}
	f.news, f.shown, f.dirty = nil, true, true
	var refs []string
	for ref, r := range f.repos {
		if r.Level == proto.LevelFull {
			refs = append(refs, ref)
		}
	}
	f.targets.roots.use(f, refs)
	f.tell()
}

// Relay is the relay's URL and whether it is one of the bootstrap relays; an empty URL says that it
// is no target.
func (f *Follower) Relay() (url string, bootstrap bool) {
	f.targets.roots.mu.Lock()
	defer f.targets.roots.mu.Unlock()
	relay := f.targets.relays[f.name]
	return relay.URL, relay.Bootstrap
}

// Wanted is what the relay should be asked for beyond layer 1, and a number for it. It waits for
// the root events of repositories that are new: until they are known it stays as it was.
func (f *Follower) Wanted() (wanted history.Set, revision uint64) {
	f.targets.roots.mu.Lock()
	defer f.targets.roots.mu.Unlock()
	if f.dirty && f.known() {
		f.look()
	}
	return f.wanted, f.revision
}

// look works out what is wanted; the lock is held.
func (f *Follower) look() {
	f.wanted = f.set(func(repo) bool { return true })
	f.revision++
	f.marks[f.revision] = Mark{f.sequence, f.targets.roots.seq}
	f.dirty = false
}

// Mark is how to tell a successor that what was wanted is confirmed, by its number; 0 is nothing.
// Of earlier numbers it will not be asked any more.
func (f *Follower) Mark(revision uint64) Mark {
	f.targets.roots.mu.Lock()
	defer f.targets.roots.mu.Unlock()
	maps.DeleteFunc(f.marks, func(r uint64, _ Mark) bool { return r < revision && r < f.revision })
	m, ok := f.marks[revision]
	if ok && revision == f.revision && !f.dirty {
		m.Log = max(m.Log, f.targets.roots.seq) // what came since is not wanted of this relay
		f.marks[revision] = m
	}
	return m
}

// Past is what of the things that are wanted now was confirmed at the mark that the follower was
// made with. Call it once everything is read.
func (f *Follower) Past(ctx context.Context) (history.Set, error) {
	if f.past == (Mark{}) {
		return history.Set{}, nil
	}
	newer, err := f.targets.roots.newer(ctx, f.past.Log)
	if err != nil {
		return history.Set{}, err
	}
	f.targets.roots.mu.Lock()
	defer f.targets.roots.mu.Unlock()
	past := f.set(func(r repo) bool { return r.seq <= f.past.Target })
	past.Roots = slices.DeleteFunc(past.Roots, func(id string) bool { return newer[id] })
	return past, nil
}

// set is what is wanted of some of the repositories; the lock is held.
func (f *Follower) set(which func(repo) bool) (s history.Set) {
	for ref, r := range f.repos {
		switch {
		case !which(r):
		case r.Level == proto.LevelStateOnly:
			if s.State == nil {
				s.State = map[string][]string{}
			}
			s.State[ref] = r.Authors
		default:
			s.Full = append(s.Full, ref)
			if l := f.targets.roots.lists[ref]; l != nil {
				s.Roots = append(s.Roots, l.ids...)
			}
		}
	}
	slices.Sort(s.Full)
	// An event may belong to several repositories.
	s.Roots = sortIDs(s.Roots)
	return s
}

// known reports whether the root events of all repositories are known; the lock is held.
func (f *Follower) known() bool {
	if !f.shown {
		return false
	}
	for ref, r := range f.repos {
		if l := f.targets.roots.lists[ref]; r.Level == proto.LevelFull && (l == nil || !l.read) {
			return false
		}
	}
	return true
}

// tell tells that something else may be wanted, once it is known; the lock is held.
func (f *Follower) tell() {
	if !f.known() {
		return
	}
	select {
	case <-f.Read:
	default:
		f.look()
		close(f.Read)
	}
	select {
	case f.Changed <- struct{}{}:
	default:
	}
}
