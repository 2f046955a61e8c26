package relayconn

import (
	"context"
	"slices"

	"tendril.dev/lib/nostr"
)

const (
	// generations is how far below a root event replies are followed.
	generations = 8
	// mostEarly is how many replies are kept in mind that name what is not known. Replies may be accepted
	// before what they name.
	mostEarly = 10_000
	// threadsAtOnce is how many root events are asked about together.
	threadsAtOnce = 100
)

// replyKinds are the kinds of the table whose events may lie below a root event.
var replyKinds = nostr.KindsThat(func(k nostr.Kind) bool { return k.Vouches && !k.Unlinked && k.Number != 0 })

// thread is the accepted events below one root event.
type thread struct {
	ids   []string
	lists []*list // which have the root event
}

// place is where an event stands in a thread; the root event is in generation 0.
type place struct {
	*thread
	generation int
}

// threads know the accepted events below root events, as far as they are asked about (layer 4). An
// event that names events of two threads is in one of them. The lock of the targets guards them.
type threads struct {
	limit  int // events of a thread; 0: nothing is followed
	places map[string]place
	early  map[string][]string // ids of replies that were heard before what they name, by that
	heard  int                 // how many these are
	whole  bool                // all replies that were ever accepted were heard, and what is early has them
	forgot bool                // some that were early were forgotten
	unread []string            // events below which nothing was asked for yet: root events, and see reply
}

// root notes that a list has a root event.
func (t *threads) root(id string, l *list) {
	p, known := t.places[id]
	switch {
	case t.limit == 0 || p.generation > 0: // it is asked about as a root event, and stays in the thread of the other
		return
	case !known:
		p.thread = &thread{}
		t.put(id, p)
		if !t.whole {
			t.unread = append(t.unread, id)
		}
	}
	if !slices.Contains(p.lists, l) {
		p.lists = append(p.lists, l)
	}
}

// put gives an event its place, and those that were heard earlier theirs below it.
func (t *threads) put(id string, p place) {
	t.places[id] = p
	early := t.early[id]
	delete(t.early, id)
	t.heard -= len(early)
	for _, reply := range early {
		t.reply(reply, p)
	}
}

// reply puts an event below another, unless it has a place or there is none. What names it may have
// been forgotten; then it is asked for.
func (t *threads) reply(id string, parent place) (put bool) {
	if _, again := t.places[id]; again || parent.generation >= generations || len(parent.ids) >= t.limit {
		return false
	}
	parent.ids = append(parent.ids, id)
	if t.forgot {
		t.unread = append(t.unread, id)
	}
	t.put(id, place{parent.thread, parent.generation + 1})
	return true
}

// add puts a reply below what it names, and returns the lists that have its root event.
func (t *threads) add(ev *nostr.Event) []*list {
	names, known := nostr.ReferencesOf(ev).IDs, false
	for _, id := range names {
		if parent, is := t.places[id]; is {
			if known = true; t.reply(ev.ID, parent) {
				return parent.lists
			}
		}
	}
	if known {
		return nil
	}
	if t.heard += len(names); t.heard > mostEarly { // from now on what is below an event is asked for
		clear(t.early)
		t.heard, t.whole, t.forgot = 0, false, true
		return nil
	}
	for _, id := range names {
		t.early[id] = append(t.early[id], ev.ID)
	}
	return nil
}

// below are the events below the root events of a list, sorted.
func (t *threads) below(roots []string) (ids []string) {
	for _, id := range roots {
		if p := t.places[id]; p.thread != nil && p.generation == 0 {
			ids = append(ids, p.ids...)
		}
	}
	slices.Sort(ids)
	return ids
}

// forget forgets the threads of root events that no list has any more.
func (t *threads) forget(lists map[string]*list) {
	kept := map[*thread]bool{}
	for _, l := range lists {
		for _, id := range l.ids {
			if p := t.places[id]; p.thread != nil {
				kept[p.thread] = true
			}
		}
	}
	before := len(t.places)
	for id, p := range t.places {
		if !kept[p.thread] {
			delete(t.places, id)
		}
	}
	if len(t.places) < before { // what was heard below these is read if they come back
		t.whole = false
	}
	for th := range kept {
		th.lists = slices.DeleteFunc(th.lists, func(l *list) bool { return lists[l.ref] != l })
	}
}

// addReply puts a reply in its thread, and has the lists that have its root event told of it; the lock
// is held.
func (t *Targets) addReply(ev *nostr.Event) (put bool) {
	lists := t.threads.add(ev)
	for _, l := range lists {
		l.grown = true
	}
	return len(lists) > 0
}

// readThreads asks for what is below root events of which that is not known yet.
func (t *Targets) readThreads(ctx context.Context) error {
	for {
		t.mu.Lock()
		roots := slices.Clone(t.threads.unread[:min(len(t.threads.unread), threadsAtOnce)])
		t.mu.Unlock()
		if len(roots) == 0 || t.threads.limit == 0 {
			return nil
		}
		if err := t.readBelow(ctx, roots); err != nil {
			return err
		}
		t.mu.Lock()
		t.threads.unread = t.threads.unread[len(roots):]
		t.mu.Unlock()
	}
}

// readBelow asks for what is below some root events, one generation after the other.
func (t *Targets) readBelow(ctx context.Context, parents []string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for range generations {
		var next []string
		for some := range slices.Chunk(parents, threadsAtOnce) {
			for _, tag := range []string{"e", "E", "q"} {
				for ev, err := range t.events.Query(ctx, nostr.Filter{Kinds: replyKinds, Tags: nostr.TagMap{tag: some}}) {
					if err != nil {
						return err
					}
					t.mu.Lock()
					if t.addReply(ev) {
						next = append(next, ev.ID)
					}
					t.mu.Unlock()
				}
			}
		}
		if parents = next; len(parents) == 0 {
			break
		}
	}
	return nil
}

// mostParents bounds how many events are looked at to find the threads that a person takes part in.
const mostParents = 5000

// threadsOf asks for the root events of the threads that a person takes part in: of those that they
// wrote in, by what they named, and what that named.
func (t *Targets) threadsOf(ctx context.Context, person string) (roots []string, err error) {
	seen := map[string]bool{}
	filter := nostr.Filter{Kinds: replyKinds, Authors: []string{person}}
	for range generations + 1 {
		var parents []string
		for ev, err := range t.events.Query(ctx, filter) {
			if err != nil {
				return nil, err
			}
			if nostr.KindOf(ev.Kind).Root {
				roots = append(roots, ev.ID)
				continue
			}
			for _, id := range nostr.ReferencesOf(ev).IDs {
				if !seen[id] && len(seen) < mostParents {
					seen[id] = true
					parents = append(parents, id)
				}
			}
		}
		if len(parents) == 0 {
			break
		}
		filter = nostr.Filter{Kinds: replyKinds, IDs: parents}
	}
	return roots, nil
}
