package bus

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
)

// threeServers starts a cluster of NATS servers and returns a connection to one of them.
func threeServers(t *testing.T) *nats.Conn {
	t.Helper()
	var all []*server.Server
	// The first has no server to connect to, but a server without a route makes no cluster of
	// JetStream.
	routes := []*url.URL{{Scheme: "nats-route", Host: "127.0.0.1:1"}}
	for i := range 3 {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
			JetStream: true, StoreDir: t.TempDir(), Routes: routes,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(time.Minute) {
			t.Fatal("a NATS server does not start")
		}
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: s.ClusterAddr().String()})
		all = append(all, s)
	}
	conn, err := nats.Connect(all[0].ClientURL(), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// TestConflictsInACluster: where a stream has replicas, of several who write one subject at once
// one wins and all others find a conflict, also those that the server refuses because another write
// is on its way.
func TestConflictsInACluster(t *testing.T) {
	t.Parallel()
	js, err := jetstream.New(threeServers(t))
	if err != nil {
		t.Fatal(err)
	}
	makeStream(t, js)
	decided := 0
	for subject := 0; decided < 50; {
		results := make(chan error, 8)
		var writing sync.WaitGroup
		for range cap(results) {
			writing.Go(func() {
				_, err := js.Publish(t.Context(), fmt.Sprintf("s.%d", subject), nil, jetstream.WithExpectLastSequencePerSubject(0))
				results <- err
			})
		}
		writing.Wait()
		close(results)
		won, unheard, unanswered := 0, 0, 0
		for err := range results {
			switch {
			case err == nil:
				won++
			case errors.Is(err, jetstream.ErrNoStreamResponse):
				unheard++ // the stream had no leader: nothing was stored
			case errors.Is(err, context.DeadlineExceeded):
				unanswered++ // the leader has changed meanwhile: it may have been stored
			case !IsConflict(err):
				t.Fatalf("who lost was told %v", err)
			}
		}
		switch {
		case won > 1 || won+unheard+unanswered == 0:
			t.Fatalf("%d of 8 won", won)
		case won == 1:
			decided++
			subject++
		case unanswered > 0:
			subject++ // one of them may have won
		}
	}
}

// makeStream makes a stream with replicas as soon as the cluster has found together. The test's own
// deadline ends the wait.
func makeStream(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	for {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, Replicas: 3, AllowAtomicPublish: true})
		if err == nil {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestOneWriterWinsInACluster: of several who append to one head at once, alone or in a batch, one
// wins, and all others are told that the head has moved.
func TestOneWriterWinsInACluster(t *testing.T) {
	t.Parallel()
	conn := threeServers(t)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	makeStream(t, js)
	b := &Bus{Conn: conn, JS: js}
	head := uint64(0)
	for round, decided := 0, 0; decided < 30; round++ {
		type result struct {
			last uint64
			err  error
		}
		results := make(chan result, 6)
		var writing sync.WaitGroup
		for n := range cap(results) {
			writing.Go(func() {
				msgs := []*nats.Msg{{Subject: fmt.Sprintf("s.%d.%d", round, n)}}
				if n%3 == 2 {
					msgs = append(msgs, &nats.Msg{Subject: fmt.Sprintf("s.%d.%d.more", round, n)})
				}
				expect := head
				last, err := b.PublishBatch(t.Context(), msgs, &expect)
				results <- result{last, err}
			})
		}
		writing.Wait()
		close(results)
		won, unheard, before := 0, 0, head
		for r := range results {
			switch {
			case r.err == nil:
				won++
				head = r.last
			case errors.Is(r.err, nats.ErrNoResponders), errors.Is(r.err, jetstream.ErrNoStreamResponse), errors.Is(r.err, context.DeadlineExceeded):
				unheard++ // the stream had no leader, or has another one now
			case !errors.Is(r.err, ErrHeadMoved):
				t.Fatalf("who lost was told %v", r.err)
			}
		}
		switch {
		case won > 1:
			t.Fatalf("round %d: %d of 6 won", round, won)
		case won == 1:
			decided++
			continue
		}
		// The head has moved only if one of those without an answer has won, in this round or,
		// late, in one before.
		if head = headOf(t, b); head == before && unheard == 0 {
			t.Fatalf("round %d: no writer won", round)
		}
	}
}

// headOf is the last sequence of the stream, as soon as it has a leader who tells.
func headOf(t *testing.T, b *Bus) uint64 {
	t.Helper()
	for {
		seq, err := LastSeq(t.Context(), b.JS, "S")
		if err == nil {
			return seq
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
