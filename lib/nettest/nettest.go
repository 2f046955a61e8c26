// Package nettest is what tests need of a network that the machine's does not give: connections on
// which no time passes, a port that stays closed, one that stays open while its server is away, and
// a NATS server that goes away and comes back.
package nettest

import (
	"context"
	"io"
	"net"
	"net/http/httptest"
	"sync"
	"testing"
)

// Listener is a net.Listener in memory: what dials it is accepted at its other end. The clock of a
// synctest's bubble stands still while anything moves on its connections, however slow the machine
// is.
type Listener struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

// Listen makes a listener. In a bubble it must be made there.
func Listen() *Listener {
	l := &Listener{accepted: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Dial waits until the connection is accepted.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.accepted <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error { l.close(); return nil }

// Addr implements net.Listener. It is no address that anybody could dial.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{} }

// Refusing is the host and port on which no server listens, nor will: the port is in use, for a
// connection of ours.
func Refusing(t testing.TB) string {
	t.Helper()
	server := httptest.NewServer(nil)
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().String()
}

// Front listens at an address that stays while the server behind it comes and goes: a port that was
// let go could be anybody's by the time the server comes back, on a machine where other tests open
// and close hundreds. dial connects to the server; where it fails, the client is told by the end of
// its connection. It ends with the test, after the server: start that later.
func Front(t testing.TB, dial func() (net.Conn, error)) (address string) {
	t.Helper()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			client, err := front.Accept()
			if err != nil {
				return
			}
			open.Go(func() { forward(client, dial) })
		}
	})
	t.Cleanup(func() {
		front.Close()
		open.Wait()
	})
	return front.Addr().String()
}

// forward passes on what a client and the server say, until one of them ends.
func forward(client net.Conn, dial func() (net.Conn, error)) {
	defer client.Close()
	server, err := dial()
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client) // however it ends, the other side is told
		server.Close()
	}()
	_, _ = io.Copy(client, server)
}
