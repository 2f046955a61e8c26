package targets_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/roots"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/targets"
)

const listed = "30617:a:x"

func ids(from, to int) (list []target.ID) {
	for n := from; n < to; n++ {
		var id target.ID
		binary.BigEndian.PutUint64(id[:], uint64(n))
		list = append(list, id)
	}
	return list
}

func hex(list []target.ID) (out []string) {
	for _, id := range list {
		out = append(out, id.String())
	}
	return out
}

// publishList writes changes of the list as discovery does, and returns the sequence of the last.
func publishList(t *testing.T, b *bus.Bus, last uint64, changes ...proto.RootsChange) uint64 {
	t.Helper()
	subject, err := proto.RootsSubject(listed)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		msg := &nats.Msg{Subject: subject, Header: nats.Header{}}
		if c.Snapshot {
			msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		} else {
			c.Prev = last
		}
		if msg.Data, err = json.Marshal(c); err != nil {
			t.Fatal(err)
		}
		ack, err := b.JS.PublishMsg(t.Context(), msg)
		if err != nil {
			t.Fatal(err)
		}
		last = ack.Sequence
	}
	return last
}

// naming is a change of a target that names the list after a message.
func naming(at uint64) proto.TargetChange {
	return proto.TargetChange{URL: "wss://r.example.com", Repos: []proto.RepoChange{{Ref: listed, Level: proto.LevelFull, RootsAt: at}}}
}

// follow follows the relay's target, and waits until it is read.
func follow(t *testing.T, b *bus.Bus, name string, past uint64, lists *roots.Reader) *targets.Follower {
	t.Helper()
	f := targets.NewFollower(past, lists)
	while(t, func(ctx context.Context) error { return f.Run(ctx, b.JS, name, nil, quiet) })
	select {
	case <-f.Read():
	case <-time.After(patience):
		t.Fatal("not read in time")
	}
	return f
}

func rootsOf(f *targets.Follower) []target.ID {
	t, _ := f.Current()
	return t.Repos[listed].Roots
}

// TestListsOfRootEvents: targets that name a list have its root events, and what they say besides;
// those of several relays have the same list.
func TestListsOfRootEvents(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const one, other = "r.example.com", "other.example.com"
	first := publishList(t, b, 0, target.ListDiff(listed, nil, ids(0, 500), 512<<10)...)
	publish(t, b, one, false, naming(first))
	few := proto.TargetChange{URL: "wss://r.example.com", Repos: []proto.RepoChange{{Ref: listed, Roots: hex(ids(500, 503)), RootsGone: hex(ids(0, 2))}}}
	past := publish(t, b, one, false, few)
	second := publishList(t, b, first, target.ListDiff(listed, ids(0, 500), ids(0, 900), 512<<10)...)
	publish(t, b, one, false, naming(second))
	publish(t, b, other, false, naming(second))
	lists := roots.NewReader(b.JS)
	f, g := follow(t, b, one, past, lists), follow(t, b, other, 0, lists)
	if a, b := rootsOf(f), rootsOf(g); len(a) != 900 || len(b) != 900 || &a[0] != &b[0] {
		t.Errorf("%d and %d root events, or not the same list", len(a), len(b))
	}
	if got := f.TakePast().Repos[listed].Roots; !slices.Equal(got, ids(2, 503)) {
		t.Errorf("in the past %d root events", len(got))
	}
	publish(t, b, one, false, few)
	eventually(t, "a few more and fewer", func() bool { return slices.Equal(rootsOf(f), ids(2, 900)) })
	third := publishList(t, b, second, target.ListDiff(listed, ids(0, 900), ids(300, 1000), 512<<10)...)
	now := publish(t, b, one, false, naming(third))
	eventually(t, "the list again", func() bool { return slices.Equal(rootsOf(f), ids(300, 1000)) })
	if _, revision := f.Current(); revision != now {
		t.Errorf("it is at %d, want %d", revision, now)
	}
	// An earlier version that finds no root events tells all that there are.
	publish(t, b, one, false, proto.TargetChange{URL: "wss://r.example.com", Snapshot: true, Repos: []proto.RepoChange{{Ref: listed, Level: proto.LevelFull, Roots: hex(ids(0, 3))}}})
	eventually(t, "the snapshot of an earlier version", func() bool { return slices.Equal(rootsOf(f), ids(0, 3)) })
}

// TestAListThatWasReplaced: what a target names is the newest list then, which it will name; what
// was confirmed of the one before nobody knows.
func TestAListThatWasReplaced(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key = "r.example.com"
	publish(t, b, key, false, repo("30617:a:y"))
	first := publishList(t, b, 0, target.ListDiff(listed, nil, ids(0, 500), 512<<10)...)
	past := publish(t, b, key, false, naming(first))
	parts := target.ListSnapshot(listed, ids(0, 700), 16<<10)
	if len(parts) < 2 {
		t.Fatal("the test needs a list in parts")
	}
	last := publishList(t, b, first, parts[:1]...)
	// A part is not taken for the list: it waits for the others.
	f := targets.NewFollower(past, nil)
	while(t, func(ctx context.Context) error { return f.Run(ctx, b.JS, key, nil, quiet) })
	select {
	case <-f.Read():
		t.Errorf("a part of the list is taken for it: %d root events", len(rootsOf(f)))
	case <-time.After(500 * time.Millisecond):
	}
	last = publishList(t, b, last, parts[1:]...)
	<-f.Read()
	if got := rootsOf(f); !slices.Equal(got, ids(0, 700)) {
		t.Errorf("%d root events", len(got))
	}
	if got := f.TakePast(); len(got.Repos) != 1 || got.Repos["30617:a:y"].Level != proto.LevelFull {
		t.Errorf("the past is %+v", got)
	}
	publish(t, b, key, false, naming(last))
	eventually(t, "it is told", func() bool { return slices.Equal(rootsOf(f), ids(0, 700)) })
	// One that is not there at all stops nothing.
	publish(t, b, key, false, naming(last+1000), repo("30617:a:z"))
	eventually(t, "another repository", func() bool {
		got, _ := f.Current()
		return len(got.Repos) == 3
	})
}

// TestAPastThatASnapshotTells: of a repository that a snapshot says was as it is the list is known.
func TestAPastThatASnapshotTells(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key = "r.example.com"
	list := publishList(t, b, 0, target.ListDiff(listed, nil, ids(0, 500), 512<<10)...)
	past := publish(t, b, key, false, naming(list))
	snapshot := naming(list)
	snapshot.Snapshot = true
	snapshot.Repos[0].Since = past
	snapshot.Repos = append(snapshot.Repos, proto.RepoChange{Ref: "30617:a:new", Level: proto.LevelFull, RootsAt: list})
	publish(t, b, key, true, snapshot)
	f := follow(t, b, key, past, nil)
	if got := f.TakePast(); len(got.Repos) != 1 || !slices.Equal(got.Repos[listed].Roots, ids(0, 500)) {
		t.Errorf("the past is %+v", got)
	}
}

// TestAPastWithoutLists: a worker of an earlier version has confirmed a target without the root
// events of the list that it names.
func TestAPastWithoutLists(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key = "r.example.com"
	publish(t, b, key, false, repo("30617:a:y"))
	past := publish(t, b, key, false, naming(publishList(t, b, 0, target.ListDiff(listed, nil, ids(0, 500), 512<<10)...)))
	f := targets.NewFollower(past, nil)
	f.Unlisted = true
	while(t, func(ctx context.Context) error { return f.Run(ctx, b.JS, key, nil, quiet) })
	<-f.Read()
	if got := f.TakePast(); len(got.Repos) != 1 || got.Repos["30617:a:y"].Level != proto.LevelFull {
		t.Errorf("the past is %+v", got)
	}
	if n := len(rootsOf(f)); n != 500 {
		t.Errorf("%d root events", n)
	}
}

// TestAListThatStaysHalf: whoever wrote the list has stopped in the middle. The follower does not
// wait for ever, says of nothing that it was asked for, keeps the root events that it has, and
// finds the list when somebody has written it to its end, though nobody tells the target again.
func TestAListThatStaysHalf(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key, other = "r.example.com", "other.example.com"
	first := publishList(t, b, 0, target.ListDiff(listed, nil, ids(0, 500), 512<<10)...)
	revision := publish(t, b, key, false, naming(first))
	publish(t, b, other, false, naming(first))
	reads := follow(t, b, other, 0, nil)
	parts := target.ListSnapshot(listed, ids(0, 700), 16<<10)
	last := publishList(t, b, first, parts[:1]...)
	f := follow(t, b, key, revision, nil)
	if got, at := f.Current(); len(got.Repos[listed].Roots) != 0 || got.Repos[listed].Level != proto.LevelFull || at != 0 {
		t.Errorf("%d root events, at %d", len(got.Repos[listed].Roots), at)
	}
	if got := f.TakePast(); len(got.Repos) != 0 {
		t.Errorf("the past is %+v", got)
	}
	publish(t, b, other, false, naming(last+1000), repo("30617:a:z"))
	eventually(t, "another repository", func() bool {
		got, _ := reads.Current()
		return len(got.Repos) == 2
	})
	if n := len(rootsOf(reads)); n != 500 {
		t.Errorf("%d root events are left of those that were read", n)
	}
	publishList(t, b, last, parts[1:]...)
	eventually(t, "the whole list", func() bool {
		got, at := f.Current()
		return slices.Equal(got.Repos[listed].Roots, ids(0, 700)) && at == revision
	})
}

// asking counts what is asked of JetStream directly.
type asking struct {
	jetstream.JetStream
	questions atomic.Int32
	away      atomic.Bool // nobody answers
}

func (a *asking) Conn() *nats.Conn {
	a.questions.Add(1)
	if a.away.Load() {
		return nil
	}
	return a.JetStream.Conn()
}

// TestNobodyWaitsForTheListsOfOthers: a target that names a list which is half written keeps no
// others from being read.
func TestNobodyWaitsForTheListsOfOthers(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	last := publishList(t, b, 0, target.ListSnapshot(listed, ids(0, 700), 16<<10)[:1]...)
	turns := targets.NewTurns()
	start := func(key string, lists *roots.Reader) *targets.Follower {
		f := targets.NewFollower(0, lists)
		while(t, func(ctx context.Context) error { return f.Run(ctx, b.JS, key, turns, quiet) })
		return f
	}
	var waiting []*targets.Follower
	for n := range 4 { // as many as have turns
		key := string(rune('a'+n)) + ".example.com"
		publish(t, b, key, false, naming(last+1000))
		counted := &asking{JetStream: b.JS}
		waiting = append(waiting, start(key, roots.NewReader(counted)))
		eventually(t, "a question for the list", func() bool { return counted.questions.Load() > 0 })
	}
	publish(t, b, "z.example.com", false, repo("30617:a:z"))
	<-start("z.example.com", nil).Read()
	for _, f := range waiting {
		select {
		case <-f.Read():
			t.Error("it was read before the one that names no list")
		default:
		}
	}
}

// TestListsWhileTheBusIsAway: it is not waited for with each list of a target, and they are read
// when it is back.
func TestListsWhileTheBusIsAway(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key = "r.example.com"
	change := naming(publishList(t, b, 0, target.ListDiff(listed, nil, ids(0, 500), 512<<10)...))
	for _, ref := range []string{"30617:a:y", "30617:a:z"} {
		change.Repos = append(change.Repos, proto.RepoChange{Ref: ref, Level: proto.LevelFull, RootsAt: 1, Roots: hex(ids(0, 3))})
	}
	now := publish(t, b, key, false, change)
	counted := &asking{JetStream: b.JS}
	counted.away.Store(true)
	f := follow(t, b, key, 0, roots.NewReader(counted))
	if n := counted.questions.Load(); n != 6 {
		t.Errorf("%d questions for three lists, want those for one", n)
	}
	publishList(t, b, now, target.ListSnapshot(listed, ids(0, 600), 512<<10)...)
	counted.away.Store(false)
	eventually(t, "the list", func() bool { return slices.Equal(rootsOf(f), ids(0, 600)) })
}

// TestAListIsReadOnce, however many root events the target tells besides.
func TestAListIsReadOnce(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key = "r.example.com"
	at := publishList(t, b, 0, target.ListDiff(listed, nil, ids(0, 500), 4<<10)...)
	publish(t, b, key, false, naming(at))
	counted := &asking{JetStream: b.JS}
	f := follow(t, b, key, 0, roots.NewReader(counted))
	read := counted.questions.Load()
	for n := range 10 {
		one := proto.TargetChange{URL: "wss://r.example.com", Repos: []proto.RepoChange{{Ref: listed, Roots: hex(ids(500+n, 501+n))}}}
		publish(t, b, key, false, one)
		eventually(t, "one more", func() bool { return slices.Equal(rootsOf(f), ids(0, 501+n)) })
		runtime.GC()
	}
	if n := counted.questions.Load() - read; n != 0 {
		t.Errorf("%d messages of the list are read again for ten root events", n)
	}
}
