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
	// What was heard waits for more while more than manyHeard events come in half a window, and for
	// mostHalves of them at most: filters are as full as can be then, and what is wanted is not worked
	// out again and again.
	manyHeard, mostHalves = 100, 24
	// mostNewer is how many root events, and how many replies, may be newer than what was confirmed.
	// With more, a relay is asked for all of them.
	mostNewer = 10_000
)

// maxSeq is behind all messages.
const maxSeq = math.MaxUint64

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
	news    int                     // events that were heard since it was looked how many come
	halves  int                     // of a window, for which what was heard has waited for more
	seq     uint64                  // see seen
	shared  session.Set             // root events and replies of the repositories that were asked for last
	threads threads
	// plusOff: what relay lists of participants lead to is not asked for (GRASP-03). Discovery may have
	// wanted that before the settings changed, when the service was no private one for example.
	plusOff bool

	newer func(ctx context.Context, kinds []int, seq uint64) (map[string]bool, error) // readNewer
}

// list is the root events of one repository. They are asked for once, and followed in the log.
type list struct {
	ref   string
	users map[*Wanted]bool
	ids   []string // sorted; never changed, so that sets share them
	below []string // so are the ids of the events below them
	grown bool     // below does not have all of them
	read  bool     // ids, and what is below them, were asked for
	due   bool     // they must be asked for, or are being asked for
	heard []string // ids that were accepted since and may not be in ids
}

// NewTargets makes Targets that have read nothing yet. The names (as proto.EncodeRelay writes them)
// of all relays that are targets are sent to names, the whole list whenever it has changed. A list
// that was not received yet is replaced by the next; names must have room for one. Root events that
// come one after the other are told together, when the window is over that the first has opened. Of
// a thread at most so many events are asked about, 0: of layer 4 nothing is.
func NewTargets(js jetstream.JetStream, events query.Source, window time.Duration, perThread int,
	names chan []string, log *slog.Logger) *Targets {
	t := &Targets{
		js: js, events: events, window: window, log: log, names: names, wake: make(chan struct{}, 1),
		relays: map[string]proto.Target{}, lists: map[string]*list{}, wanted: map[string]*Wanted{},
		threads: threads{limit: perThread, places: map[string]place{}, early: map[string][]string{}},
	}
	t.newer = t.readNewer
	t.hearing = query.SubscribeAccepted(js, events, t.followed(), t.hear) // what is asked for later has the events before
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
	if t.plusOff {
		relay.Past = false
	}
	if t.relays[name] = relay; relay.URL == "" || t.plusOff && relay.Further {
		delete(t.relays, name)
	}
	for _, key := range []string{name, proto.VisitKey(name)} {
		if w := t.wanted[key]; w != nil {
			w.tell()
		}
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
		var names []string
		for name, relay := range t.relays {
			if relay.Stands() {
				names = append(names, name)
			}
			if relay.Past {
				names = append(names, proto.VisitKey(name))
			}
		}
		slices.Sort(names)
		replace(t.names, names)
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

// followed are the kinds that are followed in the log.
func (t *Targets) followed() []int {
	if t.threads.limit == 0 {
		return rootKinds
	}
	return unique(append(slices.Clone(rootKinds), replyKinds...))
}

func unique(list []int) []int { return slices.Compact(slices.Sorted(slices.Values(list))) }

// hear takes in root events and replies that were accepted.
func (t *Targets) hear(accepted []eventdb.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range accepted {
		if nostr.KindOf(r.Event.Kind).Root {
			t.hearRoot(r.Event)
		}
	}
	for _, r := range accepted {
		if t.threads.limit > 0 && t.addReply(r.Event) {
			t.foldLater()
		}
	}
}

func (t *Targets) hearRoot(ev *nostr.Event) {
	names := []string{proto.PersonRef(ev.PubKey)}
	for _, ref := range nostr.ReferencesOf(ev).Addresses {
		names = append(names, ref.String())
	}
	for _, name := range names {
		if l := t.lists[name]; l != nil {
			l.heard = append(l.heard, ev.ID)
			t.threads.root(ev.ID, l)
			t.foldLater()
		}
	}
}

// foldLater has something that was heard taken into the lists when the window is over; the lock is
// held.
func (t *Targets) foldLater() {
	t.news++
	if !t.later {
		t.later = true
		time.AfterFunc(t.window, t.fold)
	}
}

// fold takes what was heard into the lists, unless there is still much to come.
func (t *Targets) fold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	many := t.news > manyHeard
	if t.news = 0; many && t.halves < mostHalves {
		t.halves++
		time.AfterFunc(t.window/2, t.fold)
		return
	}
	t.later, t.halves = false, 0
	for _, l := range t.lists {
		if len(l.heard) == 0 {
			continue
		}
		ids := slices.Compact(slices.Sorted(slices.Values(l.heard)))
		if !l.due { // else the answer may not have it
			l.heard = nil
		}
		t.set(l, session.Union(session.Set{Roots: l.ids}, session.Set{Roots: ids}).Roots)
	}
	t.changeGrown()
	if len(t.threads.unread) > 0 {
		replace(t.wake, struct{}{})
	}
}

// changeGrown has the relays told of lists below which something was found; the lock is held.
func (t *Targets) changeGrown() {
	for _, l := range t.lists {
		if l.grown {
			t.change(l)
		}
	}
}

// set replaces the root events of a repository; the lock is held.
func (t *Targets) set(l *list, ids []string) {
	if l.read && slices.Equal(ids, l.ids) {
		return
	}
	l.ids = ids
	for _, id := range ids {
		t.threads.root(id, l)
	}
	t.change(l)
}

// change has the relays told that are asked for a repository; the lock is held.
func (t *Targets) change(l *list) {
	l.below, l.grown, t.shared = t.threads.below(l.ids), false, session.Set{}
	for w := range l.users {
		w.rootsCame = w.rootsCame || l.read
		w.tell()
	}
}

// seen is the sequence of the log up to which the lists have all; the lock is held.
func (t *Targets) seen() uint64 {
	if !t.later && len(t.threads.unread) == 0 {
		t.seq = t.hearing.Seq()
	}
	return t.seq
}

// ask asks for root events whenever there is something to ask, until ctx ends.
func (t *Targets) ask(ctx context.Context) error {
	if _, err := query.First(ctx, t.events, nostr.Filter{Kinds: replyKinds}); errors.Is(err, query.ErrNotFound) {
		t.mu.Lock()
		t.threads.whole = true
		t.mu.Unlock()
	}
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
	t.threads.forget(t.lists)
	replace(t.wake, struct{}{})
}

// askDue asks for the root events that must be asked for, and for what is below those that are new.
// Only then something else is wanted: what is below is asked for together with all else.
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
	if err := t.readThreads(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lists {
		l.grown = l.grown || !l.read && !l.due
		l.read = l.read || !l.due
	}
	t.changeGrown()
	return nil
}

func (t *Targets) askOne(ctx context.Context, ref string, l *list) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	t.mu.Lock()
	l.heard = nil // the answer has it, if it is still accepted
	t.mu.Unlock()
	ids, err := t.rootsOf(ctx, ref)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	ids = append(ids, l.heard...)
	slices.Sort(ids)
	t.set(l, slices.Compact(ids))
	l.due, l.heard = false, nil
	return nil
}

// rootsOf asks for the root events of a list.
func (t *Targets) rootsOf(ctx context.Context, name string) (ids []string, err error) {
	if ref, is := strings.CutPrefix(name, threadsOf); is {
		person, _ := proto.PersonOf(ref)
		return t.threadsOf(ctx, person)
	}
	var filters []nostr.Filter
	if person, is := proto.PersonOf(name); is {
		filters = append(filters, nostr.Filter{Kinds: rootKinds, Authors: []string{person}})
	} else {
		for _, tag := range []string{"a", "A", "q"} {
			filters = append(filters, nostr.Filter{Kinds: rootKinds, Tags: nostr.TagMap{tag: {name}}})
		}
	}
	for _, f := range filters {
		for id, err := range t.events.IDs(ctx, f) {
			if err != nil {
				return nil, err
			}
			ids = append(ids, hex.EncodeToString(id[:]))
		}
	}
	return ids, nil
}

// readNewer reads which events of some kinds the log has after a sequence.
func (t *Targets) readNewer(ctx context.Context, kinds []int, seq uint64) (map[string]bool, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	newer := map[string]bool{}
	for _, kind := range kinds {
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
			return nil, fmt.Errorf("read which events are newer than %d: %w", seq, err)
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
	visits  bool // it is for visits of the relay, not for the connection that stands

	// The lock of the targets guards the following.
	repos map[string]repo // by reference; until all were read, also those of which nothing is wanted
	seq   uint64          // of the last message that was taken in
	read  bool            // all messages were read that were there at the beginning
	dirty bool            // something else may be wanted than now says
	// rootsCame: so it is because root events have become known.
	rootsCame bool
	now       *session.Wanted // nil: it was not worked out yet
}

// repo is what is wanted of one repository, and the sequence of the message that says so.
type repo struct {
	proto.Wanted
	seq uint64
}

// Of returns what is wanted of the relay of that name, or on visits of it (proto.VisitKey). Nothing
// is known before Open.
func (t *Targets) Of(key string) *Wanted {
	name, visits := proto.VisitOf(key)
	return &Wanted{Changed: make(chan struct{}, 1), targets: t, name: name, visits: visits, repos: map[string]repo{}}
}

// key is that of the claim.
func (w *Wanted) key() string {
	if w.visits {
		return proto.VisitKey(w.name)
	}
	return w.name
}

// Open reads what is wanted of the relay now. It is followed from then on, until Close. The error
// is that of ctx, or that nothing came for 30 s.
func (w *Wanted) Open(ctx context.Context) error {
	t := w.targets
	t.mu.Lock()
	t.wanted[w.key()] = w
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
	if t.wanted[w.key()] == w {
		delete(t.wanted, w.key())
	}
	for ref, r := range w.repos {
		if list := w.listOf(ref, r); list != "" {
			t.unuse(w, list)
		}
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
	if !slices.Contains([]proto.Level{"", proto.LevelFull, proto.LevelStateOnly, proto.LevelPast, proto.LevelPerson}, r.Level) {
		t.log.Error("what discovery wants has a level that is not known; nothing is asked for", "subject", m.Subject,
			"level", r.Level)
		return
	}
	if t.plusOff && (r.Level == proto.LevelPast || r.Level == proto.LevelPerson) {
		r.Wanted = proto.Wanted{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range []string{name, proto.VisitKey(name)} {
		if w := t.wanted[key]; w != nil { // else it is not claimed
			w.take(ref, r)
		}
	}
}

// take takes in what is wanted of a repository or person; the lock is held.
func (w *Wanted) take(ref string, r repo) {
	t, before := w.targets, w.repos[ref]
	if r.seq <= before.seq { // it was read when the relay was claimed
		return
	}
	w.seq = max(w.seq, r.seq)
	if w.repos[ref] = r; w.read && r.Level == "" {
		delete(w.repos, ref)
	}
	was, is := w.listOf(ref, before), w.listOf(ref, r)
	if was != "" && was != is {
		t.unuse(w, was)
	}
	if is != "" {
		t.use(w, is)
	}
	w.tell()
}

// threadsOf begins the name of the list of the threads that a person takes part in.
const threadsOf = "threads of "

// listOf is the name of the list of root events that is needed for a repository or a person; "":
// none is.
func (w *Wanted) listOf(ref string, r repo) string {
	switch {
	case !w.visits && (r.Level == proto.LevelFull || r.Level == proto.LevelPerson && r.Roots):
		return ref
	case w.visits && r.Level == proto.LevelPast:
		return ref
	case w.visits && r.Level == proto.LevelPerson && r.Threads:
		return threadsOf + ref
	}
	return ""
}

// use notes that a relay is asked for a repository; the lock is held.
func (t *Targets) use(w *Wanted, ref string) {
	l := t.lists[ref]
	if l == nil {
		l = &list{ref: ref, users: map[*Wanted]bool{}, due: true}
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

// Relay is what is said of the relay; one that does not exist is no target.
func (w *Wanted) Relay() proto.Target {
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	return w.targets.relays[w.name]
}

// Now is what the relay should be asked for beyond layer 1. It stays as it was until the root
// events of repositories that are new are known; known is false before it is known for the first
// time. Where there are always new ones those whose root events are known do not wait for the others,
// of which only the states are wanted until then; but a visit is for all of them.
func (w *Wanted) Now() (now session.Wanted, known bool) {
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	if w.dirty && w.read {
		if seq, all := w.rootsKnown(); all || w.now != nil && w.rootsCame && !w.visits {
			items := w.some(maxSeq)
			w.now = &session.Wanted{Items: items, Mark: session.MarkAt(seq, w.targets.seen())}
			w.dirty, w.rootsCame = false, false
		}
	}
	if w.now == nil {
		return session.Wanted{}, false
	}
	return *w.now, true
}

// rootsKnown is the sequence up to which the root events of all repositories are known, and whether
// those of all are; the lock is held.
func (w *Wanted) rootsKnown() (seq uint64, all bool) {
	seq, all = w.seq, true
	for ref, r := range w.repos {
		if list := w.listOf(ref, r); list != "" && !w.targets.lists[list].read {
			seq, all = min(seq, r.seq-1), false
		}
	}
	return seq, all
}

// Confirmed is how to tell a successor what is confirmed.
func (w *Wanted) Confirmed(mark session.Mark) session.Mark {
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	if w.now == nil || w.dirty || mark == (session.Mark{}) {
		return mark
	}
	seen, whole := w.targets.seen(), w.now.Mark // what came since is not wanted of this relay
	if mark.Target != whole.Target {
		return mark
	}
	if mark.Log == whole.Log {
		mark.Log = max(mark.Log, seen)
	}
	if mark.Replies == whole.Replies {
		mark.Replies = max(mark.Replies, seen)
	}
	return mark
}

// Past is what of the things that are wanted now was wanted at a mark. Call it once they are known.
func (w *Wanted) Past(ctx context.Context, mark session.Mark) (session.Set, error) {
	if mark == (session.Mark{}) {
		return session.Set{}, nil
	}
	newer, err := w.targets.newer(ctx, rootKinds, mark.Log)
	if err != nil {
		return session.Set{}, err
	}
	var newerReplies map[string]bool
	if mark.Replies > 0 {
		if newerReplies, err = w.targets.newer(ctx, replyKinds, mark.Replies); err != nil && ctx.Err() != nil {
			return session.Set{}, err
		}
	}
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	past := w.some(mark.Target)
	past.First = true
	past.Roots = slices.DeleteFunc(slices.Clone(past.Roots), func(id string) bool { return newer[id] })
	past.Replies = slices.DeleteFunc(slices.Clone(past.Replies), func(id string) bool { return newerReplies == nil || newerReplies[id] })
	return past, nil
}

// some is what is wanted of the repositories up to a sequence, as far as their root events are known;
// the lock is held.
func (w *Wanted) some(seq uint64) (s session.Set) {
	var lists []session.Set
	for ref, r := range w.repos {
		if r.seq > seq || r.Level == "" {
			continue
		}
		if person, is := proto.PersonOf(ref); is && r.Lists && w.visits {
			s.People = append(s.People, person)
		}
		l := w.targets.lists[w.listOf(ref, r)]
		if l != nil && l.read {
			roots := session.Set{Roots: l.ids}
			if r.Level != proto.LevelPerson || w.visits {
				roots.Replies = l.below
			}
			lists = append(lists, roots)
		}
		if r.Level == proto.LevelPerson || r.Level == proto.LevelPast && !w.visits || r.Level != proto.LevelPast && w.visits {
			continue
		}
		if r.Level == proto.LevelPast {
			s.Full = append(s.Full, ref)
			continue
		}
		_, identifier, _ := strings.Cut(strings.TrimPrefix(ref, "30617:"), ":")
		s.States = append(s.States, identifier)
		if r.Level == proto.LevelFull && (l == nil || l.read) {
			s.Full = append(s.Full, ref)
		}
	}
	slices.Sort(s.People)
	slices.Sort(s.Full)
	slices.Sort(s.States)
	s.States = slices.Compact(s.States)
	t := w.targets // relays mostly have the same repositories
	if len(lists) == len(s.Full) && slices.Equal(t.shared.Full, s.Full) {
		s.Roots, s.Replies = t.shared.Roots, t.shared.Replies
		return s
	}
	all := session.Union(lists...)
	s.Roots = all.Roots
	s.Replies = session.Diff(session.Set{Roots: all.Replies}, session.Set{Roots: all.Roots}, session.Set{}).Roots
	if len(lists) == len(s.Full) {
		t.shared = session.Set{Full: s.Full, Roots: s.Roots, Replies: s.Replies}
	}
	return s
}
