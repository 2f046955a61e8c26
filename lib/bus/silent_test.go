package bus_test

import (
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

// TestSilentServerIsGivenUp: a server whose node lost its power closes no connection. The client
// notices by itself, while it connects or later, and goes on with a server that answers.
func TestSilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, silentAtOnce := range map[string]bool{"from the beginning": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := url.Parse(nettest.NewNATS(t, "").URL)
			must(t, err)
			off := make(chan struct{}) // the power
			if silentAtOnce {
				close(off)
			}
			var attempts atomic.Int64
			address := nettest.Front(t, func() (net.Conn, error) {
				conn, err := net.Dial("tcp", server.Host)
				if err != nil || attempts.Add(1) > 1 {
					return conn, err // of another node
				}
				return &silenced{Conn: conn, off: off, closed: make(chan struct{})}, nil
			})
			b := open(t, bus.Options{URL: "nats://" + address, Provisions: true})
			if !silentAtOnce {
				reconnected := b.Conn.StatusChanged(nats.CONNECTED)
				close(off)
				fixture.Receive(t, "the client gives the silent server up", reconnected)
			}
			if _, err := b.JS.Stream(t.Context(), proto.StreamEvents); err != nil || attempts.Load() < 2 {
				t.Errorf("after attempt %d: %v", attempts.Load(), err)
			}
		})
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
