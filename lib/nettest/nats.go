package nettest

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// patience is how long a server may take to be ready on a slow machine.
const patience = 3 * time.Minute

// NATS is a NATS server with JetStream that Tendril did not start: it may go away, and comes back
// at the same address. Clients reach it through a [Front].
type NATS struct {
	URL   string
	t     testing.TB
	dir   string
	users string // file of the configuration that has them; empty: everybody may do everything

	mu     sync.Mutex
	server *server.Server // nil: it is away
}

// NewNATS starts a server that ends with the test. If users is not empty, it is a file of the
// server's configuration, as lib/logins writes it: the server lets in only those whom it names, and
// holds them to what it allows.
func NewNATS(t testing.TB, users string) *NATS {
	t.Helper()
	n := &NATS{t: t, users: users, dir: t.TempDir()}
	n.URL = "nats://" + Front(t, n.dial)
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
	srv.ConfigureLogger()
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
	options.JetStream, options.StoreDir, options.SyncAlways, options.LogFile = true, n.dir, true, n.logFile()
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
func (n *NATS) Unknown() int { return len(n.logged("authentication error")) }

// Refused returns what the server has refused to users who wanted more than they may, as it has
// logged it.
func (n *NATS) Refused() []string { return n.logged("Violation") }

func (n *NATS) logFile() string { return filepath.Join(n.dir, "log") }

func (n *NATS) logged(part string) (found []string) {
	text, err := os.ReadFile(n.logFile())
	if err != nil {
		n.t.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "[ERR]") && strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return found
}
