package targets_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/progress"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/targets"
)

const patience = 3 * time.Minute

var quiet = slog.New(slog.DiscardHandler)

func openBus(t *testing.T) *bus.Bus {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly = true
	b, err := bus.Open(t.Context(), bus.Options{Sizing: sizing, Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// publish writes changes as discovery does, and gives the sequence of the last.
func publish(t *testing.T, b *bus.Bus, key string, replace bool, changes ...proto.TargetChange) (seq uint64) {
	t.Helper()
	subject, err := proto.TargetSubject(key)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range changes {
		data, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		msg := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{}}
		if replace && i == 0 {
			msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		}
		if c.Gone {
			msg.Header.Set(proto.HeaderGone, "true")
		}
		ack, err := b.JS.PublishMsg(t.Context(), msg)
		if err != nil {
			t.Fatal(err)
		}
		seq = ack.Sequence
	}
	return seq
}

func repo(ref string) proto.TargetChange {
	return proto.TargetChange{URL: "wss://r.example.com", Repos: []proto.RepoChange{{Ref: ref, Level: proto.LevelFull}}}
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

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func TestRelays(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	publish(t, b, "a.example.com", false, repo("30617:a:x"))
	publish(t, b, "b.example.com:7777/path", false, repo("30617:a:x"))
	publish(t, b, "c.example.com", false, repo("30617:a:x"))
	publish(t, b, "c.example.com", false, proto.TargetChange{Gone: true})
	if err := b.Conn.Publish("grasp.target.=", []byte("{}")); err != nil { // not a name
		t.Fatal(err)
	}
	end := publishList(t, b, 0, proto.RootsChange{Ref: listed}) // no target, but read
	names, read := make(chan []string, 1), new(progress.Progress)
	while(t, func(ctx context.Context) error {
		return targets.Relays(ctx, b.JS, quiet, names, &targets.Less{}, read)
	})
	next := func() []string {
		t.Helper()
		select {
		case list := <-names:
			return list
		case <-time.After(patience):
			t.Fatal("no list in time")
			return nil
		}
	}
	if got := next(); !slices.Equal(got, []string{"a.example.com", "b.example.com_7777/path"}) {
		t.Fatalf("at first %v", got)
	}
	eventually(t, "the list is passed over", func() bool { return read.Seq() == end })
	publish(t, b, "a.example.com", false, repo("30617:a:y")) // no news
	publish(t, b, "c.example.com", false, repo("30617:a:x"))
	if got := next(); len(got) != 3 {
		t.Fatalf("one more: %v", got)
	}
	publish(t, b, "b.example.com:7777/path", false, proto.TargetChange{Gone: true})
	if got := next(); !slices.Equal(got, []string{"a.example.com", "c.example.com"}) {
		t.Fatalf("one withdrawn: %v", got)
	}
}

// TestWhatOnlyPurgatoryListsIsLess: a relay of which only states are wanted gives way, until
// something else is wanted of it; a bootstrap relay, and one whose target an earlier version wrote,
// do not.
func TestWhatOnlyPurgatoryListsIsLess(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	write := func(key string, level proto.Level, gone bool) {
		t.Helper()
		subject, err := proto.TargetSubject(key)
		if err != nil {
			t.Fatal(err)
		}
		msg := &nats.Msg{Subject: subject, Data: []byte("{}"), Header: nats.Header{}}
		if level != "" {
			msg.Header.Set(proto.HeaderLevel, string(level))
		}
		if gone {
			msg.Header.Set(proto.HeaderGone, "true")
		}
		if _, err := b.JS.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	write("state.example", proto.LevelStateOnly, false)
	write("raised.example", proto.LevelStateOnly, false)
	write("full.example", proto.LevelFull, false)
	write("old.example", "", false)
	names, less := make(chan []string, 1), &targets.Less{}
	while(t, func(ctx context.Context) error {
		return targets.Relays(ctx, b.JS, quiet, names, less, new(progress.Progress))
	})
	next := func() (yielding string) {
		t.Helper()
		select {
		case list := <-names:
			for _, name := range list {
				if less.Has(name) {
					yielding += name + " "
				}
			}
		case <-time.After(patience):
			t.Fatal("no list in time")
		}
		return yielding
	}
	if got := next(); got != "raised.example state.example " {
		t.Errorf("at first %q", got)
	}
	write("raised.example", proto.LevelFull, false)
	if got := next(); got != "state.example " {
		t.Errorf("when one is raised %q", got)
	}
	write("state.example", "", true)
	if got := next(); got != "" || less.Has("state.example") {
		t.Errorf("when one is gone %q", got)
	}
}

// TestNoListIsLost: however slowly the lists are taken, and whatever comes last, in the end the
// list is whole.
func TestNoListIsLost(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	names := make(chan []string, 1)
	while(t, func(ctx context.Context) error {
		return targets.Relays(ctx, b.JS, quiet, names, &targets.Less{}, new(progress.Progress))
	})
	const n = 300
	for i := range n {
		publish(t, b, fmt.Sprintf("r%d.example.com", i), false, repo("30617:a:x"))
		publish(t, b, "r0.example.com", false, repo("30617:a:y")) // not a change of the list
	}
	var last []string
	eventually(t, "all are listed", func() bool {
		select {
		case last = <-names:
		default:
		}
		return len(last) == n
	})
}

func TestFollower(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key, name = "r.example.com:7777", "r.example.com_7777"
	past := publish(t, b, key, false, repo("30617:a:x"), repo("30617:a:y"))
	publish(t, b, "other.example.com", false, repo("30617:a:other"))
	now := publish(t, b, key, false, repo("30617:a:z"))
	f := targets.NewFollower(past, nil)
	while(t, func(ctx context.Context) error { return f.Run(ctx, b.JS, name, nil, quiet) })
	select {
	case <-f.Read():
	case <-time.After(patience):
		t.Fatal("not read in time")
	}
	if got, revision := f.Current(); len(got.Repos) != 3 || revision != now {
		t.Fatalf("at %d: %v", revision, got)
	}
	if got := f.TakePast(); len(got.Repos) != 2 {
		t.Fatalf("in the past %v", got)
	}
	if got := f.TakePast(); got.Exists() {
		t.Fatalf("the past was kept: %v", got)
	}
	<-f.Changed
	if err := b.Conn.Publish("grasp.target."+name, []byte("{")); err != nil { // passed over
		t.Fatal(err)
	}
	now = publish(t, b, key, false, proto.TargetChange{Gone: true})
	<-f.Changed
	if got, revision := f.Current(); got.Exists() || revision != now {
		t.Fatalf("withdrawn at %d: %v", revision, got)
	}
	if err := targets.NewFollower(0, nil).Run(t.Context(), b.JS, "no name", nil, quiet); err == nil {
		t.Fatal("a name that is none is followed")
	}
}

// TestSnapshotIsSeenWhole: a large target that discovery writes anew in parts is never seen as a
// part of itself, for that would have everything in the other parts asked for again.
func TestSnapshotIsSeenWhole(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key = "r.example.com"
	whole := target.Target{URL: "wss://r.example.com", Repos: map[string]target.Repo{}}
	for i := range 1200 {
		whole.Repos[fmt.Sprintf("30617:%s:%d", strings.Repeat("a", 64), i)] = target.Repo{Level: proto.LevelFull}
	}
	parts := target.Snapshot(whole, 64<<10)
	if len(parts) < 3 {
		t.Fatalf("%d parts: the test needs more", len(parts))
	}
	publish(t, b, key, true, parts...)
	f := targets.NewFollower(0, nil)
	while(t, func(ctx context.Context) error { return f.Run(ctx, b.JS, key, nil, quiet) })
	<-f.Read()
	<-f.Changed
	publish(t, b, key, true, parts[:2]...)
	publish(t, b, key+".after", false, repo("30617:a:x"))
	select {
	case <-f.Changed:
		got, _ := f.Current()
		t.Fatalf("a part is seen: %d repositories", len(got.Repos))
	case <-time.After(200 * time.Millisecond):
	}
	if got, _ := f.Current(); len(got.Repos) != len(whole.Repos) {
		t.Fatalf("%d repositories while it is written anew", len(got.Repos))
	}
	end := publish(t, b, key, false, parts[2:]...)
	<-f.Changed
	if got, revision := f.Current(); len(got.Repos) != len(whole.Repos) || revision != end {
		t.Fatalf("%d repositories at %d", len(got.Repos), revision)
	}
}

// TestPastBeforeASnapshot: a snapshot that replaced what was said at the revision asked for says
// which repositories were as they are already then, in whatever part of it they are.
func TestPastBeforeASnapshot(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key = "r.example.com"
	publish(t, b, key, false, repo("30617:a:old"))
	past := publish(t, b, key, false, repo("30617:a:last"))
	later := publish(t, b, key, false, repo("30617:a:later"))
	snapshot := proto.TargetChange{URL: "wss://r.example.com", Snapshot: true, More: true, Repos: []proto.RepoChange{
		{Ref: "30617:a:old", Level: proto.LevelFull, Since: past - 1, Roots: []string{strings.Repeat("ab", 32)}},
		{Ref: "30617:a:now", Level: proto.LevelFull},
	}}
	rest := proto.TargetChange{URL: "wss://r.example.com", Repos: []proto.RepoChange{
		{Ref: "30617:a:later", Level: proto.LevelFull, Since: later}, {Ref: "30617:a:last", Level: proto.LevelFull, Since: past},
	}}
	publish(t, b, key, true, snapshot, rest)
	publish(t, b, key, false, repo("30617:a:after"))
	f := targets.NewFollower(past, nil)
	while(t, func(ctx context.Context) error { return f.Run(ctx, b.JS, key, nil, quiet) })
	<-f.Read()
	got := f.TakePast()
	if len(got.Repos) != 2 || len(got.Repos["30617:a:old"].Roots) != 1 || got.Repos["30617:a:last"].Level != proto.LevelFull {
		t.Errorf("the past is %+v", got)
	}
	if now, _ := f.Current(); len(now.Repos) != 5 {
		t.Errorf("now %+v", now)
	}
}

// TestForgottenPast: after a snapshot the stream does not know what was before.
func TestForgottenPast(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const key = "r.example.com"
	past := publish(t, b, key, false, repo("30617:a:x"))
	snapshot := repo("30617:a:y")
	snapshot.Snapshot = true
	publish(t, b, key, true, snapshot)
	f := targets.NewFollower(past, nil)
	while(t, func(ctx context.Context) error { return f.Run(ctx, b.JS, key, nil, quiet) })
	<-f.Read()
	if got := f.TakePast(); got.Exists() {
		t.Fatalf("the past is %v", got)
	}
	if got, _ := f.Current(); len(got.Repos) != 1 {
		t.Fatalf("now %v", got)
	}
}
