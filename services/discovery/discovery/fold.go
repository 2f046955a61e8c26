package discovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nbd-wtf/go-nostr"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/query"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/repos"
	"tendril.dev/services/discovery/wanted"
)

// heardKinds are the kinds that change the book.
func heardKinds(keepAll bool) []int {
	kinds := append([]int{nip34.KindAnnouncement}, rootKinds...)
	if !keepAll { // deletion requests do not touch what is accepted
		kinds = append(kinds, nip34.KindDeletion)
	}
	return kinds
}

// hear notes newly accepted events. It must not block.
func (d *discovery) hear(recs []eventdb.Record) {
	d.heardMu.Lock()
	defer d.heardMu.Unlock()
	if d.missed {
		return // the next window makes the book anew
	}
	for _, r := range recs {
		d.heard, d.heardBytes = append(d.heard, r), d.heardBytes+len(r.Raw)
	}
	if len(d.heard) > maxHeard || d.heardBytes > maxHeardBytes {
		d.heard, d.heardBytes, d.missed = nil, 0, true
	}
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// foldAsItComes keeps the book in step with what is heard, and opens a window if that may change a
// target.
func (d *discovery) foldAsItComes(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.news:
		}
		d.mu.Lock()
		changed, err := d.fold(ctx)
		if err != nil && ctx.Err() == nil {
			d.log.Warn("accepted events could not be looked up; everything is read again", "error", err)
			d.stale, changed = true, true
		}
		d.mu.Unlock()
		if changed {
			d.signal()
		}
	}
}

// fold folds what was heard into the book, and reports whether that may change a target; d.mu is
// held. It asks only for what the events concern: what a deletion request names and the book has,
// and the earlier root events of repositories that are new.
func (d *discovery) fold(ctx context.Context) (changed bool, err error) {
	d.heardMu.Lock()
	heard, missed := d.heard, d.missed
	d.heard, d.heardBytes, d.missed = nil, 0, false
	d.heardMu.Unlock()
	d.stale = d.stale || missed
	if d.stale {
		return true, nil // the next look sees everything
	}
	if len(heard) == 0 {
		return false, nil
	}
	// It was told of after it was accepted, so answers have it all, with what deletion requests
	// took away.
	for _, r := range heard {
		did := false
		switch {
		case r.Seq <= d.at: // the last look saw it
		case r.Event.Kind == nip34.KindDeletion:
			did, err = d.carryOut(ctx, d.book.NamedBy(r.Event))
		default:
			did = d.book.Accept(r.Event)
		}
		if changed = changed || did; err != nil {
			return changed, err
		}
	}
	return changed, d.readRoots(ctx)
}

// carryOut drops what a deletion request names and is accepted no longer.
func (d *discovery) carryOut(ctx context.Context, named repos.Named) (changed bool, err error) {
	if len(named.Roots) > 0 {
		d.metrics.reads.Add(float64(len(named.Roots)))
		ids := make([][32]byte, len(named.Roots))
		for n, id := range named.Roots {
			ids[n] = id
		}
		has, err := d.events.Has(ctx, ids)
		if err != nil {
			return false, fmt.Errorf("look up root events: %w", err)
		}
		for n, id := range named.Roots {
			changed = !has[n] && d.book.ForgetRoot(id) || changed
		}
	}
	for _, ref := range named.Repos {
		d.metrics.reads.Inc()
		_, err := query.Addressable(ctx, d.events, nip34.KindAnnouncement, ref.PubKey, ref.Identifier)
		switch {
		case errors.Is(err, query.ErrNotFound):
			changed = d.book.Forget(ref) || changed
		case err != nil:
			return changed, fmt.Errorf("look up repository %s: %w", ref, err)
		}
	}
	return changed, nil
}

var rootKinds = []int{nip34.KindPatch, nip34.KindPR, nip34.KindIssue}

// readersAtOnce is how many questions for root events are under way at once. A process with an
// index answers four at a time.
const readersAtOnce = 3

// readRoots asks for the root events of repositories that are new to the book: they may have been
// accepted before the announcement was. Their ids are enough.
func (d *discovery) readRoots(ctx context.Context) error {
	refs := d.book.TakeUnread()
	d.metrics.reads.Add(float64(len(refs)))
	size := min(proto.MaxQueriedFilters, len(refs)/(8*readersAtOnce)+1)
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(readersAtOnce)
	in := inOrder{add: d.book.AddRoots}
	var rooms sync.Pool // of *[]wanted.Short: what is read is copied, and is garbage otherwise
	for part := range slices.Chunk(refs, size) {
		if reading.Err() != nil {
			break // a reader has failed, or ctx has ended
		}
		turn := in.turn()
		group.Go(func() error {
			room, _ := rooms.Get().(*[]wanted.Short)
			if room == nil {
				room = new([]wanted.Short)
			}
			ids, all, err := rootsOf(reading, d.events, part, wanted.ShortOf, (*room)[:0])
			if err == nil {
				in.give(turn, part, ids, func() { *room = all; rooms.Put(room) })
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// wholeIDs asks for the ids of root events that name some repositories.
func (d *discovery) wholeIDs(ctx context.Context, refs []string) ([][]target.ID, error) {
	d.metrics.reads.Add(float64(len(refs)))
	parsed := make([]nip34.RepoRef, len(refs))
	for n, ref := range refs {
		var err error
		if parsed[n], err = nip34.ParseRepoRef(ref); err != nil {
			return nil, err
		}
	}
	lists, _, err := rootsOf(ctx, d.events, parsed, func(id target.ID) target.ID { return id }, nil)
	return lists, err
}

// rootsOf asks for the ids of root events that name some repositories, and returns them in a form:
// one list for each repository, all of them in one that is appended to room.
func rootsOf[I any](ctx context.Context, from events, refs []nip34.RepoRef, form func(target.ID) I, room []I) (lists [][]I, all []I, err error) {
	filters := make([]nostr.Filter, len(refs))
	for n, ref := range refs {
		filters[n] = nostr.Filter{Kinds: rootKinds, Tags: nostr.TagMap{"a": {ref.String()}}}
	}
	counts := make([]int, len(refs))
	for root, err := range from.IDs(ctx, filters...) {
		if err != nil {
			return nil, nil, fmt.Errorf("read root events: %w", err)
		}
		counts[root.Filter]++ // one filter comes after the other
		room = append(room, form(root.ID))
	}
	rest := room
	for _, count := range counts {
		lists = append(lists, rest[:count:count])
		rest = rest[count:]
	}
	return lists, room, nil
}

// inOrder adds what several readers have read in the order in which they began: of a root event
// that names very many repositories the same ones count each time.
type inOrder struct {
	add func(nip34.RepoRef, []wanted.Short) bool

	begun int
	mu    sync.Mutex
	next  int
	early map[int]func()
}

// turn is the place of a reader that begins.
func (o *inOrder) turn() int {
	o.begun++
	return o.begun - 1
}

// give adds what a reader has read, or keeps it until those before it have given theirs. done is
// called when it is added.
func (o *inOrder) give(turn int, refs []nip34.RepoRef, ids [][]wanted.Short, done func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.early == nil {
		o.early = map[int]func(){}
	}
	o.early[turn] = func() {
		for n, ref := range refs {
			o.add(ref, ids[n])
		}
		done()
	}
	for ; o.early[o.next] != nil; o.next++ {
		o.early[o.next]()
		delete(o.early, o.next)
	}
}

// reread makes the book anew if it is stale; d.mu is held.
func (d *discovery) reread(ctx context.Context) error {
	if !d.stale {
		return nil
	}
	at := d.events.Seq()
	d.book.ForgetAccepted()
	for ev, err := range d.events.Query(ctx, nostr.Filter{Kinds: []int{nip34.KindAnnouncement}}) {
		if err != nil {
			return fmt.Errorf("read repositories: %w", err)
		}
		d.metrics.reads.Inc()
		d.book.Accept(ev)
	}
	if err := d.readRoots(ctx); err != nil {
		return err
	}
	d.at, d.stale = at, false
	return nil
}
