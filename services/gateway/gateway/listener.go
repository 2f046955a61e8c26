package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"tendril.dev/lib/limit"
)

const (
	// farewells is how many connections at most are closed with an explanation at once; others are
	// closed without.
	farewells = 64
	// farewellTime is how long such a connection may take.
	farewellTime = time.Second
)

// bounded is a listener that lets only so many connections in, in all and of one client. It is for
// HTTP connections of any kind, before anything of them is read.
type bounded struct {
	net.Listener
	places *limit.Fair
	// proxy reports whether an address is that of a trusted proxy, which connects for many clients.
	proxy func(netip.Addr) bool

	leaving chan struct{} // one for each connection that is closed with an explanation

	mu   sync.Mutex
	idle map[*connection]time.Time // connections without a request, and since when
}

func newBounded(l net.Listener, places *limit.Fair, proxy func(netip.Addr) bool) *bounded {
	return &bounded{Listener: l, places: places, proxy: proxy, leaving: make(chan struct{}, farewells),
		idle: map[*connection]time.Time{}}
}

// connection is one that was let in.
type connection struct {
	net.Conn
	from   *bounded
	client string
	back   func()
}

// Close closes the connection and lets another one in.
func (c *connection) Close() error {
	c.from.watch(c, http.StateClosed)
	defer c.back()
	return c.Conn.Close()
}

// Accept waits for a connection that may come in. Others are turned away.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := b.client(conn)
		back, err := b.places.Try(client, 1)
		if errors.Is(err, limit.ErrShare) && b.closeIdle(client) || errors.Is(err, limit.ErrFull) && b.closeIdle("") {
			back, err = b.places.Try(client, 1)
		}
		if err == nil {
			return &connection{Conn: conn, from: b, client: client, back: back}, nil
		}
		b.turnAway(conn, err)
	}
}

// client is what connections are counted by. Each connection of a trusted proxy counts for itself.
func (b *bounded) client(conn net.Conn) string {
	remote := conn.RemoteAddr().String()
	if addr := peerOf(remote); !b.proxy(addr) {
		return limit.Address(addr)
	}
	return "proxy " + remote
}

// watch is told by the server how its connections stand (http.Server.ConnState).
func (b *bounded) watch(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*connection)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if state == http.StateNew || state == http.StateIdle {
		b.idle[c] = time.Now()
	} else {
		delete(b.idle, c)
	}
}

// drain returns when all connections have ended, or ctx has. Each ends with its next request, which
// tells the client that it is the last one.
func (b *bounded) drain(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if open, _, _ := b.places.Counts(0); open == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// closeIdle closes the connection of a client, or "" for all, that has been idle longest, if there
// is one.
func (b *bounded) closeIdle(client string) bool {
	b.mu.Lock()
	var first *connection
	for c, since := range b.idle {
		if (client == "" || c.client == client) && (first == nil || since.Before(b.idle[first])) {
			first = c
		}
	}
	b.mu.Unlock()
	if first == nil {
		return false
	}
	first.Close()
	return true
}

// turnAway answers a connection that is one too many, whatever it wanted to ask.
func (b *bounded) turnAway(conn net.Conn, why error) {
	select {
	case b.leaving <- struct{}{}:
	default:
		conn.Close()
		return
	}
	status, sentence := http.StatusServiceUnavailable, "this server has as many connections as it can serve; try again later"
	if errors.Is(why, limit.ErrShare) {
		status, sentence = http.StatusTooManyRequests, "too many connections from your address; close some first"
	}
	go func() {
		defer func() { conn.Close(); <-b.leaving }()
		conn.SetDeadline(time.Now().Add(farewellTime))
		sentence = "rate-limited: " + sentence + "\n"
		fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nConnection: close\r\nRetry-After: 30\r\nContent-Type: text/plain; charset=utf-8\r\n"+
			"Content-Length: %d\r\n%s\r\n%s", status, http.StatusText(status), len(sentence), corsLines(), sentence)
		// If the connection were closed before its request is read, the client might never see the
		// answer.
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
			io.Copy(io.Discard, io.LimitReader(conn, 64<<10))
		}
	}()
}
