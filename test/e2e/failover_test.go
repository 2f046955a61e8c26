package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

const (
	failoverEvery = 20 * time.Second // between two kills in the long form
	failoverHead  = 15 * time.Second // in which every follower reaches the head after the last kill
)

// TestFollowersReachTheHeadAfterFailovers: nodes of a NATS cluster are killed one after the other,
// while messages are stored. Followers of a stream, an index of the log, and one that waits for
// each of its own messages have everything that was acknowledged within 15 s after the last kill,
// in order and once. Two replicas of discovery have published a target for every announcement by
// then.
func TestFollowersReachTheHeadAfterFailovers(t *testing.T) {
	t.Parallel()
	rounds, pause := 2, 4*time.Second
	if long := chaosTime(t); long > failoverEvery {
		rounds, pause = int(long/failoverEvery), failoverEvery
	}
	nodes := world.StartCluster(t, 3)
	sizing := proto.DefaultSizing()
	sizing.Replicas = 3
	b := clusterBus(t, nodes, sizing, true)

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var followers []*tracked
	for range 4 {
		followers = append(followers, track(ctx, &running, t, clusterBus(t, nodes, sizing, false)))
	}
	db, err := eventdb.Open("", eventdb.Options{})
	must(t, err)
	defer db.Close()
	indexed := clusterBus(t, nodes, sizing, false)
	following, endFollowing := context.WithCancel(context.Background())
	followed := make(chan error, 1)
	go func() { followed <- eventdb.Follow(following, indexed.JS, db, slog.New(slog.DiscardHandler)) }()
	defer func() {
		endFollowing()
		if err := <-followed; err != nil {
			t.Error(err)
		}
	}()

	for range 2 {
		world.StartReplica(t, "discovery", clusterURL(nodes), t.TempDir(), map[string]string{"NGIT_NATS_REPLICAS": "3", "NGIT_SYNC_BATCH_WINDOW_MS": "100"})
	}

	var rejected, log atomic.Uint64 // last acknowledged sequences
	sending, endSending := context.WithCancel(ctx)
	var senders sync.WaitGroup
	owner := fixture.NewPerson()
	senders.Go(func() { send(sending, b, &rejected, nil, rejectedMessage) })
	senders.Go(func() {
		send(sending, b, &log, nil, func(n int) *nats.Msg {
			if n%announceEvery > 0 {
				return eventMessage(n)
			}
			name := fmt.Sprintf("p%d", n)
			return logMessage(owner.Announce(name, "wss://"+name+".example"))
		})
	})
	own := clusterBus(t, nodes, sizing, false)
	waiter := track(ctx, &running, t, own)
	followers = append(followers, waiter)
	senders.Go(func() { send(sending, own, &rejected, waiter.follower, rejectedMessage) })

	for round := range rounds {
		time.Sleep(pause)
		node := nodes[round%len(nodes)]
		node.End(syscall.SIGKILL)
		time.Sleep(min(pause/2, 5*time.Second))
		if round < rounds-1 {
			node.Start()
		}
	}
	last := time.Now()
	nodes[(rounds-1)%len(nodes)].Start()
	time.Sleep(time.Second) // some more are stored behind the last kill
	endSending()
	senders.Wait()
	within, cancel := context.WithDeadline(t.Context(), last.Add(failoverHead))
	defer cancel()
	for i, f := range followers {
		if err := f.follower.Wait(within, rejected.Load()); err != nil {
			t.Errorf("follower %d: %v", i, err)
		}
		if n := f.wrong.Load(); n != 0 {
			t.Errorf("follower %d has got %d messages twice or out of order", i, n)
		}
	}
	if err := db.WaitFor(within, log.Load()); err != nil {
		t.Errorf("the index: %v", err)
	}
	took := time.Since(last)
	published := awaitTargets(within, t, b)
	stored := uint64(0)
	await(t, "the cluster says how much it has", func() bool {
		stream, err := b.JS.Stream(t.Context(), proto.StreamRejected)
		if err == nil {
			stored = stream.CachedInfo().State.Msgs
		}
		return err == nil
	})
	for i, f := range followers {
		if err := f.follower.CatchUp(t.Context()); err != nil {
			t.Errorf("follower %d: %v", i, err)
		} else if n := f.count.Load(); n != stored {
			t.Errorf("follower %d has read %d of %d messages", i, n, stored)
		}
	}
	t.Logf("%d kills, %d rejections, log at %d, %d targets; all at the head %s after the last kill", rounds, stored, log.Load(), published, took.Round(time.Millisecond))
}

// announceEvery says how many events of the log there are for one announcement.
const announceEvery = 20

// awaitTargets waits until there is a target for each announcement of the log, and returns how many
// there are.
func awaitTargets(ctx context.Context, t *testing.T, b *bus.Bus) int {
	t.Helper()
	wanted := map[string]bool{}
	err := bus.Read(ctx, b.JS, bus.Reading{Stream: proto.StreamEvents, Filter: proto.AnyEventOf(nostr.KindAnnouncement)}, func(m bus.Message) {
		var ev nostr.Event
		if err := ev.UnmarshalJSON(m.Data); err != nil {
			t.Error(err)
		}
		wanted[ev.Tags.GetD()+".example"] = true
	})
	if err != nil || len(wanted) == 0 {
		t.Fatalf("%d announcements are in the log: %v", len(wanted), err)
	}
	for missing := len(wanted); missing > 0; time.Sleep(100 * time.Millisecond) {
		have := map[string]bool{}
		err := bus.Read(ctx, b.JS, bus.Reading{Stream: proto.StreamTargets, Filter: proto.AnyTarget}, func(m bus.Message) {
			if key, err := proto.ParseTargetSubject(m.Subject); err == nil && len(m.Data) > 0 && wanted[key] {
				have[key] = true
			}
		})
		if missing = len(wanted) - len(have); err != nil {
			t.Fatalf("discovery has not published %d of %d targets: %v", missing, len(wanted), err)
		}
	}
	return len(wanted)
}

// clusterURL names all nodes.
func clusterURL(nodes []*world.NATS) string {
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.URL)
	}
	return strings.Join(urls, ",")
}

// clusterBus opens a bus on the nodes.
func clusterBus(t *testing.T, nodes []*world.NATS, sizing proto.Sizing, provisions bool) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Options{
		URL: clusterURL(nodes), Sizing: sizing, Provisions: provisions, Waiting: func(string) {},
		Needs: []string{proto.StreamRejected, proto.StreamTargets, proto.StreamEvents},
	})
	must(t, err)
	t.Cleanup(b.Close)
	return b
}

// tracked is a follower of the rejections, and how many messages it got.
type tracked struct {
	follower     *bus.Follower
	count, wrong atomic.Uint64
}

func track(ctx context.Context, running *sync.WaitGroup, t *testing.T, b *bus.Bus) *tracked {
	tr := &tracked{}
	seq := uint64(0)
	tr.follower = bus.NewFollower(b.JS, bus.Reading{Stream: proto.StreamRejected}, slog.New(slog.DiscardHandler), func(messages []bus.Message) error {
		for _, m := range messages {
			if m.Seq <= seq {
				tr.wrong.Add(1)
			}
			seq = m.Seq
			tr.count.Add(1)
		}
		return nil
	})
	running.Go(func() {
		if err := tr.follower.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// send stores messages until ctx ends, and waits until own has read each if it is not nil.
func send(ctx context.Context, b *bus.Bus, acked *atomic.Uint64, own *bus.Follower, message func(n int) *nats.Msg) {
	for n := 0; ctx.Err() == nil; n++ {
		brief, cancel := context.WithTimeout(ctx, 5*time.Second)
		seq, err := b.PublishBatch(brief, []*nats.Msg{message(n)}, nil)
		if err == nil {
			for had := acked.Load(); had < seq && !acked.CompareAndSwap(had, seq); had = acked.Load() {
			}
			if own != nil {
				err = own.Wait(brief, seq)
			}
		}
		cancel()
		if err != nil {
			time.Sleep(100 * time.Millisecond)
		} else {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func rejectedMessage(int) *nats.Msg {
	id := make([]byte, proto.ShortIDLength/2)
	rand.Read(id)
	return &nats.Msg{Subject: proto.RejectedSubject{Kind: 1, ShortID: hex.EncodeToString(id)}.String(), Data: []byte(`{}`)}
}

func eventMessage(n int) *nats.Msg {
	ev := &nostr.Event{PubKey: strings.Repeat("ab", 32), Kind: 1, CreatedAt: nostr.Timestamp(1000 + n), Content: "note", Sig: strings.Repeat("00", 64)}
	ev.ID = ev.GetID()
	return logMessage(ev)
}

func logMessage(ev *nostr.Event) *nats.Msg {
	raw, err := ev.MarshalJSON()
	if err != nil {
		panic(fmt.Sprint("an event cannot be written: ", err))
	}
	return &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: raw}
}
