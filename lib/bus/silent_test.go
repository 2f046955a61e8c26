package bus

import (
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/proto"
	"tendril.dev/test/fixture/nettest"
)

// TestSilentServerIsGivenUp: a server whose node lost its power closes no connection. The client
// notices by itself, and goes on with a server that answers.
func TestSilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(nettest.NewNATS(t, "").URL)
	if err != nil {
		t.Fatal(err)
	}
	off := make(chan struct{}) // the power
	address := nettest.Front(t, func() (net.Conn, error) {
		conn, err := net.Dial("tcp", server.Host)
		if err != nil {
			return nil, err
		}
		select {
		case <-off:
			return conn, nil // of another node
		default:
			return &silenced{Conn: conn, off: off, closed: make(chan struct{})}, nil
		}
	})
	b, err := Open(t.Context(), Options{
		URL: "nats://" + address, Provisions: true, Sizing: proto.DefaultSizing(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	reconnected := b.Conn.StatusChanged(nats.CONNECTED)
	close(off)
	select {
	case <-reconnected:
	case <-time.After(time.Minute):
		t.Fatal("the client still waits for the silent server")
	}
	if _, err := b.JS.Stream(t.Context(), proto.StreamEvents); err != nil {
		t.Errorf("after it connected again: %v", err)
	}
}

// TestSlowServerIsTriedAgain: a server, or a process, that is too slow for the time that an attempt
// has is no reason to end the start.
func TestSlowServerIsTriedAgain(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(nettest.NewNATS(t, "").URL)
	if err != nil {
		t.Fatal(err)
	}
	var attempts atomic.Int64
	address := nettest.Front(t, func() (net.Conn, error) {
		conn, err := net.Dial("tcp", server.Host)
		if err != nil || attempts.Add(1) > 1 {
			return conn, err
		}
		off := make(chan struct{})
		close(off)
		return &silenced{Conn: conn, off: off, closed: make(chan struct{})}, nil
	})
	b, err := Open(t.Context(), Options{URL: "nats://" + address, Provisions: true, Sizing: proto.DefaultSizing()})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if n := attempts.Load(); n < 2 {
		t.Errorf("connected at attempt %d", n)
	}
}

// silenced is a connection that carries nothing more once the power is off, and stays open.
type silenced struct {
	net.Conn
	off    chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (s *silenced) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	select {
	case <-s.off:
		<-s.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (s *silenced) Write(p []byte) (int, error) {
	select {
	case <-s.off:
		return len(p), nil
	default:
		return s.Conn.Write(p)
	}
}

func (s *silenced) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}
