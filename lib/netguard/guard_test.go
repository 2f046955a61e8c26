package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

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

// names resolves from a table, and counts how often it is asked.
type names struct {
	addresses map[string][]netip.Addr
	asked     atomic.Int64
}

func resolver(table map[string]string) *names {
	n := &names{addresses: make(map[string][]netip.Addr)}
	for host, list := range table {
		for address := range strings.FieldsSeq(list) {
			n.addresses[host] = append(n.addresses[host], netip.MustParseAddr(address))
		}
	}
	return n
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.asked.Add(1)
	addresses, found := n.addresses[host]
	if !found {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return addresses, nil
}

// listen accepts connections on an address and counts them.
func listen(t *testing.T, address string) (port string, accepted *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), accepted
}

func TestDialRefusesEveryNameOfThisMachine(t *testing.T) {
	t.Parallel()
	port, accepted := listen(t, "127.0.0.1")
	guard := New(Options{Resolver: resolver(map[string]string{
		"localhost": "127.0.0.1 ::1", "innocent.example": "127.0.0.1", "mapped.example": "::ffff:127.0.0.1", "many.example": "10.0.0.1 192.168.0.1 ::1",
		"2130706433": "127.0.0.1", "0x7f.1": "127.0.0.1",
	})})
	for _, host := range []string{
		"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "localhost", "innocent.example", "mapped.example", "many.example",
		"2130706433", "0x7f.1", "fe80::1%lo", "64:ff9b::7f00:1", "2002:7f00:1::",
	} {
		conn, err := guard.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		if conn != nil {
			conn.Close()
		}
		refused, ok := errors.AsType[*RefusedError](err)
		if !ok || !errors.Is(err, ErrRefused) || Classify(err) != CauseRefused {
			t.Errorf("%s: %v, want a refusal", host, err)
			continue
		}
		if refused.Host != host || !refused.Addr.IsValid() || refused.Reason == "" {
			t.Errorf("%s: the refusal says %+v", host, refused)
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections came in", n)
	}
}

func TestDialRefusesWhatIsNotTCP(t *testing.T) {
	t.Parallel()
	guard := New(Options{AllowPrivate: true})
	for _, c := range []struct{ network, addr string }{
		{"udp", "127.0.0.1:53"}, {"unix", "/run/x.sock"}, {"tcp", "127.0.0.1:0"}, {"tcp", "127.0.0.1:http"}, {"tcp", "127.0.0.1:65536"},
	} {
		if _, err := guard.DialContext(t.Context(), c.network, c.addr); !errors.Is(err, ErrRefused) {
			t.Errorf("%s %s: %v", c.network, c.addr, err)
		}
	}
	if _, err := guard.DialContext(t.Context(), "tcp", "no port"); err == nil {
		t.Error("an address without a port was dialled")
	}
}

func TestDialAllowPrivate(t *testing.T) {
	t.Parallel()
	port, _ := listen(t, "127.0.0.2")
	// The first two addresses have no one on this port: the third is reached all the same, and the
	// name is asked for once.
	lookup := resolver(map[string]string{"relay.example": "127.0.0.9 127.0.0.8 127.0.0.2"})
	guard := New(Options{AllowPrivate: true, Resolver: lookup})
	conn, err := guard.DialContext(t.Context(), "tcp", net.JoinHostPort("relay.example", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.RemoteAddr().String(); got != "127.0.0.2:"+port {
		t.Errorf("connected to %s", got)
	}
	if n := lookup.asked.Load(); n != 1 {
		t.Errorf("the name was resolved %d times", n)
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf("8.8.4.%d", i)
	}
	for _, c := range []struct{ name, addresses, want string }{
		{"public ones only", "127.0.0.1 8.8.8.8 10.0.0.1 2606:4700::1111 ::1", "8.8.8.8 2606:4700::1111"},
		{"a mapped one as itself", "::ffff:8.8.8.8", "8.8.8.8"},
		{"not too many", strings.Join(many, " "), strings.Join(many[:maxAddresses], " ")},
		{"none", "127.0.0.1 ::1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := New(Options{}).admit("x.example", resolver(map[string]string{"x": c.addresses}).addresses["x"])
			if text := strings.Trim(fmt.Sprint(got), "[]"); text != c.want {
				t.Errorf("admitted %q, want %q", text, c.want)
			}
			if (err != nil) != (c.want == "") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestConnectChecksOnceMore goes around DialContext: the socket itself refuses.
func TestConnectChecksOnceMore(t *testing.T) {
	t.Parallel()
	port, accepted := listen(t, "127.0.0.1")
	_, err := New(Options{}).connect(t.Context(), "tcp", netip.MustParseAddrPort("127.0.0.1:"+port))
	if !errors.Is(err, ErrRefused) || accepted.Load() != 0 {
		t.Errorf("error %v, %d connections came in", err, accepted.Load())
	}
}

// TestRebinding has a name that is public when it is first asked for and this machine afterwards.
// The guard asks once a dial, and each answer is checked for itself.
func TestRebinding(t *testing.T) {
	t.Parallel()
	port, accepted := listen(t, "127.0.0.1")
	turning := &turningResolver{answers: []string{"127.0.0.2", "127.0.0.1"}}
	guard := New(Options{Resolver: turning})
	guard.judge = func(a netip.Addr) string { // 127.0.0.2 plays the public internet
		if a == netip.MustParseAddr("127.0.0.2") {
			return ""
		}
		return refusal(a)
	}
	target := net.JoinHostPort("rebind.example", port)
	if _, err := guard.DialContext(t.Context(), "tcp", target); Classify(err) != CauseConnect {
		t.Errorf("first dial: %v, want a refused connection to 127.0.0.2", err)
	}
	if n := turning.asked.Load(); n != 1 {
		t.Errorf("the name was resolved %d times for one dial", n)
	}
	if _, err := guard.DialContext(t.Context(), "tcp", target); !errors.Is(err, ErrRefused) {
		t.Errorf("second dial: %v, want a refusal", err)
	}
	if accepted.Load() != 0 {
		t.Error("a connection came in")
	}
}

type turningResolver struct {
	answers []string
	asked   atomic.Int64
}

func (r *turningResolver) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	n := min(int(r.asked.Add(1)), len(r.answers))
	return []netip.Addr{netip.MustParseAddr(r.answers[n-1])}, nil
}

// closing is a connection that tells when it is closed.
type closing struct {
	net.Conn
	closed atomic.Bool
}

func (c *closing) Close() error { c.closed.Store(true); return nil }

func TestRace(t *testing.T) {
	t.Parallel()
	one, two, three := netip.MustParseAddr("8.8.8.1"), netip.MustParseAddr("8.8.8.2"), netip.MustParseAddr("8.8.8.3")
	errOne, errTwo := errors.New("one"), errors.New("two")
	t.Run("a silent address is passed by", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			winner, began := &closing{}, time.Now()
			conn, err := race(t.Context(), []netip.Addr{one, two}, func(ctx context.Context, at netip.Addr) (net.Conn, error) {
				if at == two {
					return winner, nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			})
			if conn != net.Conn(winner) || err != nil || time.Since(began) != nextAddressAfter {
				t.Errorf("%v, %v after %v", conn, err, time.Since(began))
			}
		})
	})
	t.Run("a failed address is passed by at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			winner, began := &closing{}, time.Now()
			conn, err := race(t.Context(), []netip.Addr{one, two}, func(_ context.Context, at netip.Addr) (net.Conn, error) {
				if at == one {
					return nil, errOne
				}
				return winner, nil
			})
			if conn != net.Conn(winner) || err != nil || time.Since(began) != 0 {
				t.Errorf("%v, %v after %v", conn, err, time.Since(began))
			}
		})
	})
	t.Run("who comes second is closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conns := map[netip.Addr]*closing{one: {}, two: {}, three: {}}
			conn, err := race(t.Context(), []netip.Addr{one, two, three}, func(_ context.Context, at netip.Addr) (net.Conn, error) {
				time.Sleep(map[netip.Addr]time.Duration{one: 10 * time.Second, two: 5 * time.Second, three: time.Second}[at])
				return conns[at], nil
			})
			if conn != net.Conn(conns[three]) || err != nil {
				t.Fatalf("%v, %v", conn, err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if !conns[one].closed.Load() || !conns[two].closed.Load() || conns[three].closed.Load() {
				t.Error("the wrong connections are closed")
			}
		})
	})
	t.Run("all fail", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, err := race(t.Context(), []netip.Addr{one, two}, func(_ context.Context, at netip.Addr) (net.Conn, error) {
				return nil, map[netip.Addr]error{one: errOne, two: errTwo}[at]
			})
			if err != errOne {
				t.Errorf("error %v, want that of the first", err)
			}
		})
	})
	t.Run("time is up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := race(ctx, []netip.Addr{one, two}, func(ctx context.Context, _ netip.Addr) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
			if Classify(err) != CauseTimeout {
				t.Errorf("error %v", err)
			}
		})
	})
}
