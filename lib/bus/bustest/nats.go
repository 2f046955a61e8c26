// Package bustest is a NATS server for tests that Tendril did not start: it may go away, and comes
// back at the same address.
package bustest

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"tendril.dev/lib/nettest"
)

// patience is how long a server may take to be ready on a slow machine.
const patience = 3 * time.Minute

// NATS is a single server with JetStream. Clients reach it through a [nettest.Front].
type NATS struct {
	URL     string
	t       testing.TB
	dir     string
	users   string // file of the configuration that has them; empty: everybody may do everything
	refused refusals

	mu     sync.Mutex
	server *server.Server // nil: it is away
}

// New starts a server that ends with the test. Everybody may do everything there.
func New(t testing.TB) *NATS {
	t.Helper()
	return WithUsers(t, "")
}

// WithUsers starts a server that lets in only those whom a file of its configuration names, like
// that of lib/logins, and holds them and their accounts to what it allows. It ends with the test.
func WithUsers(t testing.TB, file string) *NATS {
	t.Helper()
	n := &NATS{t: t, users: file, dir: t.TempDir()}
	n.URL = "nats://" + nettest.Front(t, n.dial)
	t.Cleanup(n.Stop)
	n.Start()
	return n
}

// dial connects to the server.
func (n *NATS) dial() (net.Conn, error) {
	n.mu.Lock()
	srv := n.server
	n.mu.Unlock()
	if srv == nil {
		return nil, net.ErrClosed
	}
	return srv.InProcessConn()
}

// Start starts the server, with what it has on disk.
func (n *NATS) Start() {
	n.t.Helper()
	srv, err := server.NewServer(n.configuration())
	if err != nil {
		n.t.Fatal(err)
	}
	srv.SetLoggerV2(&n.refused, false, false, false)
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

// configuration is what the server is started with.
func (n *NATS) configuration() *server.Options {
	n.t.Helper()
	options := &server.Options{}
	if n.users != "" {
		if err := options.ProcessConfigFile(n.users); err != nil {
			n.t.Fatal(err)
		}
	}
	options.JetStream, options.StoreDir, options.SyncAlways = true, n.dir, true
	options.DontListen, options.NoSigs, options.AuthTimeout = true, true, patience.Seconds()
	return options
}

// Reload lets the server read its users again, as SIGHUP does.
func (n *NATS) Reload() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.server.ReloadOptions(n.configuration()); err != nil {
		n.t.Fatal(err)
	}
}

// Connections is how many connections the server has now that a user has opened.
func (n *NATS) Connections(user string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := n.server.Connz(&server.ConnzOptions{Username: true, User: user})
	if err != nil {
		n.t.Error(err)
		return 0
	}
	return all.NumConns
}

// Unknown is how many logins the server has not let in.
func (n *NATS) Unknown() int { return len(n.refused.with("authentication error")) }

// Refused returns what the server has refused to users who wanted more than they may, as it has
// logged it.
func (n *NATS) Refused() []string { return n.refused.with("Violation") }

// refusals is a log of the server that keeps only errors.
type refusals struct {
	mu    sync.Mutex
	lines []string
}

func (r *refusals) with(part string) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return found
}

func (r *refusals) Errorf(format string, v ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, v...))
}

func (*refusals) Noticef(string, ...any) {}
func (*refusals) Warnf(string, ...any)   {}
func (*refusals) Fatalf(string, ...any)  {}
func (*refusals) Debugf(string, ...any)  {}
func (*refusals) Tracef(string, ...any)  {}
