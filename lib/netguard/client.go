package netguard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// idleTimeout closes connections that no request has used for so long.
const idleTimeout = 60 * time.Second

// newTransport speaks HTTP/1.1 through the guard. No proxy is taken from the environment: it would
// resolve names on our behalf. HTTP/2 is left out because WebSocket upgrades need a connection of
// their own.
func (g *Guard) newTransport() *http.Transport {
	return &http.Transport{
		DialContext:            g.DialContext,
		DialTLSContext:         g.dialTLS,
		Proxy:                  nil,
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        idleTimeout,
		ResponseHeaderTimeout:  g.options.HeaderTimeout,
		MaxResponseHeaderBytes: g.options.MaxHeaderBytes,
	}
}

// dialTLS connects and shakes hands. It is here and not in the transport so that a failed handshake
// is told from a failed connection: one is the server's own fault, the other passes
// (HandshakeError).
func (g *Guard) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := g.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("dial %q: %w", addr, err)
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.TLSTimeout)
	defer cancel()
	secure := tls.Client(conn, &tls.Config{
		ServerName: host,
		RootCAs:    g.options.RootCAs,
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &HandshakeError{Host: host, Err: err}
	}
	return secure, nil
}

// HandshakeError is a TLS handshake that failed: a wrong certificate, no common version, or no TLS
// at all.
type HandshakeError struct {
	Host string
	Err  error
}

// Error names the host and what went wrong.
func (e *HandshakeError) Error() string {
	return fmt.Sprintf("TLS handshake with %s: %v", e.Host, e.Err)
}

// Unwrap returns what the TLS library said.
func (e *HandshakeError) Unwrap() error { return e.Err }

// ClientOption changes one client, not the guard.
type ClientOption func(*http.Client)

// WithTimeout bounds a whole exchange, the reading of the body included. Not for WebSockets, which
// it would cut off.
func WithTimeout(d time.Duration) ClientOption {
	return func(c *http.Client) { c.Timeout = d }
}

// WithoutRedirects returns the redirect itself as the response.
func WithoutRedirects() ClientOption {
	return func(c *http.Client) {
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
}

// HTTPClient is an HTTP client that goes out through the guard, redirects included: http and https
// only, never from https back to http, no proxy, no cookies, bounded headers. There is no time-out
// over the whole exchange unless WithTimeout sets one, so that WebSockets live on; a caller that
// reads a body bounds it by LimitBody and its context. All clients share one pool of connections.
func (g *Guard) HTTPClient(options ...ClientOption) *http.Client {
	client := &http.Client{
		Transport:     roundTripper{transport: g.transport, userAgent: g.options.UserAgent},
		CheckRedirect: g.checkRedirect,
	}
	for _, option := range options {
		option(client)
	}
	return client
}

// CloseIdleConnections closes what no request uses, at a stop.
func (g *Guard) CloseIdleConnections() { g.transport.CloseIdleConnections() }

func (g *Guard) checkRedirect(next *http.Request, before []*http.Request) error {
	refuse := func(reason string) error { return &RefusedError{Host: next.URL.Host, Reason: reason} }
	last := before[len(before)-1]
	switch {
	case len(before) > max(g.options.MaxRedirects, 0):
		return refuse(fmt.Sprintf("redirect after %d redirects", len(before)-1))
	case next.URL.Scheme != "http" && next.URL.Scheme != "https":
		return refuse("redirect to the scheme " + next.URL.Scheme)
	case last.URL.Scheme == "https" && next.URL.Scheme != "https":
		return refuse("redirect from https to http")
	case next.URL.User != nil:
		return refuse("redirect to a URL with credentials")
	}
	return nil
}

// roundTripper names us to servers.
type roundTripper struct {
	transport *http.Transport
	userAgent string
}

// RoundTrip sends one request.
func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, named := req.Header["User-Agent"]; !named {
		req = req.Clone(req.Context())
		if req.Header == nil {
			req.Header = http.Header{}
		}
		req.Header.Set("User-Agent", r.userAgent)
	}
	return r.transport.RoundTrip(req)
}

// CloseIdleConnections lets http.Client.CloseIdleConnections reach the pool.
func (r roundTripper) CloseIdleConnections() { r.transport.CloseIdleConnections() }

// ErrTooLarge is what a body gives that goes beyond its limit.
var ErrTooLarge = errors.New("body is too large")

// LimitBody lets max bytes of r through. If there are more, reading ends with an error that is
// ErrTooLarge: unlike io.LimitReader, never with an EOF that makes a part look like the whole.
// Closing it closes r, if r can be closed.
func LimitBody(r io.Reader, max int64) io.ReadCloser {
	return &limitedBody{from: r, limit: max, left: max}
}

type limitedBody struct {
	from        io.Reader
	limit, left int64
	err         error
}

// Read reads up to the limit, and one byte beyond it to know whether there is more.
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	if int64(len(p))-1 > b.left {
		p = p[:b.left+1]
	}
	n, err := b.from.Read(p)
	if int64(n) <= b.left {
		b.left -= int64(n)
		b.err = err
		return n, err
	}
	n, b.left = int(b.left), 0
	b.err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, b.limit)
	return n, b.err
}

// Close closes what is read from.
func (b *limitedBody) Close() error {
	if closer, ok := b.from.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}
