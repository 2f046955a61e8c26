package relayconn

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

var (
	author = strings.Repeat("a", 64)
	x, y   = "30617:" + author + ":x", "30617:" + author + ":y"
)

// raise says what a relay is asked for further: repositories by their identifiers, "?" after one of
// which only states are wanted, "-" after one that is gone.
func raise(t *testing.T, b *bus.Bus, key string, identifiers ...string) {
	t.Helper()
	to, from := wanting("wss://"+key), wanting("wss://"+key)
	for _, id := range identifiers {
		ref := x[:len(x)-1] + id[:1]
		from.Repos[ref] = proto.Wanted{}
		if level, has := map[string]proto.Level{"": proto.LevelFull, "?": proto.LevelStateOnly}[id[1:]]; has {
			to.Repos[ref] = proto.Wanted{Level: level}
		}
	}
	aim(t, b, to.URL, to, from)
}

// withdraw says that a relay is no target any more.
func withdraw(t *testing.T, b *bus.Bus, key string) {
	t.Helper()
	aim(t, b, "wss://"+key, proto.Target{}, wanting("wss://"+key))
}

// while runs fn in the background until the test ends.
func while(t *testing.T, fn func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := fn(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

// TestRelays: the list has all relays that are targets.
func TestRelays(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	raise(t, b, "full.example", "x")
	raise(t, b, "bare.example:7777/path")
	raise(t, b, "gone.example", "x")
	withdraw(t, b, "gone.example")
	if err := b.Conn.Publish("grasp.target.=", []byte("{}")); err != nil { // not a name
		t.Fatal(err)
	}
	names := make(chan []string, 1)
	all := NewTargets(b.JS, &world{Bus: b}, 0, 0, names, quiet)
	while(t, all.Run)
	becomes := func(want ...string) {
		t.Helper()
		var got []string
		eventually(t, fmt.Sprintf("the list is %q", want), func() bool {
			select {
			case list := <-names:
				got = list
			default:
			}
			return slices.Equal(got, want)
		})
	}
	becomes("bare.example_7777/path", "full.example")
	raise(t, b, "gone.example", "x")
	becomes("bare.example_7777/path", "full.example", "gone.example")
	withdraw(t, b, "full.example")
	becomes("bare.example_7777/path", "gone.example")
}

// TestNothingFurtherWhereItIsOff: what discovery wanted of relays of participants before the service
// became a private one is not asked for.
func TestNothingFurtherWhereItIsOff(t *testing.T) {
	t.Parallel()
	person := proto.PersonRef(author)
	for name, off := range map[string]bool{"on": false, "off": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBus(t)
			participants := further("wss://further.example", map[string]proto.Wanted{
				person: {Level: proto.LevelPerson, Roots: true, Lists: true},
			})
			aim(t, b, participants.URL, participants)
			peer := further("wss://peer.example", map[string]proto.Wanted{
				y: {Level: proto.LevelStateOnly}, x: {Level: proto.LevelPast}, person: {Level: proto.LevelPerson, Lists: true},
			})
			peer.Further = false
			aim(t, b, peer.URL, peer)
			names := make(chan []string, 1)
			all := NewTargets(b.JS, &world{Bus: b}, 0, 0, names, quiet)
			all.plusOff = off
			while(t, all.Run)
			want := []string{"further.example", "further.example.=", "peer.example", "peer.example.="}
			if off {
				want = []string{"peer.example"}
			}
			if got := <-names; !slices.Equal(got, want) {
				t.Errorf("the list is %q", got)
			}
			visits := all.Of(proto.VisitKey("peer.example"))
			defer visits.Close()
			if err := visits.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "what is wanted is known", func() bool { _, known := visits.Now(); return known })
			if now, _ := visits.Now(); now.Items.Empty() != off {
				t.Errorf("on visits %+v is asked for", now.Items)
			}
		})
	}
}

// world is a bus with a log, and what is asked about accepted events.
type world struct {
	*bus.Bus
	*Targets
	query.Source

	mu       sync.Mutex
	accepted map[string][]string // root events and the repositories that they name
	asked    int
	failing  bool
	answered func() // after an answer; nil: nothing
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Bus: openBus(t), accepted: map[string][]string{}}
	w.Targets = w.worker(10 * time.Millisecond)
	return w
}

// worker is what one worker knows; it does not run yet.
func (w *world) worker(window time.Duration) *Targets {
	return NewTargets(w.JS, w, window, 0, make(chan []string, 1), quiet)
}

// Seq implements query.Source, and so do the following.
func (w *world) Seq() uint64 {
	if w.Bus == nil {
		return 0
	}
	seq, _ := bus.LastSeq(context.Background(), w.JS, proto.StreamEvents)
	return seq
}

func (w *world) Reached(context.Context, uint64) error { return nil }

func (w *world) CatchUp(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked++; w.failing {
		return context.DeadlineExceeded
	}
	return nil
}

func (w *world) IDs(_ context.Context, f nostr.Filter) iter.Seq2[[32]byte, error] {
	return func(yield func([32]byte, error) bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for text, refs := range w.accepted {
			var id [32]byte
			nostr.ReadHex(id[:], text)
			if f.Tags["a"] != nil && slices.Contains(refs, f.Tags["a"][0]) && !yield(id, nil) {
				return
			}
		}
		if w.answered != nil {
			w.answered()
		}
	}
}

func (w *world) Query(context.Context, nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(func(*nostr.Event, error) bool) {}
}

// issue has an issue accepted that names repositories.
func (w *world) issue(t *testing.T, refs ...string) (id string, seq uint64) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	ev := &nostr.Event{Kind: nostr.KindIssue, PubKey: author, CreatedAt: nostr.Timestamp(len(w.accepted))}
	for _, ref := range refs {
		ev.Tags = append(ev.Tags, nostr.Tag{"a", ref})
	}
	ev.ID = ev.GetID()
	w.accepted[ev.ID] = refs
	ack, err := w.JS.Publish(t.Context(), proto.EventSubjectOf(ev).String(), []byte(ev.String()))
	must(t, err)
	return ev.ID, ack.Sequence
}

// follow claims a relay, as is done once there are names, and waits until it is known what is
// wanted.
func follow(t *testing.T, all *Targets, name string) *Wanted {
	t.Helper()
	eventually(t, "there are names", func() bool { return all.stream.CaughtUp() == nil })
	f := all.Of(name)
	must(t, f.Open(t.Context()))
	t.Cleanup(f.Close)
	eventually(t, "it is known what is wanted", func() bool { _, known := f.Now(); return known })
	return f
}

func now(f *Wanted) session.Wanted {
	now, _ := f.Now()
	return now
}

// wants reports whether these are the full repositories and root events of a relay.
func wants(f *Wanted, identifiers string, roots ...string) bool {
	return is(now(f).Items, identifiers, roots...)
}

func is(set session.Set, identifiers string, roots ...string) bool {
	var full []string
	for _, id := range identifiers {
		full = append(full, x[:len(x)-1]+string(id))
	}
	return slices.Equal(set.Full, full) && slices.Equal(set.Roots, slices.Sorted(slices.Values(roots)))
}

// TestWhatIsWanted follows what is wanted of two relays: repositories and levels from the stream,
// root events from what is accepted, those that were there and those that come and go.
func TestWhatIsWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, _ := w.issue(t, x)
	while(t, w.Run)
	raise(t, w.Bus, "r.example", "x", "y?")
	raise(t, w.Bus, "s.example", "x")
	raise(t, w.Bus, "r.example.com", "y") // another relay, whose name begins alike
	r := follow(t, w.Targets, "r.example")
	subscriptions := w.Conn.NumSubscriptions()
	s := follow(t, w.Targets, "s.example")
	eventually(t, "nothing more is followed", func() bool { return w.Conn.NumSubscriptions() <= subscriptions })
	if !wants(r, "x", old) || !wants(s, "x", old) {
		t.Fatalf("at first %+v, %+v", now(r).Items, now(s).Items)
	}
	eventually(t, "the relay is a target", func() bool { return r.Relay().URL == "wss://r.example" })
	if !slices.Equal(now(r).Items.States, []string{"x", "y"}) || !slices.Equal(now(s).Items.States, []string{"x"}) {
		t.Fatalf("%+v, %+v", now(r).Items, now(s).Items)
	}
	both, _ := w.issue(t, x, y)
	eventually(t, "one that comes is wanted of both", func() bool {
		return wants(r, "x", old, both) && wants(s, "x", old, both)
	})
	other, _ := w.issue(t, y)
	raise(t, w.Bus, "r.example", "x", "y")
	eventually(t, "the root events of one that is raised are wanted, each once", func() bool {
		return wants(r, "xy", old, both, other)
	})
	raise(t, w.Bus, "r.example", "x-", "y")
	eventually(t, "nor what is withdrawn", func() bool { return wants(r, "y", both, other) })
	w.mu.Lock()
	delete(w.accepted, other)
	w.mu.Unlock()
	eventually(t, "nor what is accepted no more", func() bool {
		w.askAgain() // an answer that was on its way is of before
		return wants(r, "y", both)
	})
	withdraw(t, w.Bus, "r.example")
	eventually(t, "the relay is no target any more", func() bool { return !r.Relay().Exists() })
}

// TestUnknownRootEventsAreWaitedFor: a repository is wanted once its root events are known, and
// what was wanted before stays wanted until then.
func TestUnknownRootEventsAreWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, _ := w.issue(t, x)
	while(t, w.Run)
	raise(t, w.Bus, "r.example", "x")
	f := follow(t, w.Targets, "r.example")
	before := now(f)
	w.mu.Lock()
	w.failing, w.asked = true, 0
	w.mu.Unlock()
	other, _ := w.issue(t, y)
	raise(t, w.Bus, "r.example", "x", "y")
	eventually(t, "it is asked", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.asked > 0 })
	if now(f).Mark != before.Mark || !wants(f, "x", old) {
		t.Errorf("wanted is %+v", now(f))
	}
	w.mu.Lock()
	w.failing = false
	w.mu.Unlock()
	eventually(t, "it is known", func() bool { return wants(f, "xy", old, other) })
}

// TestNewRepositoriesKeepNoneBack: where there is always a repository whose root events are not known
// yet, the others are wanted all the same, and the mark says no more than what is known. Of that one
// the states are wanted, as before.
func TestNewRepositoriesKeepNoneBack(t *testing.T) {
	t.Parallel()
	all := NewTargets(nil, &world{}, time.Hour, 0, nil, quiet)
	f := all.Of("r.example")
	all.wanted["r.example"], f.read = f, true
	take := func(seq uint64, level proto.Level, ref string) { f.take(ref, repo{proto.Wanted{Level: level}, seq}) }
	all.mu.Lock()
	take(1, proto.LevelStateOnly, y)
	all.mu.Unlock()
	if w, known := f.Now(); !known || !slices.Equal(w.Items.States, []string{"y"}) {
		t.Fatalf("at first %+v, %v", w, known)
	}
	all.mu.Lock()
	take(2, proto.LevelFull, x)
	all.lists[x].due = false // it was asked for
	take(3, proto.LevelFull, y)
	all.mu.Unlock()
	if w := now(f); w.Mark.Target != 1 {
		t.Errorf("before anything is known %+v is wanted", w)
	}
	all.mu.Lock()
	all.lists[x].read = true
	all.change(all.lists[x])
	all.mu.Unlock()
	if w := now(f); !is(w.Items, "x") || !slices.Equal(w.Items.States, []string{"x", "y"}) || w.Mark.Target != 2 {
		t.Errorf("while one is not known %+v is wanted", w)
	}
	must(t, all.askDue(t.Context()))
	if w := now(f); !is(w.Items, "xy") || w.Mark.Target != 3 {
		t.Errorf("in the end %+v is wanted", w)
	}
}

// TestWhatIsHeardWhileItIsAskedFor: an answer that was made before does not hide it.
func TestWhatIsHeardWhileItIsAskedFor(t *testing.T) {
	t.Parallel()
	known, gone, meanwhile := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)
	ref := nostr.RepoRef{PubKey: author, Identifier: "r"}.String()
	w := &world{accepted: map[string][]string{known: {ref}}}
	all, l := NewTargets(nil, w, time.Hour, 0, nil, quiet), &list{users: map[*Wanted]bool{}}
	all.lists[ref] = l
	hear := func(id string) {
		all.hear([]eventdb.Record{{Event: &nostr.Event{ID: id, Kind: nostr.KindIssue, Tags: nostr.Tags{{"a", ref}}}}})
	}
	hear(gone) // and it has left the log since
	w.answered = func() { hear(meanwhile) }
	must(t, all.askOne(t.Context(), ref, l))
	if want := []string{known, meanwhile}; !slices.Equal(l.ids, want) {
		t.Errorf("the root events are %v, want %v", l.ids, want)
	}
	hear("no id") // as a message of the log may have
	all.fold()
	if want := []string{known, meanwhile, "no id"}; !slices.Equal(l.ids, want) {
		t.Errorf("the root events are %v, want %v", l.ids, want)
	}
}

// TestWhatWasConfirmed: a successor takes for confirmed what the mark says, and nothing that came
// later, whether its process was there already or not.
func TestWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, _ := w.issue(t, x)
	while(t, w.Run)
	raise(t, w.Bus, "r.example", "x")
	f := follow(t, w.Targets, "r.example")
	// What is of no concern to the relay moves the mark on.
	_, seq := w.issue(t, y)
	eventually(t, "the mark is behind it", func() bool { return f.Confirmed(now(f).Mark).Log == seq })
	mark := f.Confirmed(now(f).Mark)
	newer, _ := w.issue(t, x)
	eventually(t, "it is wanted", func() bool { return wants(f, "x", old, newer) })
	if m := f.Confirmed(mark); m != mark {
		t.Errorf("what was wanted before is confirmed up to %+v, want %+v", m, mark)
	}
	raise(t, w.Bus, "r.example", "y")
	eventually(t, "another repository is wanted", func() bool { return len(now(f).Items.Full) == 2 })

	later := w.worker(time.Millisecond)
	while(t, later.Run)
	for name, worker := range map[string]*Targets{"there before": w.Targets, "there later": later} {
		past, err := follow(t, worker, "r.example").Past(t.Context(), mark)
		if err != nil || !is(past, "x", old) {
			t.Errorf("%s: confirmed is %+v, %v", name, past, err)
		}
	}
	if past, err := f.Past(t.Context(), session.Mark{}); err != nil || !past.Empty() {
		t.Errorf("without a mark %+v, %v", past, err)
	}
}
