package relay

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"
)

// mostHeld is how many bytes a socket holds back at most.
const mostHeld = 64 << 10

// buffers are for what sockets hold back, each of mostHeld bytes. They are shared, because most
// connections hold nothing back most of the time.
var buffers = sync.Pool{New: func() any { return new([mostHeld]byte) }}

// socket is the network connection below a WebSocket. While it is held it gathers what is written,
// so that many small messages go out with one system call. It is safe for concurrent use: pings and
// goodbyes of other goroutines are gathered too, in their order.
type socket struct {
	net.Conn
	patience time.Duration // for the network to take what one system call is given
	overdue  *time.Timer   // ends the connection when that has taken too long

	mu      sync.Mutex // guards what follows
	holding bool
	buffer  *[mostHeld]byte // nil: nothing is held back
	held    int             // bytes in it
}

// newSocket makes a socket that has no connection yet: [takeover.Hijack] gives it one. abandon ends
// the connection; it is called when the network has not taken anything for so long.
func newSocket(patience time.Duration, abandon func()) *socket {
	s := &socket{patience: patience, overdue: time.AfterFunc(time.Hour, abandon)}
	s.overdue.Stop()
	return s
}

// hold begins to gather. Each call needs one of release; only one goroutine may be between the two.
func (s *socket) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = true
}

// release passes on what was gathered.
func (s *socket) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = false
	err := s.flush()
	if s.buffer != nil {
		buffers.Put(s.buffer)
		s.buffer = nil
	}
	return err
}

// Write writes to the network, or gathers while the socket is held. An error of what was gathered
// before is that of the write that makes it known.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held+len(p) > mostHeld {
		if err := s.flush(); err != nil {
			return 0, err
		}
	}
	if !s.holding || len(p) > mostHeld {
		return s.pass(p)
	}
	if s.buffer == nil {
		s.buffer = buffers.Get().(*[mostHeld]byte)
	}
	s.held += copy(s.buffer[s.held:], p)
	return len(p), nil
}

// flush writes what was gathered; the caller holds the lock.
func (s *socket) flush() error {
	if s.held == 0 {
		return nil
	}
	_, err := s.pass(s.buffer[:s.held])
	s.held = 0
	return err
}

// pass gives bytes to the network; the caller holds the lock.
func (s *socket) pass(p []byte) (int, error) {
	s.overdue.Reset(s.patience)
	defer s.overdue.Stop()
	return s.Conn.Write(p)
}

// takeover is a response whose connection becomes that of a socket when it is taken over.
type takeover struct {
	http.ResponseWriter
	socket *socket
}

// Hijack implements [http.Hijacker].
func (t *takeover) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	t.socket.Conn = conn
	both.Writer.Reset(t.socket)
	return t.socket, both, nil
}
