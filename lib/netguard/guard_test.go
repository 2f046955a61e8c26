package netguard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"tendril.dev/test/fixture"
)

var must = fixture.Must

// proxied counts what reaches the proxy that the environment of these tests names: nothing may.
var proxied atomic.Int64

func TestMain(m *testing.M) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		proxied.Add(1)
		w.WriteHeader(http.StatusBadGateway)
	}))
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		os.Setenv(name, proxy.URL)
	}
	code := m.Run()
	proxy.Close()
	os.Exit(code)
}

// resolve has a guard find names in a table; others have no address.
func resolve(g *Guard, table map[string]string) *Guard {
	dial := g.dial
	g.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if at, known := table[host]; known {
			host = at
		} else if _, err := netip.ParseAddr(host); err != nil {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}}
		}
		return dial(ctx, network, net.JoinHostPort(host, port))
	}
	return g
}

// guardOf is a guard to which 127.0.0.1 is the public internet; every other loopback address is
// what it is.
func guardOf(t *testing.T, table map[string]string) *Guard {
	t.Helper()
	g := resolve(New(Options{}), table)
	g.judge = func(a netip.Addr) string {
		if a == netip.MustParseAddr("127.0.0.1") {
			return ""
		}
		return refusal(a)
	}
	t.Cleanup(g.CloseIdleConnections)
	return g
}

// listen accepts connections on an address, counts them, and serves each.
func listen(t *testing.T, address string, serve func(net.Conn)) (port string, accepted *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	accepted = new(atomic.Int64)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			accepted.Add(1)
			go serve(conn)
		}
	}()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), accepted
}

// TestEveryNameOfThisMachineIsRefused in the moment of connecting, even if the name was public
// before.
func TestEveryNameOfThisMachineIsRefused(t *testing.T) {
	t.Parallel()
	port, accepted := listen(t, "127.0.0.1", func(conn net.Conn) { conn.Close() })
	guard := New(Options{})
	for _, host := range []string{
		"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "localhost", "fe80::1%lo", "64:ff9b::7f00:1", "2002:7f00:1::",
	} {
		conn, err := guard.connect(t.Context(), "tcp", net.JoinHostPort(host, port))
		if conn != nil {
			conn.Close()
		}
		if !errors.Is(err, ErrRefused) || Classify(err) != CauseRefused || !strings.Contains(err.Error(), "network guard: ") {
			t.Errorf("%s: %v, want a refusal", host, err)
		}
	}
	table := map[string]string{"rebind.example": "127.0.0.1"}
	rebinding := guardOf(t, table)
	conn, err := rebinding.connect(t.Context(), "tcp", "rebind.example:"+port)
	must(t, err)
	conn.Close()
	table["rebind.example"] = "127.0.0.2"
	if _, err := rebinding.connect(t.Context(), "tcp", "rebind.example:"+port); !errors.Is(err, ErrRefused) {
		t.Errorf("a name that changes its address: %v", err)
	}
	if n := accepted.Load(); n > 1 {
		t.Errorf("%d connections came in", n)
	}
	if conn, err = New(Options{AllowPrivate: true}).connect(t.Context(), "tcp", "127.0.0.1:"+port); err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
