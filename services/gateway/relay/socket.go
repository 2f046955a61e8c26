package relay

import (
	"bufio"
	"net"
	"net/http"
	"sync"
)

// gatherers are for what sockets hold back. They are shared, because most connections hold nothing
// back most of the time.
var gatherers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 64<<10) }}

// socket is the network connection below a WebSocket. While it is held it gathers what is written,
// so that many small messages go out with one system call. It is safe for concurrent use: pings and
// goodbyes of other goroutines are gathered too, in their order.
type socket struct {
	net.Conn

	mu       sync.Mutex    // guards what follows
	gathered *bufio.Writer // nil: nothing is held back
}

// hold begins to gather. Each call needs one of release; only one goroutine may be between the two.
func (s *socket) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gathered = gatherers.Get().(*bufio.Writer)
	s.gathered.Reset(s.Conn)
}

// release passes on what was gathered.
func (s *socket) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.gathered.Flush()
	s.gathered.Reset(nil)
	gatherers.Put(s.gathered)
	s.gathered = nil
	return err
}

// Write writes to the network, or gathers while the socket is held.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gathered != nil {
		return s.gathered.Write(p)
	}
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
