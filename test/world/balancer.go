package world

import (
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Balancer stands before front doors as a Service of Kubernetes does: a new connection goes to the
// next of those that are in it, one that is open stays where it is.
type Balancer struct {
	URL string // http://127.0.0.1:port

	listener net.Listener
	open     sync.WaitGroup

	mu    sync.Mutex
	doors []string // host:port
	next  int
	conns map[net.Conn]bool
}

// NewBalancer makes one without front doors. It ends with the test.
func NewBalancer(t testing.TB) *Balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &Balancer{URL: "http://" + listener.Addr().String(), listener: listener, conns: map[net.Conn]bool{}}
	b.open.Go(b.accept)
	t.Cleanup(func() {
		listener.Close()
		b.mu.Lock()
		for c := range b.conns {
			c.Close()
		}
		b.mu.Unlock()
		b.open.Wait()
	})
	return b
}

// Add puts a front door into it.
func (b *Balancer) Add(url string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.doors = append(b.doors, strings.TrimPrefix(url, "http://"))
}

// Remove takes a front door out of it: no new connection goes there from now on.
func (b *Balancer) Remove(url string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.doors = slices.DeleteFunc(b.doors, func(door string) bool { return door == strings.TrimPrefix(url, "http://") })
}

func (b *Balancer) accept() {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		var door net.Conn
		if len(b.doors) > 0 {
			b.next++
			// Under the lock, so that none is on its way to a front door that Remove takes out.
			door, err = net.Dial("tcp", b.doors[b.next%len(b.doors)])
		}
		if door == nil || err != nil {
			b.mu.Unlock()
			client.Close()
			continue
		}
		b.conns[client], b.conns[door] = true, true
		b.mu.Unlock()
		b.open.Go(func() { b.pass(client, door) })
	}
}

// pass passes on what both say, each end by itself.
func (b *Balancer) pass(client, door net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { oneWay(client, door) })
	both.Go(func() { oneWay(door, client) })
	both.Wait()
	b.mu.Lock()
	delete(b.conns, client)
	delete(b.conns, door)
	b.mu.Unlock()
	client.Close()
	door.Close()
}

func oneWay(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		// A connection that broke breaks on the other side too.
		to.Close()
		from.Close()
		return
	}
	to.(*net.TCPConn).CloseWrite()
}

// Slow listens for connections that pass on what clients send, and what they take, in pieces: chunk
// bytes, and then a pause. moved is how many bytes have been passed on. It ends with the test.
func (b *Balancer) Slow(t testing.TB, chunk int, pause time.Duration) (url string, moved func() int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	var bytes atomic.Int64
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			door, err := net.Dial("tcp", strings.TrimPrefix(b.URL, "http://"))
			if err != nil {
				client.Close()
				continue
			}
			open.Go(func() {
				defer client.Close()
				defer door.Close()
				var both sync.WaitGroup
				both.Go(func() { trickle(client, door, chunk, pause, &bytes) })
				both.Go(func() { trickle(door, client, chunk, pause, &bytes) })
				both.Wait()
			})
		}
	})
	t.Cleanup(func() { listener.Close(); open.Wait() })
	return "http://" + listener.Addr().String(), bytes.Load
}

func trickle(to, from net.Conn, chunk int, pause time.Duration, moved *atomic.Int64) {
	for {
		n, err := io.CopyN(to, from, int64(chunk))
		moved.Add(n)
		if n == int64(chunk) {
			time.Sleep(pause)
		}
		if err != nil {
			to.(*net.TCPConn).CloseWrite()
			return
		}
	}
}
