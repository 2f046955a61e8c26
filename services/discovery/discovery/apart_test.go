package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/node"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/discovery"
)

// start runs a service in a process of its own; url is the NATS server of another, or empty.
func start(t testing.TB, dir, url string, service node.Service) replica {
	t.Helper()
	flags := []string{"--domain=" + domain, "--relay-data-path=" + dir, "--sync-batch-window-ms=1", "--shutdown-wait=10m", "--nats-url=" + url}
	if url == "" {
		flags = append(flags, "--nats-listen=127.0.0.1:0", "--database-backend=memory")
	}
	s, err := config.Parse(service.Name, flags)
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(t.Context(), service.Name, s, slog.New(slog.DiscardHandler), service)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, service) }()
	r := replica{Node: n, stop: sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, n.Close()); err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(r.stop)
	return r
}

// newServer is a process with the bus and an index, and nothing else.
func newServer(t testing.TB) replica {
	return start(t, t.TempDir(), "", node.Service{Name: "server", Run: func(ctx context.Context, _ *node.Node) error {
		<-ctx.Done()
		return nil
	}})
}

// apart starts a replica that has no index and asks a server.
func apart(t testing.TB, dir string, server replica) replica {
	t.Helper()
	r := start(t, dir, server.Bus.ClientURL(), node.Service{Name: "discovery", Run: discovery.Run, Asks: true})
	eventually(t, "it is ready", func() bool { return len(r.Ready.Failing()) == 0 })
	if r.Index != nil {
		t.Error("it has an index")
	}
	return r
}

// story is a random log: announcements, root events that name several repositories, and deletions
// of both by their authors and by others.
type story struct {
	rnd    *rand.Rand
	n      int
	events []*nostr.Event
}

func (s *story) next(count int) (more []*nostr.Event) {
	d := func() string { return fmt.Sprint("p", s.rnd.IntN(12)) }
	author := func() string { return []string{alice, bob}[s.rnd.IntN(2)] }
	for range count {
		s.n++
		ev := &nostr.Event{PubKey: author(), CreatedAt: nostr.Timestamp(s.n), Content: fmt.Sprint(s.n)}
		switch what := s.rnd.IntN(10); {
		case what < 2:
			ev = announce(author(), d(), nostr.Timestamp(s.n), fmt.Sprintf("wss://r%d.example", s.rnd.IntN(8)), fmt.Sprintf("wss://r%d.example", s.rnd.IntN(8)))
		case what < 7:
			ev.Kind = []int{nip34.KindPatch, nip34.KindPR, nip34.KindIssue, 1}[s.rnd.IntN(4)]
			for range 1 + s.rnd.IntN(3) {
				ev.Tags = append(ev.Tags, nostr.Tag{"a", "30617:" + author() + ":" + d()})
			}
		case what < 9 && len(s.events) > 0:
			ev.Kind = nip34.KindDeletion
			victim := s.events[s.rnd.IntN(len(s.events))]
			ev.PubKey, ev.Tags = victim.PubKey, nostr.Tags{{"e", victim.ID}}
			if s.rnd.IntN(4) == 0 {
				ev.PubKey = author()
			}
		default:
			ev.Kind = nip34.KindDeletion
			ev.Tags = nostr.Tags{{"a", "30617:" + author() + ":" + d()}}
		}
		more = append(more, finish(ev))
	}
	s.events = append(s.events, more...)
	return more
}

// TestWithoutAnIndex: over random logs, before its start and after, a replica that only asks
// publishes what one with an index publishes. Another one that begins when all is there finds
// nothing to change. It writes nothing to disk, and removes the index that an earlier version kept.
func TestWithoutAnIndex(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "index-discovery", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := &story{rnd: rand.New(rand.NewPCG(seed, 7))}
	whole, server := run(t, t.TempDir(), "", "--database-backend=memory"), newServer(t)
	same := func() {
		t.Helper()
		var want, got []string
		for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			want, _ = published(t, whole.Bus)
			if got, _ = published(t, server.Bus); len(want) > 0 && slices.Equal(got, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("published is\n\t%q\nand with an index\n\t%q", got, want)
			}
		}
	}
	tell := func(count int) {
		events := s.next(count)
		accept(t, whole.Bus, events...)
		accept(t, server.Bus, events...)
		// What comes last shows that all before it has been heard.
		last := announce(alice, fmt.Sprint("last", s.n), nostr.Timestamp(s.n), fmt.Sprintf("wss://last%d.example", s.n))
		accept(t, whole.Bus, last)
		accept(t, server.Bus, last)
		for _, b := range []replica{whole, server} {
			eventually(t, "the last is published", func() bool {
				lines, _ := published(t, b.Bus)
				return slices.Contains(lines, fmt.Sprintf("wss://last%d.example last%d/full", s.n, s.n))
			})
		}
		same()
	}
	events := s.next(300)
	accept(t, whole.Bus, events...)
	accept(t, server.Bus, events...)
	apart(t, dir, server)
	same()
	for range 5 {
		tell(60)
	}
	_, before := published(t, server.Bus)
	apart(t, t.TempDir(), server)
	if _, after := published(t, server.Bus); after != before {
		t.Errorf("%d changes by one that has just begun", after-before)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("its folder has %v, %v", files, err)
	}
}

// TestAReleaseLeavesNoGapWithoutAnIndex is TestAReleaseLeavesNoGap for a replica that reads of the
// log only what it needs, while it goes on by events of other kinds.
func TestAReleaseLeavesNoGapWithoutAnIndex(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	r := apart(t, t.TempDir(), server)
	told, err := r.Bus.Conn.SubscribeSync("grasp.target.>")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for n := range 50 {
		ev := announce(alice, fmt.Sprintf("p%02d", n), nostr.Timestamp(n+1), fmt.Sprintf("wss://r%02d.example", n))
		release := hold(t, r.Bus, ev, proto.PhaseWaiting)
		accept(t, server.Bus, ev, finish(&nostr.Event{PubKey: bob, Kind: 1, CreatedAt: nostr.Timestamp(n)}))
		release()
		want = append(want, fmt.Sprintf("wss://r%02d.example p%02d/full", n, n))
	}
	becomes(t, r.Bus, want...)
	head, err := r.Bus.LastSeq(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	for range head {
		msg, err := told.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if msg.Header.Get(proto.HeaderGone) != "" {
			t.Errorf("withdrawn in between: %s", msg.Data)
		}
	}
}
