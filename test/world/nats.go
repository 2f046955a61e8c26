package world

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tendril.dev/lib/child"
	"tendril.dev/test/fixture/nettest"
)

// NATS is a NATS server in a process of its own. Clients reach it through a [nettest.Front], so
// that it comes back at the same address.
type NATS struct {
	URL     string
	dir     string
	t       testing.TB
	cluster string // its part of the configuration; empty: a single server

	mu      sync.Mutex
	address string // of the process; empty: it is away
	route   string // where it listens for the others of its cluster
	cmd     *exec.Cmd
}

// StartNATS starts a server that ends with the test.
func StartNATS(t testing.TB) *NATS {
	t.Helper()
	return StartCluster(t, 1)[0]
}

// StartCluster starts servers that form a cluster and end with the test.
func StartCluster(t testing.TB, size int) (all []*NATS) {
	t.Helper()
	var routes []string
	for range size {
		n := &NATS{dir: Folder(t), t: t}
		n.URL = "nats://" + n.front(&n.address)
		routes = append(routes, strconv.Quote("nats-route://"+n.front(&n.route)))
		t.Cleanup(func() { n.End(syscall.SIGKILL) })
		all = append(all, n)
	}
	for i, n := range all {
		if size > 1 {
			n.cluster = fmt.Sprintf("server_name: n%d\ncluster { name: test, listen: \"127.0.0.1:-1\", no_advertise: true, pool_size: -1, routes: [%s] }\n",
				i, strings.Join(slices.Delete(slices.Clone(routes), i, i+1), ", "))
		}
		n.Start()
	}
	return all
}

// front is an address at which the process can be reached while it listens at another.
func (n *NATS) front(at *string) string {
	return nettest.Front(n.t, func() (net.Conn, error) {
		n.mu.Lock()
		address := *at
		n.mu.Unlock()
		return net.Dial("tcp", address) // fails if there is none
	})
}

// PID is the id of the process; the server must not have ended.
func (n *NATS) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cmd.Process.Pid
}

// Direct is the URL of the process itself, for measurements: what goes by URL passes through the
// test, which takes processors from those who are measured. It is another after each start.
func (n *NATS) Direct() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return "nats://" + n.address
}

// Start starts the server, with what it has on disk.
func (n *NATS) Start() {
	n.t.Helper()
	ports, config := filepath.Join(n.dir, "ports"), filepath.Join(n.dir, "nats.conf")
	must(n.t, os.RemoveAll(ports))
	must(n.t, os.Mkdir(ports, 0o700))
	text := "listen: 127.0.0.1:-1\nports_file_dir: " + strconv.Quote(ports) +
		"\njetstream { store_dir: " + strconv.Quote(filepath.Join(n.dir, "store")) + ", sync_interval: always }\n" + n.cluster
	must(n.t, os.WriteFile(config, []byte(text), 0o600))
	cmd := exec.Command(natsServer(n.t), "-c", config)
	must(n.t, child.Start(cmd))
	address, route := "", ""
	await(n.t, "NATS says where it listens", func() bool {
		files, err := filepath.Glob(filepath.Join(ports, "*.ports"))
		if err != nil || len(files) == 0 {
			return false
		}
		data, err := os.ReadFile(files[0])
		var said struct{ NATS, Cluster []string }
		if err != nil || json.Unmarshal(data, &said) != nil || len(said.NATS) == 0 {
			return false
		}
		address = strings.TrimPrefix(said.NATS[0], "nats://")
		if len(said.Cluster) > 0 {
			route = strings.TrimPrefix(said.Cluster[0], "nats://")
		}
		return true
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cmd, n.address, n.route = cmd, address, route
}

// LoseDisk takes away what the server has on disk. It must have ended.
func (n *NATS) LoseDisk() {
	n.t.Helper()
	must(n.t, os.RemoveAll(filepath.Join(n.dir, "store")))
}

// End ends the server by a signal; what it had in memory is gone.
func (n *NATS) End(by syscall.Signal) {
	n.mu.Lock()
	cmd := n.cmd
	n.cmd, n.address, n.route = nil, "", ""
	n.mu.Unlock()
	if cmd == nil {
		return
	}
	if err := cmd.Process.Signal(by); err != nil {
		n.t.Error(err)
	}
	_ = cmd.Wait() // by a signal
}
