package relayconn

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/session"
)

// Wanted is what is wanted of one relay that the worker has claimed.
type Wanted struct {
	// Changed has something to receive when something else may be wanted.
	Changed chan struct{}

	targets *Targets
	name    string

	// The lock of the targets guards the following.
	repos map[string]repo // by reference
	seq   uint64          // of the last message that was taken in
	read  bool            // all messages were read that were there at the beginning
	later bool            // Changed is sent on when the window is over
	shown bool            // now was worked out
	dirty bool            // something else may be wanted than now says
	now   session.Wanted
}

// repo is what is wanted of one repository, and the sequence of the message that says so. Without a
// level nothing is wanted of it any more.
type repo struct {
	proto.Wanted
	seq uint64
}

// Of returns what is wanted of the relay of that name. Nothing is known before Run.
func (t *Targets) Of(name string) *Wanted {
	return &Wanted{Changed: make(chan struct{}, 1), targets: t, name: name, repos: map[string]repo{}}
}

// Run follows what is wanted of the relay until ctx ends.
func (w *Wanted) Run(ctx context.Context) error {
	t := w.targets
	select {
	case <-t.begun:
	case <-ctx.Done():
		return nil
	}
	t.mu.Lock()
	t.wanted[w.name] = w
	t.mu.Unlock()
	defer w.leave()
	// Messages that come meanwhile are passed on by the targets.
	reading := bus.Reading{Stream: proto.StreamTargets, Filters: []string{proto.AnyWantedOf(w.name)}}
	err := bus.Read(ctx, t.js, reading, func(m bus.Message) {
		t.mu.Lock()
		defer t.mu.Unlock()
		w.take(m)
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // the end
	case err != nil:
		return fmt.Errorf("read target %s: %w", w.name, err)
	}
	t.mu.Lock()
	w.read = true
	maps.DeleteFunc(w.repos, func(_ string, r repo) bool { return r.Level == "" })
	w.tell()
	t.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (w *Wanted) leave() {
	t := w.targets
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted[w.name] == w {
		delete(t.wanted, w.name)
	}
	for ref := range w.repos {
		t.unuse(w, ref)
	}
	w.read = false // what is wanted stays as it was
	clear(w.repos)
}

// take takes in what a message says of a repository; the lock is held. At the beginning messages
// may come twice, and in another order.
func (w *Wanted) take(m bus.Message) {
	_, ref, err := proto.ParseWantedSubject(m.Subject)
	r := repo{seq: m.Seq}
	if err == nil && len(m.Data) > 0 {
		err = json.Unmarshal(m.Data, &r.Wanted)
	}
	if err != nil {
		w.targets.log.Error("a target cannot be read", "subject", m.Subject, "error", err)
		return
	}
	if m.Seq < w.repos[ref].seq {
		return
	}
	w.repos[ref], w.seq = r, max(w.seq, m.Seq)
	if r.Level == "" && w.read {
		delete(w.repos, ref)
	}
	if r.Level == proto.LevelFull {
		w.targets.use(w, ref)
	} else {
		w.targets.unuse(w, ref)
	}
	w.tell()
}

// tell tells that something else may be wanted; the lock is held.
func (w *Wanted) tell() {
	w.dirty = true
	select {
	case w.Changed <- struct{}{}:
	default:
	}
}

// tellLater tells so when the window is over; the lock is held.
func (w *Wanted) tellLater() {
	if w.dirty = true; w.later {
		return
	}
	w.later = true
	time.AfterFunc(w.targets.window, func() {
		w.targets.mu.Lock()
		defer w.targets.mu.Unlock()
		w.later = false
		w.tell()
	})
}

// Relay is the relay's URL and whether it is one of the bootstrap relays; an empty URL says that it
// is no target.
func (w *Wanted) Relay() (url string, bootstrap bool) {
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	relay := w.targets.relays[w.name]
	return relay.URL, relay.Bootstrap
}

// Now is what the relay should be asked for beyond layer 1. It stays as it was until the root
// events of repositories that are new are known; known is false before it is known for the first
// time.
func (w *Wanted) Now() (now session.Wanted, known bool) {
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	if w.dirty && w.known() {
		w.now = session.Wanted{Items: w.targets.share(w.some(func(repo) bool { return true })), Mark: session.Mark{Target: w.seq, Log: w.targets.seq}}
		w.dirty, w.shown = false, true
	}
	return w.now, w.shown
}

// share has relays of which the same is wanted, as is often so, share the memory of that.
func (t *Targets) share(s history.Set) history.Set {
	if slices.Equal(s.Full, t.last.Full) && slices.Equal(s.Roots, t.last.Roots) {
		s.Full, s.Roots = t.last.Full, t.last.Roots
	}
	t.last = s
	return s
}

// known reports whether the root events of all repositories are known; the lock is held.
func (w *Wanted) known() bool {
	if !w.read {
		return false
	}
	for ref, r := range w.repos {
		if r.Level == proto.LevelFull && !w.targets.lists[ref].read {
			return false
		}
	}
	return true
}

// Confirmed is how to tell a successor what is confirmed.
func (w *Wanted) Confirmed(mark session.Mark) session.Mark {
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	if mark == w.now.Mark && !w.dirty && mark != (session.Mark{}) {
		mark.Log = max(mark.Log, w.targets.seq) // what came since is not wanted of this relay
	}
	return mark
}

// Past is what of the things that are wanted now was wanted at a mark. Call it once they are known.
func (w *Wanted) Past(ctx context.Context, mark session.Mark) (history.Set, error) {
	if mark == (session.Mark{}) {
		return history.Set{}, nil
	}
	newer, err := w.targets.newer(ctx, mark.Log)
	if err != nil {
		return history.Set{}, err
	}
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	past := w.some(func(r repo) bool { return r.seq <= mark.Target })
	past.First = true
	past.Roots = slices.DeleteFunc(past.Roots, func(id string) bool { return newer[id] })
	return past, nil
}

// some is what is wanted of some of the repositories; the lock is held.
func (w *Wanted) some(which func(repo) bool) (s history.Set) {
	for ref, r := range w.repos {
		switch {
		case !which(r):
		case r.Level == proto.LevelStateOnly:
			if s.State == nil {
				s.State = map[string][]string{}
			}
			s.State[ref] = r.Authors
		default:
			s.Full = append(s.Full, ref)
			s.Roots = append(s.Roots, w.targets.lists[ref].ids...)
		}
	}
	slices.Sort(s.Full)
	s.Roots = sortIDs(s.Roots) // an event may belong to several repositories
	return s
}
