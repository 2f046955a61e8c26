// Package netguard is the one way out. Announcements are written by strangers and name relays and
// git servers to connect to; every outgoing connection, WebSocket or HTTP, passes the guard, which
// looks at the address in the moment of connecting and lets public ones through only (docs:
// "Announcements are untrusted input"). It does not bound what a connection carries: its callers
// do.
package netguard

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"
)

// Options say how a Guard goes out. The zero value is safe.
type Options struct {
	// AllowPrivate lets every address through: loopback, private, link-local. For tests and closed
	// networks. false: public addresses alone.
	AllowPrivate bool
	// DialTimeout bounds name resolution and connecting together; 0: 10 s.
	DialTimeout time.Duration
}

const (
	dialTimeout = 10 * time.Second
	tlsTimeout  = 10 * time.Second
	// headerTimeout bounds the wait for the header of a response once the request is sent: a git
	// server may think before it answers.
	headerTimeout  = 60 * time.Second
	maxHeaderBytes = 64 << 10
	// idleTimeout closes connections that no request has used for so long.
	idleTimeout  = 60 * time.Second
	maxRedirects = 5
	userAgent    = "Tendril"
)

// Guard makes outgoing connections. It is safe for use by many goroutines; one for a whole process
// is enough.
type Guard struct {
	judge     func(netip.Addr) string // why an address is refused, or ""
	timeout   time.Duration
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
	roots     *x509.CertPool // nil: the system's
	transport *http.Transport
}

// New makes a Guard.
func New(o Options) *Guard {
	g := &Guard{judge: refusal, timeout: cmp.Or(o.DialTimeout, dialTimeout)}
	if o.AllowPrivate {
		g.judge = func(netip.Addr) string { return "" }
	}
	// The check is where the socket connects: a name that changes its address in between gains
	// nothing, and of several addresses of a name each is looked at.
	g.dial = (&net.Dialer{Control: g.control}).DialContext
	// No proxy is taken from the environment: it would resolve names on our behalf. HTTP/2 is left
	// out because WebSocket upgrades need a connection of their own.
	g.transport = &http.Transport{
		DialContext: g.connect, DialTLSContext: g.connectTLS, MaxIdleConns: 64, MaxIdleConnsPerHost: 2,
		IdleConnTimeout: idleTimeout, ResponseHeaderTimeout: headerTimeout, MaxResponseHeaderBytes: maxHeaderBytes,
	}
	return g
}

// ErrRefused is wrapped by every error about what the guard does not let through: an address that
// is not public, the scheme or the credentials of a URL, a redirect to one of these, or one
// redirect too many. Nothing was sent there.
var ErrRefused = errors.New("refused by the network guard")

func (g *Guard) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrRefused, address, err)
	}
	if why := g.judge(at.Addr()); why != "" {
		return fmt.Errorf("%w: %s", ErrRefused, why)
	}
	return nil
}

func (g *Guard) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return g.dial(ctx, network, address)
}

// connectTLS connects and shakes hands. It is here and not in the transport so that a failed
// handshake is told from a failed connection: one is the server's own fault, the other passes.
func (g *Guard) connectTLS(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := g.connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(address) // it was connected to
	ctx, cancel := context.WithTimeout(ctx, tlsTimeout)
	defer cancel()
	secure := tls.Client(conn, &tls.Config{ServerName: host, RootCAs: g.roots, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &handshakeError{host, err}
	}
	return secure, nil
}

// handshakeError is a TLS handshake that failed: a wrong certificate, no common version, or no TLS
// at all.
type handshakeError struct {
	host string
	err  error
}

func (e *handshakeError) Error() string {
	return fmt.Sprintf("TLS handshake with %s: %v", e.host, e.err)
}
func (e *handshakeError) Unwrap() error { return e.err }

// HTTPClient is an HTTP client that goes out through the guard, redirects included: http and https
// only, never from https back to http, no proxy, no cookies, bounded headers. There is no time-out
// over the whole exchange, so that WebSockets live on; a caller that reads a body bounds it by
// LimitBody and its context. All clients share one pool of connections.
func (g *Guard) HTTPClient() *http.Client {
	return &http.Client{Transport: named{g.transport}, CheckRedirect: checkRedirect}
}

// CloseIdleConnections closes what no request uses, at a stop.
func (g *Guard) CloseIdleConnections() { g.transport.CloseIdleConnections() }

func checkRedirect(next *http.Request, before []*http.Request) error {
	reason := ""
	switch {
	case len(before) > maxRedirects:
		reason = fmt.Sprintf("after %d redirects", maxRedirects)
	case next.URL.Scheme != "http" && next.URL.Scheme != "https":
		reason = "to the scheme " + next.URL.Scheme
	case before[len(before)-1].URL.Scheme == "https" && next.URL.Scheme != "https":
		reason = "from https to http"
	case next.URL.User != nil:
		reason = "to a URL with credentials"
	default:
		return nil
	}
	return fmt.Errorf("%w: redirect %s", ErrRefused, reason)
}

// named names us to servers where a request does not.
type named struct{ *http.Transport }

// RoundTrip sends one request.
func (n named) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, named := req.Header["User-Agent"]; !named {
		req = req.Clone(req.Context())
		req.Header.Set("User-Agent", userAgent)
	}
	return n.Transport.RoundTrip(req)
}

// ErrTooLarge ends the reading of a body by [LimitBody] that goes beyond its limit. What was read
// is the body as far as the limit.
var ErrTooLarge = errors.New("body is too large")

// LimitBody lets max bytes of r through. If there are more, reading ends with an error that is
// ErrTooLarge: unlike io.LimitReader, never with an EOF that makes a part look like the whole.
// Closing it closes r, if r can be closed.
func LimitBody(r io.Reader, max int64) io.ReadCloser {
	body, closes := r.(io.ReadCloser)
	if !closes {
		body = io.NopCloser(r)
	}
	return limited{http.MaxBytesReader(nil, body, max)}
}

type limited struct{ io.ReadCloser }

// Read implements io.Reader.
func (l limited) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if beyond, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, beyond.Limit)
	}
	return n, err
}

// DialWebSocket opens a WebSocket through the guard; the options name no HTTPClient. ctx
// bounds the opening only. An answer that refuses the upgrade is for Classify a breach of protocol
// only if its status is no error of HTTP: a web page, say, where a WebSocket should be.
//
// For its limits on messages see websocket.Conn.SetReadLimit: the caller knows what it expects.
func (g *Guard) DialWebSocket(ctx context.Context, address string, options *websocket.DialOptions) (*websocket.Conn,
	error) {
	var o websocket.DialOptions
	if options != nil {
		o = *options
	}
	o.HTTPClient = g.HTTPClient()
	conn, response, err := websocket.Dial(ctx, address, &o)
	if err == nil {
		return conn, nil
	}
	failed := &dialError{url: address, err: err}
	if response != nil {
		failed.status = response.StatusCode
	}
	return nil, failed
}

// dialError says in its text what went wrong without the steps that the libraries name on the way
// ("failed to WebSocket dial: failed to send handshake request: Get …"): operators read it in one
// line of `tendril status`. The errors of the libraries are all in its chain.
type dialError struct {
	url    string
	status int // of an HTTP answer that was not, or not rightly, the upgrade; 0: none came
	err    error
}

func (e *dialError) Error() string {
	reason := strings.TrimPrefix(e.err.Error(), "failed to WebSocket dial: ")
	if request, ok := errors.AsType[*url.Error](e.err); ok {
		reason = request.Err.Error()
	}
	return "open WebSocket to " + e.url + ": " + reason
}

func (e *dialError) Unwrap() error { return e.err }
