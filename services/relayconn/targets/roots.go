package targets

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

const (
	// rereadEvery is how often all root events are asked for again, because events expire (NIP-40).
	rereadEvery = time.Hour
	// retryPause is the pause before a question that failed is asked again.
	retryPause = time.Second
	// mostDoubts is how many ids of deletion requests wait to be looked up. With more, all root
	// events are asked for again.
	mostDoubts = 10_000
	// mostNewer is how many root events may be newer than what was confirmed. With more, a relay
	// is asked for all of them.
	mostNewer = 10_000
)

// rootKinds are the kinds of root events.
var rootKinds = []int{nostr.KindPatch, nostr.KindPR, nostr.KindIssue}

// Events is what is asked about accepted events.
type Events interface {
	CatchUp(ctx context.Context) error
	Has(ctx context.Context, ids [][32]byte) ([]bool, error)
	IDs(ctx context.Context, filters ...nostr.Filter) iter.Seq2[query.Found, error]
}

// Roots knows the root events of all repositories that the relays of this worker are asked for, each
// repository's once. It asks for those of a repository that is new, and follows the log.
type Roots struct {
	js     jetstream.JetStream
	events Events
	window time.Duration
	log    *slog.Logger
	wake   chan struct{} // of capacity 1: there is something to ask

	mu      sync.Mutex
	lists   map[string]*list // by reference of the repository
	seq     uint64           // of the log, up to which it is followed
	doubts  []string         // ids that may be gone
	asking  bool
	touched map[*Follower]bool // they are told when the window closes
}

// list is the root events of one repository.
type list struct {
	users map[*Follower]bool
	ids   []string // sorted
	read  bool     // they were asked for
	due   bool     // they must be asked for, again if read
	heard []string // since it was begun to ask for them
}

// NewRoots makes a Roots that knows nothing yet. The first of several changes opens a window, and
// followers are told of all of them when it closes.
func NewRoots(js jetstream.JetStream, events Events, window time.Duration, log *slog.Logger) *Roots {
	return &Roots{
		js: js, events: events, window: window, log: log, wake: make(chan struct{}, 1),
		lists: map[string]*list{}, touched: map[*Follower]bool{},
	}
}

// run follows the log until ctx ends.
func (r *Roots) run(ctx context.Context) error {
	base, err := lastSeq(ctx, r.js, proto.StreamEvents, r.log)
	if err != nil {
		return nil // the end
	}
	r.mu.Lock()
	r.seq = base // what is asked for later has everything up to there
	r.mu.Unlock()
	filters := append(rootFilters(), proto.AnyEventOf(nostr.KindDeletion))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return bus.Follow(ctx, r.js, bus.Reading{Stream: proto.StreamEvents, Filters: filters, After: base}, r.log, r.hear)
	})
	group.Go(func() error { return r.ask(ctx) })
	return group.Wait()
}

func rootFilters() (filters []string) {
	for _, kind := range rootKinds {
		filters = append(filters, proto.AnyEventOf(kind))
	}
	return filters
}

// lastSeq is the last sequence of a stream.
func lastSeq(ctx context.Context, js jetstream.JetStream, stream string, log *slog.Logger) (uint64, error) {
	for {
		s, err := js.Stream(ctx, stream)
		if err == nil {
			return s.CachedInfo().State.LastSeq, nil
		}
		log.Warn("a stream cannot be followed yet", "stream", stream, "error", err)
		if pause(ctx, retryPause) != nil {
			return 0, ctx.Err()
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// use notes which repositories a relay is asked for; the lock is held.
func (r *Roots) use(f *Follower, refs []string) {
	using := make(map[string]bool, len(refs))
	for _, ref := range refs {
		using[ref] = true
		l := r.lists[ref]
		if l == nil {
			l = &list{users: map[*Follower]bool{}, due: true}
			r.lists[ref] = l
		}
		l.users[f] = true
	}
	for ref := range f.using {
		if !using[ref] {
			delete(r.lists[ref].users, f)
			if len(r.lists[ref].users) == 0 {
				delete(r.lists, ref)
			}
		}
	}
	f.using = using
	if len(using) == 0 {
		delete(r.touched, f)
	}
	r.wakeUp()
}

func (r *Roots) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// hear takes in a message of the log.
func (r *Roots) hear(m bus.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.seq = max(r.seq, m.Seq) }()
	if removed := m.Header.Get(proto.HeaderRemoved); removed != "" {
		r.doubt(removed)
		return
	}
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(m.Data); err != nil {
		r.log.Error("an event of the log cannot be read", "subject", m.Subject, "error", err)
		return
	}
	if ev.Kind == nostr.KindDeletion {
		for tag := range ev.Tags.FindAll("e") {
			r.doubt(tag[1])
		}
		return
	}
	id := strings.Clone(ev.ID)
	for _, ref := range nostr.RootRefs(ev) {
		l := r.lists[ref.String()]
		if l == nil {
			continue
		}
		if l.due {
			l.heard = append(l.heard, id)
		}
		if n, has := slices.BinarySearch(l.ids, id); !has {
			l.ids = slices.Insert(l.ids, n, id)
			r.touch(l)
		}
	}
}

// doubt notes an id that is said to be gone. Whether it is, is asked.
func (r *Roots) doubt(id string) {
	if !nostr.IsHex64(id) || !r.asking && !r.has(id) {
		return
	}
	if r.doubts = append(r.doubts, strings.Clone(id)); len(r.doubts) > mostDoubts {
		r.doubts = nil
		r.askAgain()
	}
	r.wakeUp()
}

// has reports whether an id is a root event here. Deletions are rare, so no index is kept for them.
func (r *Roots) has(id string) bool {
	for _, l := range r.lists {
		if _, has := slices.BinarySearch(l.ids, id); has {
			return true
		}
	}
	return false
}

// drop takes out a root event that is not accepted any more.
func (r *Roots) drop(id string) {
	for _, l := range r.lists {
		if n, has := slices.BinarySearch(l.ids, id); has {
			l.ids = slices.Delete(l.ids, n, n+1)
			r.touch(l)
		}
	}
}

// touch has the relays told that are asked for a repository, when the window closes.
func (r *Roots) touch(l *list) {
	if len(r.touched) == 0 {
		time.AfterFunc(r.window, r.close)
	}
	for f := range l.users {
		f.dirty, r.touched[f] = true, true
	}
}

// close ends a window.
func (r *Roots) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.touched {
		f.tell()
	}
	clear(r.touched)
}

// askAgain has all root events asked for.
func (r *Roots) askAgain() {
	for _, l := range r.lists {
		l.due = true
	}
	r.wakeUp()
}

// ask asks for root events whenever there is something to ask, until ctx ends.
func (r *Roots) ask(ctx context.Context) error {
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	failing := false
	for {
		more, err := r.askSome(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			r.log.Warn("the root events of repositories could not be asked for, trying again", "error", err)
		}
		if failing = err != nil; failing {
			if pause(ctx, retryPause) != nil {
				return nil
			}
			continue
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-tick.C:
			r.mu.Lock()
			r.askAgain()
			r.mu.Unlock()
		}
	}
}

// askTimeout bounds one question.
const askTimeout = time.Minute

// askSome asks for the root events of some repositories, and whether those that may be gone are
// still accepted. more is false if there was nothing to ask.
func (r *Roots) askSome(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	refs, asked, doubts := r.questions()
	if len(refs)+len(doubts) == 0 {
		return false, nil
	}
	answers, has, err := r.answers(ctx, refs, doubts)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = false
	if err != nil {
		r.doubts = append(doubts, r.doubts...)
		return false, err
	}
	for n, id := range doubts {
		if !has[n] {
			r.drop(id)
		}
	}
	for n, l := range asked { // some may be in use no more
		ids := sortIDs(append(answers[n], l.heard...))
		changed := !l.read || !slices.Equal(ids, l.ids)
		l.ids, l.read, l.due, l.heard = ids, true, false, nil
		if !changed {
			continue
		}
		for f := range l.users {
			f.dirty = true
			f.tell()
		}
	}
	return true, nil
}

// questions are what must be asked: for the root events of which repositories, and which ids may be
// gone.
func (r *Roots) questions() (refs []string, lists []*list, doubts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, l := range r.lists {
		if l.due && len(refs) < proto.MaxQueriedFilters {
			refs, lists = append(refs, ref), append(lists, l)
			l.heard = nil
		}
	}
	doubts, r.doubts = r.doubts, nil
	r.asking = len(refs) > 0
	return refs, lists, doubts
}

// answers asks the questions.
func (r *Roots) answers(ctx context.Context, refs []string, doubts []string) (lists [][]string, has []bool, err error) {
	if err := r.events.CatchUp(ctx); err != nil {
		return nil, nil, err
	}
	ids := make([][32]byte, len(doubts))
	for n, id := range doubts {
		nostr.ReadHex(ids[n][:], id)
	}
	if len(ids) > 0 {
		if has, err = r.events.Has(ctx, ids); err != nil {
			return nil, nil, err
		}
	}
	filters := make([]nostr.Filter, len(refs))
	for n, ref := range refs {
		filters[n] = nostr.Filter{Kinds: rootKinds, Tags: nostr.TagMap{"a": {ref}}}
	}
	lists = make([][]string, len(refs))
	if len(filters) == 0 {
		return lists, has, nil
	}
	for found, err := range r.events.IDs(ctx, filters...) {
		if err != nil {
			return nil, nil, err
		}
		lists[found.Filter] = append(lists[found.Filter], hex.EncodeToString(found.ID[:]))
	}
	return lists, has, nil
}

// errMany: so many root events are newer that it is no use to tell them apart.
var errMany = errors.New("too many newer root events")

// newer are the root events that the log has after a sequence.
func (r *Roots) newer(ctx context.Context, seq uint64) (map[string]bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	newer := map[string]bool{}
	err := bus.Read(ctx, r.js, bus.Reading{Stream: proto.StreamEvents, Filters: rootFilters(), After: seq}, func(m bus.Message) {
		ev := new(nostr.Event)
		if ev.UnmarshalJSON(m.Data) != nil {
			return
		}
		newer[ev.ID] = true
		if len(newer) > mostNewer {
			cancel(errMany)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fmt.Errorf("read root events after %d: %w", seq, err)
	}
	return newer, nil
}

// sortIDs returns the ids sorted and each once; it may reorder its argument.
func sortIDs(ids []string) []string {
	slices.Sort(ids)
	return slices.Clip(slices.Compact(ids))
}
