package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/limit"
)

// refusals is how many connections that are one too many get an answer at once; others are closed
// without.
const refusals = 64

// bounded is a listener that lets only so many connections in, in all and of one client. It is for
// HTTP connections of any kind, before anything of them is read.
type bounded struct {
	net.Listener
	places *limit.Fair
	// proxy reports whether an address is that of a trusted proxy, which connects for many clients.
	proxy func(netip.Addr) bool
	stall time.Duration // for a client to take a chunk of an answer

	refusals *limit.Fair // connections that are one too many

	mu   sync.Mutex
	open map[*connection]time.Time // since when each has no request; zero: it has one
}

func newBounded(l net.Listener, places *limit.Fair, proxy func(netip.Addr) bool, stall time.Duration) *bounded {
	return &bounded{Listener: l, places: places, proxy: proxy, stall: stall, refusals: limit.NewFair(refusals, refusals),
		open: map[*connection]time.Time{}}
}

// connection is one that was let in.
type connection struct {
	net.Conn
	from    *bounded
	client  string
	refused error // why it is one too many
	back    func()
}

// Close closes the connection and lets another one in.
func (c *connection) Close() error {
	c.from.watch(c, http.StateClosed)
	defer c.back()
	return c.Conn.Close()
}

// CloseWrite is for the server, which closes some connections in two steps.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Write writes some of an answer, also of a WebSocket. The connection ends if the client does not
// take a chunk of it in time.
func (c *connection) Write(p []byte) (written int, err error) {
	for {
		part := p[:min(len(p), config.AnswerChunk)]
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.from.stall)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(part)
		written += n
		if p = p[len(part):]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// Accept waits for a connection that may come in. Others are turned away.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := b.client(conn)
		back, refused := b.places.Try(client, 1)
		if b.makeRoom(client, refused) {
			back, refused = b.places.Try(client, 1)
		}
		if refused != nil {
			if back, err = b.refusals.Try("", 1); err != nil {
				conn.Close()
				continue
			}
		}
		return &connection{Conn: conn, from: b, client: client, refused: refused, back: back}, nil
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
	switch state {
	case http.StateNew, http.StateIdle:
		b.open[c] = time.Now()
	case http.StateClosed:
		delete(b.open, c)
	default:
		b.open[c] = time.Time{}
	}
}

// makeRoom closes a connection for one of a client that was refused: the one that has been idle
// longest, of the client itself if it holds its share. Where all are taken and none is idle, the
// client that has most loses one with a request, if it has more than this client then has. It
// reports false if it closes none.
func (b *bounded) makeRoom(client string, refused error) bool {
	switch {
	case errors.Is(refused, limit.ErrShare):
		return b.closeOne(client, true)
	case !errors.Is(refused, limit.ErrFull):
		return false
	}
	heaviest, more := b.places.Heaviest(client)
	return b.closeOne("", true) || more > 1 && b.closeOne(heaviest, false)
}

// closeOne closes the connection of a client, or "" for all, that has been idle longest, or else
// any with a request. It reports false if there is none.
func (b *bounded) closeOne(client string, idle bool) bool {
	b.mu.Lock()
	var first *connection
	for c, since := range b.open {
		if (client == "" || c.client == client) && c.refused == nil && since.IsZero() != idle &&
			(first == nil || since.Before(b.open[first])) {
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

// refusalKey is the key of why a connection is one too many, in the context of its requests.
type refusalKey struct{}

// context is told by the server of a connection (http.Server.ConnContext).
func (b *bounded) context(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*connection); ok && c.refused != nil {
		return context.WithValue(ctx, refusalKey{}, c.refused)
	}
	return ctx
}
