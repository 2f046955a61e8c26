package world

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/test/fixture/nettest"
)

// Balancer stands before front doors as a Service of Kubernetes does: a new connection goes to the
// next of those that are in it, one that is open stays where it is.
type Balancer struct {
	Door

	mu    sync.Mutex
	doors []string // host:port
	next  int
}

// NewBalancer makes one without front doors. It ends with the test, after what is behind it: start
// that later.
func NewBalancer(t testing.TB) *Balancer {
	t.Helper()
	b := &Balancer{}
	b.Door = At(t, "http://"+nettest.Front(t, b.dial))
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

// dial connects to the next front door: under the lock, so that no connection is on its way to one
// that Remove takes out.
func (b *Balancer) dial() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.doors) == 0 {
		return nil, errors.New("there is no front door")
	}
	b.next++
	return net.Dial("tcp", b.doors[b.next%len(b.doors)])
}

// Slow is the same, by connections that pass on what clients send, and what they take, in pieces:
// chunk bytes, and then a pause. moved is how many bytes have been passed on.
func (b *Balancer) Slow(t testing.TB, chunk int, pause time.Duration) (door Door, moved func() int64) {
	t.Helper()
	var bytes atomic.Int64
	return At(t, "http://"+nettest.Front(t, func() (net.Conn, error) {
		conn, err := b.dial()
		return &slow{conn, chunk, pause, &bytes}, err
	})), bytes.Load
}

// slow is a connection that moves a chunk of bytes at a time.
type slow struct {
	net.Conn
	chunk int
	pause time.Duration
	moved *atomic.Int64
}

func (s *slow) Read(p []byte) (int, error) {
	n, err := io.ReadAtLeast(s.Conn, p[:min(len(p), s.chunk)], 1)
	s.wait(n)
	return n, err
}

func (s *slow) Write(p []byte) (written int, err error) {
	for some := range slices.Chunk(p, s.chunk) {
		n, err := s.Conn.Write(some)
		written += n
		if err != nil {
			return written, err
		}
		s.wait(n)
	}
	return written, nil
}

// wait counts what was moved. A full chunk is followed by a pause.
func (s *slow) wait(n int) {
	s.moved.Add(int64(n))
	if n == s.chunk {
		time.Sleep(s.pause)
	}
}
