// Package netguard is the one way out. Announcements are written by strangers and name relays and
// git servers to connect to; every outgoing connection, WebSocket or HTTP, passes the guard's
// dialer, which connects to public addresses only and to the very address that it checked (docs:
// "Announcements are untrusted input").
package netguard

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// Options say how a Guard goes out. The zero value is safe: public addresses only, with the
// defaults named here.
type Options struct {
	// AllowPrivate lets every address through: loopback, private, link-local. For tests and closed
	// networks.
	AllowPrivate bool

	// DialTimeout bounds name resolution and connecting together. Default 10 s.
	DialTimeout time.Duration

	// TLSTimeout bounds the TLS handshake. Default 10 s.
	TLSTimeout time.Duration

	// HeaderTimeout bounds the wait for the header of a response once the request is sent. Default
	// 60 s: a git server may think before it answers.
	HeaderTimeout time.Duration

	// MaxHeaderBytes bounds the header of a response. Default 64 KiB.
	MaxHeaderBytes int64

	// MaxRedirects is how many redirects are followed, each through the guard. Default 5, negative:
	// none.
	MaxRedirects int

	// UserAgent is sent where a request names none. Default "Tendril".
	UserAgent string

	// Resolver turns names into addresses. Default: the system's.
	Resolver Resolver

	// RootCAs are the authorities that servers' certificates are checked against. Default: the
	// system's.
	RootCAs *x509.CertPool
}

// Resolver turns a host name into addresses; *net.Resolver is one. The network is "ip", "ip4" or
// "ip6".
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Guard makes outgoing connections. It is safe for use by many goroutines; one for a whole process
// is enough.
type Guard struct {
	options   Options
	judge     func(netip.Addr) string // why an address is refused, or ""
	dial      func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
	transport *http.Transport
}

const (
	// maxAddresses bounds how many addresses of a name are tried: whoever owns a name can list
	// thousands.
	maxAddresses = 8
	// nextAddressAfter is how long one address is tried alone before the next one joins the race
	// (RFC 8305).
	nextAddressAfter = 300 * time.Millisecond
)

// New makes a Guard, filling in the defaults.
func New(o Options) *Guard {
	o.DialTimeout = orDefault(o.DialTimeout, 10*time.Second)
	o.TLSTimeout = orDefault(o.TLSTimeout, 10*time.Second)
	o.HeaderTimeout = orDefault(o.HeaderTimeout, 60*time.Second)
	o.MaxHeaderBytes = orDefault(o.MaxHeaderBytes, 64<<10)
	o.MaxRedirects = orDefault(o.MaxRedirects, 5)
	o.UserAgent = orDefault(o.UserAgent, "Tendril")
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	g := &Guard{options: o, judge: refusal}
	if o.AllowPrivate {
		g.judge = func(netip.Addr) string { return "" }
	}
	g.dial = g.connect
	g.transport = g.newTransport()
	return g
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

// ErrRefused is what every RefusedError is, for errors.Is.
var ErrRefused = errors.New("refused by the network guard")

// RefusedError says what the guard did not let through.
type RefusedError struct {
	Host   string     // as it was asked for
	Addr   netip.Addr // what it resolved to; not valid where the refusal came before
	Reason string     // a phrase: "a loopback address"
}

// Error names host, address and reason.
func (e *RefusedError) Error() string {
	if e.Addr.IsValid() && e.Addr.String() != e.Host {
		return fmt.Sprintf("%v: %s is at %s, %s", ErrRefused, e.Host, e.Addr, e.Reason)
	}
	return fmt.Sprintf("%v: %s: %s", ErrRefused, e.Host, e.Reason)
}

// Is makes every refusal an ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// DialContext connects to "host:port" by TCP. The host is resolved once; addresses that are not
// public are refused (all of them: a *RefusedError), and the others are raced, each connected to as
// it was checked, so that a name that changes its answer in between gains nothing. Networks are
// tcp, tcp4 and tcp6, ports are numbers.
func (g *Guard) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := splitAddress(network, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.DialTimeout)
	defer cancel()
	addresses, err := g.resolve(ctx, network, host)
	if err != nil {
		return nil, err
	}
	allowed, err := g.admit(host, addresses)
	if err != nil {
		return nil, err
	}
	return race(ctx, allowed, func(ctx context.Context, at netip.Addr) (net.Conn, error) {
		return g.dial(ctx, network, netip.AddrPortFrom(at, port))
	})
}

func splitAddress(network, addr string) (host string, port uint16, err error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return "", 0, &RefusedError{Host: addr, Reason: "network " + network}
	}
	host, digits, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("dial %q: %w", addr, err)
	}
	number, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || number == 0 {
		return "", 0, &RefusedError{Host: addr, Reason: "the port is not a number from 1 to 65535"}
	}
	return host, uint16(number), nil
}

// resolve returns the addresses of a host that fit the network. An IP literal is its own address.
func (g *Guard) resolve(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if literal, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{literal}, nil
	}
	family := map[string]string{"tcp": "ip", "tcp4": "ip4", "tcp6": "ip6"}[network]
	addresses, err := g.options.Resolver.LookupNetIP(ctx, family, host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("resolve %s: %w", host, &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true})
	}
	return addresses, nil
}

// admit keeps the addresses that the guard lets through, at most maxAddresses of them.
func (g *Guard) admit(host string, addresses []netip.Addr) ([]netip.Addr, error) {
	allowed := make([]netip.Addr, 0, min(len(addresses), maxAddresses))
	var refused *RefusedError
	for _, address := range addresses {
		if err := g.check(host, address); err != nil {
			refused = err
			continue
		}
		if len(allowed) < maxAddresses {
			allowed = append(allowed, address.Unmap())
		}
	}
	if len(allowed) == 0 {
		return nil, refused
	}
	return allowed, nil
}

func (g *Guard) check(host string, address netip.Addr) *RefusedError {
	if why := g.judge(address); why != "" {
		return &RefusedError{Host: host, Addr: address, Reason: why}
	}
	return nil
}

type attempt struct {
	conn net.Conn
	err  error
}

// race connects to the addresses in order, each some time after the one before or as soon as that
// has failed, and keeps the first connection that stands. If none does, the error is that of the
// first that failed.
func race(ctx context.Context, addresses []netip.Addr, connect func(context.Context, netip.Addr) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan attempt, len(addresses))
	started, ended := 0, 0
	start := func() {
		address := addresses[started]
		started++
		go func() {
			conn, err := connect(ctx, address)
			results <- attempt{conn, err}
		}()
	}
	start()
	next := time.NewTicker(nextAddressAfter)
	defer next.Stop()
	var first error
	for ended < started {
		select {
		case <-next.C:
			if started < len(addresses) {
				start()
			}
		case result := <-results:
			ended++
			if result.err == nil {
				go closeLosers(results, started-ended)
				return result.conn, nil
			}
			if first == nil {
				first = result.err
			}
			if started < len(addresses) && ctx.Err() == nil {
				start()
				next.Reset(nextAddressAfter)
			}
		}
	}
	return nil, first
}

func closeLosers(results <-chan attempt, running int) {
	for range running {
		if result := <-results; result.conn != nil {
			result.conn.Close()
		}
	}
}

// connect opens one connection. The address is checked once more in the moment of connecting:
// whatever the code above becomes, no socket opens to an address that the guard refuses.
func (g *Guard) connect(ctx context.Context, network string, target netip.AddrPort) (net.Conn, error) {
	dialer := net.Dialer{
		Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("read the address %q of a connection: %w", address, err)
			}
			if refused := g.check(address, at.Addr()); refused != nil {
				return refused
			}
			return nil
		},
	}
	return dialer.DialContext(ctx, network, target.String())
}
