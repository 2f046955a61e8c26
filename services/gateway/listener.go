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

// farewells is how many connections that are one too many get an answer at once; others are closed
// without.
const farewells = 64

// bounded is a listener that lets only so many connections in, in all and of one client. It is for
// HTTP connections of any kind, before anything of them is read.
type bounded struct {
	net.Listener
	places *limit.Fair
	// proxy reports whether an address is that of a trusted proxy, which connects for many clients.
	proxy func(netip.Addr) bool
	stall time.Duration // for a client to take a chunk of an answer

	leaving *limit.Fair // connections that are one too many

	mu   sync.Mutex
	idle map[*connection]time.Time // connections without a request, and since when
}

func newBounded(l net.Listener, places *limit.Fair, proxy func(netip.Addr) bool, stall time.Duration) *bounded {
	return &bounded{Listener: l, places: places, proxy: proxy, stall: stall, leaving: limit.NewFair(farewells, farewells),
		idle: map[*connection]time.Time{}}
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
		if errors.Is(refused, limit.ErrShare) && b.closeIdle(client) || errors.Is(refused, limit.ErrFull) && b.closeIdle("") {
			back, refused = b.places.Try(client, 1)
		}
		if refused != nil {
			if back, err = b.leaving.Try("", 1); err != nil {
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
	if state == http.StateNew || state == http.StateIdle {
		b.idle[c] = time.Now()
	} else {
		delete(b.idle, c)
	}
}

// closeIdle closes the connection of a client, or "" for all, that has been idle longest, if there
// is one.
func (b *bounded) closeIdle(client string) bool {
	b.mu.Lock()
	var first *connection
	for c, since := range b.idle {
		if (client == "" || c.client == client) && c.refused == nil && (first == nil || since.Before(b.idle[first])) {
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
