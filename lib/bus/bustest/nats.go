// Package bustest is a NATS server for tests that Tendril did not start: it may go away, and comes back at the same address.
package bustest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// patience is how long a server may take to be ready on a slow machine.
const patience = 3 * time.Minute

// NATS is a single server with JetStream. Clients reach it through a listener that stays while the server is away: a port that was let go could be
// anybody's by the time the server comes back, on a machine where other tests open and close hundreds.
type NATS struct {
	URL     string
	t       testing.TB
	options server.Options

	mu     sync.Mutex
	server *server.Server // nil: it is away
}

// New starts a server that ends with the test.
func New(t testing.TB) *NATS {
	t.Helper()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &NATS{
		URL: "nats://" + front.Addr().String(), t: t,
		options: server.Options{JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, DontListen: true, NoSigs: true, NoLog: true},
	}
	n.Start()
	var open sync.WaitGroup
	open.Go(func() {
		for {
			client, err := front.Accept()
			if err != nil {
				return
			}
			open.Go(func() { n.connect(client) })
		}
	})
	t.Cleanup(func() {
		front.Close()
		n.Stop() // ends what is still connected
		open.Wait()
	})
	return n
}

// connect passes on what a client and the server say, until one of them ends.
func (n *NATS) connect(client net.Conn) {
	defer client.Close()
	n.mu.Lock()
	srv := n.server
	n.mu.Unlock()
	if srv == nil {
		return
	}
	conn, err := srv.InProcessConn()
	if err != nil {
		return
	}
	defer conn.Close()
	ended := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from) // however it ends, the other side is told by the end of its connection
		ended <- struct{}{}
	}
	go pass(conn, client)
	go pass(client, conn)
	<-ended
}

// Start starts the server, with what it has on disk.
func (n *NATS) Start() {
	n.t.Helper()
	options := n.options
	srv, err := server.NewServer(&options)
	if err != nil {
		n.t.Fatal(err)
	}
	go srv.Start()
	if !srv.ReadyForConnections(patience) {
		n.t.Fatal("NATS is not ready")
	}
	n.mu.Lock()
	n.server = srv
	n.mu.Unlock()
}

// Stop stops the server; what it had in memory is gone.
func (n *NATS) Stop() {
	n.mu.Lock()
	srv := n.server
	n.server = nil
	n.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}
