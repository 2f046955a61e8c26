package relayconn

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

const (
	// All root events are asked for again every rereadEvery, because they may be deleted or expire.
	rereadEvery = time.Hour
	// retryPause is the pause before a question that failed is asked again, and askTimeout bounds
	// one question.
	retryPause, askTimeout = time.Second, time.Minute
	// mostNewer is how many root events may be newer than what was confirmed. With more, a relay
	// is asked for all of them.
	mostNewer = 10_000
)

// rootKinds are the kinds of root events.
var rootKinds = nostr.KindsThat(func(k nostr.Kind) bool { return k.Root })

// Targets knows what a worker should ask relays for: which relays are targets, which repositories
// are wanted from those that the worker has claimed (the stream GRASP_TARGETS), and which root
// events these repositories have (the accepted events).
type Targets struct {
	js     jetstream.JetStream
	events query.Source
	window time.Duration
	log    *slog.Logger
	names  chan []string
	stream *bus.Follower
	wake   chan struct{} // of capacity 1: root events must be asked for

	mu      sync.Mutex
	relays  map[string]proto.Target // by name
	changed bool                    // relays
	lists   map[string]*list        // root events, by reference of the repository
	wanted  map[string]*Wanted      // of claimed relays, by name
	hearing query.Subscription      // of root events
	later   bool                    // fold is called when the window is over
	seq     uint64                  // see seen
	shared  session.Set             // root events of the repositories that were asked for last

	newerRoots func(ctx context.Context, seq uint64) (map[string]bool, error) // readNewer
}

// list is the root events of one repository. They are asked for once, and followed in the log.
type list struct {
	users map[*Wanted]bool
	ids   []string // sorted; never changed, so that sets share them
	read  bool     // they were asked for
	due   bool     // they must be asked for, or are being asked for
	heard []string // ids that were accepted since and may not be in ids
}

// NewTargets makes Targets that have read nothing yet. The names (as proto.EncodeRelay writes them)
// of all relays that are targets are sent to names, the whole list whenever it has changed. A list
// that was not received yet is replaced by the next; names must have room for one. Root events that
// come one after the other are told together, when the window is over that the first has opened.
func NewTargets(js jetstream.JetStream, events query.Source, window time.Duration, names chan []string,
	log *slog.Logger) *Targets {
	t := &Targets{
		js: js, events: events, window: window, log: log, names: names, wake: make(chan struct{}, 1),
		relays: map[string]proto.Target{}, lists: map[string]*list{}, wanted: map[string]*Wanted{},
	}
	t.newerRoots = t.readNewer
	t.hearing = query.SubscribeAccepted(js, events, rootKinds, t.hear) // what is asked for later has the events before
	t.stream = bus.NewFollower(js, bus.Reading{Stream: proto.StreamTargets, Filter: proto.AnyTarget,
		Idle: func(context.Context) { t.idle() }}, log, bus.Each(t.takeRelay))
	return t
}

// Run follows the stream, and the root events, until ctx ends. No relay is claimed before its name
// was sent. What is wanted of it is read then; what comes is followed for all relays together.
func (t *Targets) Run(ctx context.Context) error {
	if err := t.stream.ReadAll(ctx); err != nil {
		return err
	}
	wants := bus.Reading{Stream: proto.StreamTargets, Filter: proto.AnyWanted, After: t.stream.Seq()}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.stream.Run(ctx) })
	group.Go(func() error { return bus.NewFollower(t.js, wants, t.log, bus.Each(t.takeWanted)).Run(ctx) })
	group.Go(func() error { return t.hearing.Run(ctx) })
	group.Go(func() error { return t.ask(ctx) })
	return group.Wait()
}

// takeRelay reads a message that says whether a relay is a target. An empty one says that it is
// none.
func (t *Targets) takeRelay(m bus.Message) {
	var relay proto.Target
	key, err := proto.ParseTargetSubject(m.Subject)
	name, _ := proto.EncodeRelay(key)
	if !t.parse(m, err, &relay) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = true
	if t.relays[name] = relay; relay.URL == "" {
		delete(t.relays, name)
	}
	if w := t.wanted[name]; w != nil {
		w.tell()
	}
}

// parse reads the JSON of a message, if it has any. err is that of its subject. What cannot be read
// is logged.
func (t *Targets) parse(m bus.Message, err error, said any) bool {
	if err == nil && len(m.Data) > 0 {
		err = json.Unmarshal(m.Data, said)
	}
	if err != nil {
		t.log.Error("what discovery wants cannot be read", "subject", m.Subject, "error", err)
	}
	return err == nil
}

// idle is called when everything was read that is there. Until then the list of names would be half
// a list.
func (t *Targets) idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed {
		t.changed = false
		replace(t.names, slices.Sorted(maps.Keys(t.relays)))
	}
}

// replace sends a value on a channel of capacity 1, in place of one that was not received yet.
func replace[T any](to chan T, value T) {
	for {
		select {
		case to <- value:
			return
		default:
		}
		select {
		case <-to:
		default:
		}
	}
}

// hear takes in root events that were accepted.
func (t *Targets) hear(accepted []eventdb.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range accepted {
		for _, ref := range nostr.ReferencesOf(r.Event).Addresses {
			if l := t.lists[ref.String()]; l != nil {
				l.heard = append(l.heard, r.Event.ID)
				if !t.later {
					t.later = true
					time.AfterFunc(t.window, t.fold)
				}
			}
		}
	}
}

// fold takes what was heard into the lists.
func (t *Targets) fold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.later = false
	for _, l := range t.lists {
		ids := slices.Compact(slices.Sorted(slices.Values(l.heard)))
		joined := strings.Join(ids, "") // what is compared one after the other lies side by side
		for i, id := range ids {
			ids[i], joined = joined[:len(id)], joined[len(id):]
		}
		if !l.due { // else the answer may not have it
			l.heard = nil
		}
		t.set(l, session.Union(session.Set{Roots: l.ids}, session.Set{Roots: ids}).Roots)
	}
}

// set replaces the root events of a repository; the lock is held.
func (t *Targets) set(l *list, ids []string) {
	if l.read && slices.Equal(ids, l.ids) {
		return
	}
	l.ids, t.shared = ids, session.Set{}
	for w := range l.users {
		w.tell()
	}
}

// seen is the sequence of the log up to which the lists have all; the lock is held.
func (t *Targets) seen() uint64 {
	if !t.later {
		t.seq = t.hearing.Seq()
	}
	return t.seq
}

// ask asks for root events whenever there is something to ask, until ctx ends.
func (t *Targets) ask(ctx context.Context) error {
	again := time.NewTicker(rereadEvery)
	defer again.Stop()
	for failing := false; ; {
		retry := (<-chan time.Time)(nil)
		err := t.askDue(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.log.Warn("the root events of repositories could not be asked for, trying again", "error", err)
		}
		if failing = err != nil; failing {
			retry = time.After(retryPause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		case <-t.wake:
		case <-again.C:
			t.askAgain()
		}
	}
}

// askAgain has all root events asked for again.
func (t *Targets) askAgain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lists {
		l.due = true
	}
	replace(t.wake, struct{}{})
}

// askDue asks for the root events that must be asked for.
func (t *Targets) askDue(ctx context.Context) error {
	if err := t.events.CatchUp(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	due := maps.Clone(t.lists)
	maps.DeleteFunc(due, func(_ string, l *list) bool { return !l.due })
	t.mu.Unlock()
	for ref, l := range due {
		if err := t.askOne(ctx, ref, l); err != nil {
			return err
		}
	}
	return nil
}

func (t *Targets) askOne(ctx context.Context, ref string, l *list) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	t.mu.Lock()
	l.heard = nil // the answer has it, if it is still accepted
	t.mu.Unlock()
	var ids []string
	for _, tag := range []string{"a", "A", "q"} {
		for id, err := range t.events.IDs(ctx, nostr.Filter{Kinds: rootKinds, Tags: nostr.TagMap{tag: {ref}}}) {
			if err != nil {
				return err
			}
			ids = append(ids, hex.EncodeToString(id[:]))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	ids = append(ids, l.heard...)
	slices.Sort(ids)
	t.set(l, slices.Compact(ids))
	l.read, l.due, l.heard = true, false, nil
	return nil
}

// readNewer reads which root events the log has after a sequence.
func (t *Targets) readNewer(ctx context.Context, seq uint64) (map[string]bool, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	newer := map[string]bool{}
	for _, kind := range rootKinds {
		reading := bus.Reading{Stream: proto.StreamEvents, Filter: proto.AnyEventOf(kind), After: seq}
		err := bus.Read(ctx, t.js, reading, func(m bus.Message) {
			if ev, err := nostr.Parse(m.Data); err == nil {
				newer[ev.ID] = true
			}
			if len(newer) > mostNewer {
				stop()
			}
		})
		if len(newer) > mostNewer {
			err = errors.New("too many to tell them apart")
		}
		if err != nil {
			return nil, fmt.Errorf("read root events after %d: %w", seq, err)
		}
	}
	return newer, nil
}

// Wanted is what is wanted of one relay that the worker has claimed.
type Wanted struct {
	// Changed has something to receive when something else may be wanted.
	Changed chan struct{}

	targets *Targets
	name    string

	// The lock of the targets guards the following.
	repos map[string]repo // by reference; until all were read, also those of which nothing is wanted
	seq   uint64          // of the last message that was taken in
	read  bool            // all messages were read that were there at the beginning
	dirty bool            // something else may be wanted than now says
	now   *session.Wanted // nil: it was not worked out yet
}

// repo is what is wanted of one repository, and the sequence of the message that says so.
type repo struct {
	proto.Wanted
	seq uint64
}

// Of returns what is wanted of the relay of that name. Nothing is known before Open.
func (t *Targets) Of(name string) *Wanted {
	return &Wanted{Changed: make(chan struct{}, 1), targets: t, name: name, repos: map[string]repo{}}
}

// Open reads what is wanted of the relay now. It is followed from then on, until Close. The error
// is that of ctx, or that nothing came for 30 s.
func (w *Wanted) Open(ctx context.Context) error {
	t := w.targets
	t.mu.Lock()
	t.wanted[w.name] = w
	t.mu.Unlock()
	reading := bus.Reading{Stream: proto.StreamTargets, Filter: proto.AnyWantedOf(w.name)}
	if err := bus.Read(ctx, t.js, reading, t.takeWanted); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(w.repos, func(_ string, r repo) bool { return r.Level == "" })
	w.read = true
	w.tell()
	return nil
}

// Close ends what Open has begun. What is wanted stays as it was.
func (w *Wanted) Close() {
	t := w.targets
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted[w.name] == w {
		delete(t.wanted, w.name)
	}
	for ref := range w.repos {
		t.unuse(w, ref)
	}
	clear(w.repos)
	w.read = false
}

// takeWanted takes in what a message says of a repository, if the relay is claimed. Without a level
// nothing is wanted of it any more.
func (t *Targets) takeWanted(m bus.Message) {
	r := repo{seq: m.Seq}
	key, ref, err := proto.ParseWantedSubject(m.Subject)
	name, _ := proto.EncodeRelay(key)
	if !t.parse(m, err, &r.Wanted) {
		return
	}
	if r.Level != "" && r.Level != proto.LevelFull && r.Level != proto.LevelStateOnly {
		t.log.Error("what discovery wants has a level that is not known; nothing is asked for", "subject", m.Subject,
			"level", r.Level)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.wanted[name]
	if w == nil || m.Seq <= w.repos[ref].seq { // it is not claimed, or was read when it was
		return
	}
	w.seq = max(w.seq, m.Seq)
	if w.repos[ref] = r; w.read && r.Level == "" {
		delete(w.repos, ref)
	}
	if r.Level == proto.LevelFull {
		t.use(w, ref)
	} else {
		t.unuse(w, ref)
	}
	w.tell()
}

// use notes that a relay is asked for a repository; the lock is held.
func (t *Targets) use(w *Wanted, ref string) {
	l := t.lists[ref]
	if l == nil {
		l = &list{users: map[*Wanted]bool{}, due: true}
		t.lists[ref] = l
		replace(t.wake, struct{}{})
	}
	l.users[w] = true
}

func (t *Targets) unuse(w *Wanted, ref string) {
	if l := t.lists[ref]; l != nil {
		if delete(l.users, w); len(l.users) == 0 {
			delete(t.lists, ref)
		}
	}
}

// tell tells that something else may be wanted; the lock is held.
func (w *Wanted) tell() {
	w.dirty = true
	replace(w.Changed, struct{}{})
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
	if w.dirty && w.read && w.rootsKnown() {
		items := w.some(math.MaxUint64)
		w.now, w.dirty = &session.Wanted{Items: items, Mark: session.Mark{Target: w.seq, Log: w.targets.seen()}}, false
	}
	if w.now == nil {
		return session.Wanted{}, false
	}
	return *w.now, true
}

// rootsKnown reports whether the root events of all repositories are known; the lock is held.
func (w *Wanted) rootsKnown() bool {
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
	if w.now != nil && mark == w.now.Mark && !w.dirty && mark != (session.Mark{}) {
		mark.Log = max(mark.Log, w.targets.seen()) // what came since is not wanted of this relay
	}
	return mark
}

// Past is what of the things that are wanted now was wanted at a mark. Call it once they are known.
func (w *Wanted) Past(ctx context.Context, mark session.Mark) (session.Set, error) {
	if mark == (session.Mark{}) {
		return session.Set{}, nil
	}
	newer, err := w.targets.newerRoots(ctx, mark.Log)
	if err != nil {
		return session.Set{}, err
	}
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	past := w.some(mark.Target)
	past.First = true
	past.Roots = slices.DeleteFunc(slices.Clone(past.Roots), func(id string) bool { return newer[id] })
	return past, nil
}

// some is what is wanted of the repositories up to a sequence; the lock is held.
func (w *Wanted) some(seq uint64) (s session.Set) {
	var lists []session.Set
	for ref, r := range w.repos {
		switch {
		case r.seq > seq:
		case r.Level == proto.LevelStateOnly:
			s.State = append(s.State, session.State(ref, r.Authors))
		case r.Level == proto.LevelFull:
			s.Full = append(s.Full, ref)
			lists = append(lists, session.Set{Roots: w.targets.lists[ref].ids})
		}
	}
	slices.Sort(s.Full)
	slices.Sort(s.State)
	t := w.targets // relays mostly have the same repositories
	if !slices.Equal(t.shared.Full, s.Full) {
		t.shared = session.Set{Full: s.Full, Roots: session.Union(lists...).Roots}
	}
	s.Roots = t.shared.Roots
	return s
}
