package gateway

import (
	"container/list"
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
	"tendril.dev/services/gateway/clientaddr"
	"tendril.dev/services/gateway/cors"
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
	idle map[string]*list.List // of *connection, by client and, as "", of all; who has been idle longest comes first
	// stopping: connections end with their next request. unaware are the open ones that have begun
	// no request since, or at all.
	stopping bool
	unaware  map[*connection]bool
}

func newBounded(l net.Listener, places *limit.Fair, proxy func(netip.Addr) bool) *bounded {
	return &bounded{Listener: l, places: places, proxy: proxy, leaving: make(chan struct{}, farewells),
		idle: map[string]*list.List{"": list.New()}, unaware: map[*connection]bool{}}
}

// connection is one that was let in.
type connection struct {
	net.Conn
	from   *bounded
	client string
	back   func()
	// idle are its places among those that are idle, of its client and of all; guarded by from.mu.
	// nil: it is not idle.
	idle map[string]*list.Element
}

// Close closes the connection and lets another one in.
func (c *connection) Close() error {
	c.from.busy(c)
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
	if addr := clientaddr.Peer(remote); !b.proxy(addr) {
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
	b.busy(c)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch state {
	case http.StateNew:
		b.unaware[c] = true
	case http.StateIdle:
	case http.StateActive:
		if b.stopping {
			delete(b.unaware, c)
		}
		return
	default:
		delete(b.unaware, c)
		return
	}
	if b.idle[c.client] == nil {
		b.idle[c.client] = list.New()
	}
	c.idle = map[string]*list.Element{"": b.idle[""].PushBack(c), c.client: b.idle[c.client].PushBack(c)}
}

// busy takes a connection off the list of those that are idle.
func (b *bounded) busy(c *connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for of, place := range c.idle {
		if b.idle[of].Remove(place); of != "" && b.idle[of].Len() == 0 {
			delete(b.idle, of)
		}
	}
	c.idle = nil
}

// lookForUnaware is how often it is looked whether there are connections that do not know of the
// stop.
const lookForUnaware = 20 * time.Millisecond

// tellAll returns when every connection has begun a request since the call, which tells the client
// that it is the last one, or has ended, or when ctx has ended. A connection that was busy at the
// call counts too: the answer that is under way does not say so.
func (b *bounded) tellAll(ctx context.Context) {
	b.mu.Lock()
	b.stopping = true
	b.mu.Unlock()
	tick := time.NewTicker(lookForUnaware)
	defer tick.Stop()
	for {
		b.mu.Lock()
		unaware := len(b.unaware)
		b.mu.Unlock()
		if unaware == 0 {
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
func (b *bounded) closeIdle(of string) bool {
	b.mu.Lock()
	var first *list.Element
	if idle := b.idle[of]; idle != nil {
		first = idle.Front()
	}
	b.mu.Unlock()
	if first == nil {
		return false
	}
	first.Value.(*connection).Close()
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
			"Content-Length: %d\r\n%s\r\n%s", status, http.StatusText(status), len(sentence), cors.Lines(), sentence)
		// If the connection were closed before its request is read, the client might never see the
		// answer.
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
			io.Copy(io.Discard, io.LimitReader(conn, 64<<10))
		}
	}()
}
