package bus_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
)

// threeServers starts a cluster of NATS servers with a stream S of three replicas, and connects to
// one of them.
func threeServers(t *testing.T) *bus.Bus {
	t.Helper()
	var first *server.Server
	// The first has no server to connect to, but a server without a route makes no cluster of
	// JetStream.
	routes := []*url.URL{{Scheme: "nats-route", Host: "127.0.0.1:1"}}
	for i := range 3 {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
			JetStream: true, StoreDir: t.TempDir(), Routes: routes,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT},
		})
		must(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(time.Minute) {
			t.Fatal("a NATS server does not start")
		}
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: s.ClusterAddr().String()})
		if i == 0 {
			first = s
		}
	}
	b, err := bus.Look(bus.Options{URL: first.ClientURL()}, time.Minute)
	must(t, err)
	t.Cleanup(b.Close)
	untilDone(t, func() error {
		_, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, Replicas: 3, AllowAtomicPublish: true})
		return err
	})
	return b
}

// untilDone tries again until the cluster has found together and do succeeds. The test's own
// deadline ends it.
func untilDone(t *testing.T, do func() error) {
	t.Helper()
	for err := do(); err != nil; err = do() {
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// race lets several write at once. Who loses must be told of a conflict, as lost says; unheard are
// those who got no answer: the stream had no leader, or has another one now.
func race(t *testing.T, writers int, lost func(error) bool, write func(n int) error) (won, unheard int) {
	t.Helper()
	results := make(chan error, writers)
	var writing sync.WaitGroup
	for n := range writers {
		writing.Go(func() { results <- write(n) })
	}
	writing.Wait()
	close(results)
	for err := range results {
		switch {
		case err == nil:
			won++
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, context.DeadlineExceeded):
			unheard++
		case !lost(err):
			t.Fatalf("who lost was told %v", err)
		}
	}
	if won > 1 {
		t.Fatalf("%d of %d won", won, writers)
	}
	return won, unheard
}

// TestConflictsInACluster: where a stream has replicas, of several who write one subject at once
// one wins and all others find a conflict, also those that the server refuses because another write
// is on its way.
func TestConflictsInACluster(t *testing.T) {
	t.Parallel()
	b := threeServers(t)
	for subject, decided := 0, 0; decided < 50; subject++ {
		won, unheard := race(t, 8, bus.IsConflict, func(int) error {
			_, err := b.JS.Publish(t.Context(), fmt.Sprintf("s.%d", subject), nil, jetstream.WithExpectLastSequencePerSubject(0))
			return err
		})
		if decided += won; won+unheard == 0 {
			t.Fatalf("round %d: no writer won", subject)
		}
	}
}

// TestOneWriterWinsInACluster: of several who append to one head at once, alone or in a batch, one
// wins, and all others are told that the head has moved.
func TestOneWriterWinsInACluster(t *testing.T) {
	t.Parallel()
	b := threeServers(t)
	headOf := func() (head uint64) {
		untilDone(t, func() (err error) {
			head, err = bus.LastSeq(t.Context(), b.JS, "S")
			return err
		})
		return head
	}
	for round, decided := 0, 0; decided < 30; round++ {
		head := headOf()
		won, unheard := race(t, 6, func(err error) bool { return bus.IsConflict(err) }, func(n int) error {
			msgs := []*nats.Msg{{Subject: fmt.Sprintf("s.%d.%d", round, n)}}
			if n%3 == 2 {
				msgs = append(msgs, &nats.Msg{Subject: fmt.Sprintf("s.%d.%d.more", round, n)})
			}
			_, err := b.PublishBatch(t.Context(), msgs, &head)
			return err
		})
		// The head moves without a winner only if one without an answer has won, now or before.
		if decided += won; won+unheard == 0 && headOf() == head {
			t.Fatalf("round %d: no writer won", round)
		}
	}
}
