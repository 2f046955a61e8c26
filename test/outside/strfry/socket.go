package strfry

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Traffic is what went through a relay's sockets since it was made.
type Traffic struct {
	Connections int64     `json:"connections"`
	Requests    int64     `json:"requests"`  // REQ
	Reconciled  int64     `json:"neg_open"`  // NEG-OPEN
	Sent        int64     `json:"sent"`      // EVENT messages
	In          int64     `json:"in"`        // bytes
	Live        int64     `json:"live"`      // bytes of these that were REQ for what is new only
	Out         int64     `json:"out"`       // bytes
	Connected   time.Time `json:"connected"` // the first WebSocket; zero: none yet
	Last        time.Time `json:"last"`      // the last message that a client sent, or that was sent to one
}

// traffic counts it.
type traffic struct {
	connections, requests, reconciled, sent, in, live, out, connected, last atomic.Int64
}

func (t *traffic) touch() { t.last.Store(time.Now().UnixNano()) }

func (t *traffic) reset() {
	for _, n := range []*atomic.Int64{&t.connections, &t.requests, &t.reconciled, &t.sent, &t.in, &t.live, &t.out, &t.connected, &t.last} {
		n.Store(0)
	}
}

func (t *traffic) read() Traffic {
	at := func(n *atomic.Int64) time.Time {
		if n.Load() == 0 {
			return time.Time{}
		}
		return time.Unix(0, n.Load())
	}
	return Traffic{
		Connections: t.connections.Load(), Requests: t.requests.Load(), Reconciled: t.reconciled.Load(), Sent: t.sent.Load(), Live: t.live.Load(),
		In: t.in.Load(), Out: t.out.Load(), Connected: at(&t.connected), Last: at(&t.last),
	}
}

// gathered is how many bytes are written at once at most. A frame each would be a system call each.
const gathered = 64 << 10

// socket is a connection that can gather what is written to it, and that is counted.
type socket struct {
	net.Conn
	traffic *traffic

	mu     sync.Mutex
	gather bool
	buf    []byte
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.traffic.in.Add(int64(n))
	return n, err
}

func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traffic.out.Add(int64(len(p)))
	if !s.gather && len(s.buf) == 0 {
		return s.Conn.Write(p)
	}
	s.buf = append(s.buf, p...)
	if s.gather && len(s.buf) < gathered {
		return len(p), nil
	}
	return len(p), s.flush()
}

// hold makes the socket gather what is written from now on, or sends what it has gathered.
func (s *socket) hold(gather bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gather = gather
	if gather {
		return nil
	}
	return s.flush()
}

func (s *socket) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	_, err := s.Conn.Write(s.buf)
	s.buf = s.buf[:0]
	return err
}

// sockets is a listener whose connections are sockets.
type sockets struct {
	net.Listener
	traffic *traffic
}

func (l sockets) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &socket{Conn: c, traffic: l.traffic}, nil
}
