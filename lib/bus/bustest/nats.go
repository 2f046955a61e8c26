// Package bustest is a NATS server for tests that Tendril did not start: it may go away, and comes
// back at the same address.
package bustest

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"tendril.dev/lib/nettest"
)

// patience is how long a server may take to be ready on a slow machine.
const patience = 3 * time.Minute

// errAway: the server is not there.
var errAway = errors.New("the server is away")

// NATS is a single server with JetStream. Clients reach it through a [nettest.Front].
type NATS struct {
	URL     string
	t       testing.TB
	options server.Options
	users   string // file of the configuration that has them; empty: everybody may do everything
	refused refusals

	mu     sync.Mutex
	server *server.Server // nil: it is away
}

// New starts a server that ends with the test. Everybody may do everything there.
func New(t testing.TB) *NATS {
	t.Helper()
	return start(t, "")
}

// WithUsers starts a server that lets in only those whom a file of its configuration names, like
// that of lib/logins, and holds them and their accounts to what it allows. It ends with the test.
func WithUsers(t testing.TB, file string) *NATS {
	t.Helper()
	return start(t, file)
}

func start(t testing.TB, users string) *NATS {
	t.Helper()
	n := &NATS{
		t: t, users: users,
		options: server.Options{
			JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, DontListen: true, NoSigs: true, AuthTimeout: patience.Seconds(),
		},
	}
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
		return nil, errAway
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
	options := n.options
	if n.users != "" {
		file, err := server.ProcessConfigFile(n.users)
		if err != nil {
			n.t.Fatal(err)
		}
		options.Users, options.Accounts = file.Users, file.Accounts
	}
	return &options
}

// Reload lets the server read its users anew, as SIGHUP does.
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
func (n *NATS) Unknown() int {
	n.refused.mu.Lock()
	defer n.refused.mu.Unlock()
	return n.refused.logins
}

// Refused returns what the server has refused to users who wanted more than they may, as it has
// logged it.
func (n *NATS) Refused() []string { return n.refused.all() }

// refusals is a log of the server that keeps only those, and counts refused logins.
type refusals struct {
	mu     sync.Mutex
	lines  []string
	logins int
}

func (r *refusals) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

func (r *refusals) Errorf(format string, v ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch line := fmt.Sprintf(format, v...); {
	case strings.Contains(line, "authentication error"):
		r.logins++
	case strings.Contains(line, "Violation"):
		r.lines = append(r.lines, line)
	}
}

func (*refusals) Noticef(string, ...any) {}
func (*refusals) Warnf(string, ...any)   {}
func (*refusals) Fatalf(string, ...any)  {}
func (*refusals) Debugf(string, ...any)  {}
func (*refusals) Tracef(string, ...any)  {}
