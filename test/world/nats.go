package world

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// NATS is a NATS server in a process of its own. Clients reach it through a listener of the test,
// which stays while the server is away, so that it comes back at the same address.
type NATS struct {
	URL   string
	dir   string
	front net.Listener
	t     testing.TB

	mu      sync.Mutex
	address string // of the process; empty: it is away
	cmd     *exec.Cmd
}

// StartNATS starts a server that ends with the test.
func StartNATS(t testing.TB) *NATS {
	t.Helper()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &NATS{URL: "nats://" + front.Addr().String(), dir: Folder(t), front: front, t: t}
	n.Start()
	var open sync.WaitGroup
	open.Go(func() {
		for {
			client, err := front.Accept()
			if err != nil {
				return
			}
			open.Go(func() { n.pass(client) })
		}
	})
	t.Cleanup(func() {
		front.Close()
		n.End(syscall.SIGKILL)
		open.Wait()
	})
	return n
}

// pass passes on what a client and the server say, until one of them ends.
func (n *NATS) pass(client net.Conn) {
	defer client.Close()
	n.mu.Lock()
	address := n.address
	n.mu.Unlock()
	if address == "" {
		return
	}
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	one := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from) // however it ends, the other side is told by the end of its connection
		ended <- struct{}{}
	}
	go one(server, client)
	go one(client, server)
	<-ended
}

// Start starts the server, with what it has on disk.
func (n *NATS) Start() {
	n.t.Helper()
	ports, config := filepath.Join(n.dir, "ports"), filepath.Join(n.dir, "nats.conf")
	if err := os.RemoveAll(ports); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Mkdir(ports, 0o700); err != nil {
		n.t.Fatal(err)
	}
	text := "listen: 127.0.0.1:-1\nports_file_dir: " + strconv.Quote(ports) +
		"\njetstream { store_dir: " + strconv.Quote(filepath.Join(n.dir, "store")) + ", sync_interval: always }\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(natsServer(n.t), "-c", config)
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	address := ""
	Await(n.t, "NATS says where it listens", func() bool {
		files, err := filepath.Glob(filepath.Join(ports, "*.ports"))
		if err != nil || len(files) == 0 {
			return false
		}
		data, err := os.ReadFile(files[0])
		var said struct{ NATS []string }
		if err != nil || json.Unmarshal(data, &said) != nil || len(said.NATS) == 0 {
			return false
		}
		address = strings.TrimPrefix(said.NATS[0], "nats://")
		return true
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cmd, n.address = cmd, address
}

// LoseDisk takes away what the server has on disk. It must have ended.
func (n *NATS) LoseDisk() {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.dir, "store")); err != nil {
		n.t.Fatal(err)
	}
}

// End ends the server by a signal; what it had in memory is gone.
func (n *NATS) End(by syscall.Signal) {
	n.mu.Lock()
	cmd := n.cmd
	n.cmd, n.address = nil, ""
	n.mu.Unlock()
	if cmd == nil {
		return
	}
	if err := cmd.Process.Signal(by); err != nil {
		n.t.Error(err)
	}
	_ = cmd.Wait() // by a signal
}
