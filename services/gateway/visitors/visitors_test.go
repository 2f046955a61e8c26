package visitors_test

import (
	"net/http/httptest"
	"net/netip"
	"testing"

	"tendril.dev/services/gateway/visitors"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	r := visitors.NewRegister(4, 2)
	enter := func(addr string) (func(), error) { return r.Enter(netip.MustParseAddr(addr)) }
	must := func(addr string) func() {
		t.Helper()
		leave, err := enter(addr)
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		return leave
	}
	first := must("192.0.2.1")
	must("::ffff:192.0.2.1") // the same in IPv6 clothes
	if _, err := enter("192.0.2.1"); err != visitors.ErrTooMany {
		t.Errorf("third of an address: %v", err)
	}
	must("2001:db8:1:2::1")
	must("2001:db8:1:2:ffff::9")
	if _, err := enter("2001:db8:1:3::1"); err != visitors.ErrFull {
		t.Errorf("fifth in all: %v", err)
	}
	if total, addresses, over := r.Counts(1); total != 4 || addresses != 2 || over != 2 {
		t.Errorf("counts: %d, %d, %d", total, addresses, over)
	}
	first()
	first() // twice changes nothing
	if _, err := enter("2001:db8:1:2::7"); err != visitors.ErrTooMany {
		t.Errorf("third of a /64: %v", err)
	}
	must("192.0.2.1")
	if total, addresses, over := r.Counts(2); total != 4 || addresses != 2 || over != 0 {
		t.Errorf("counts: %d, %d", total, addresses)
	}
	if _, err := visitors.NewRegister(1, 1).Enter(netip.Addr{}); err != nil {
		t.Errorf("unknown address: %v", err)
	}
}

func TestAddr(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		remote    string
		forwarded []string
		trust     bool
		want      string
	}{
		{"192.0.2.1:5", nil, false, "192.0.2.1"},
		{"192.0.2.1:5", []string{"198.51.100.7"}, false, "192.0.2.1"},
		{"192.0.2.1:5", []string{"198.51.100.7"}, true, "198.51.100.7"},
		{"192.0.2.1:5", []string{"10.0.0.1, 198.51.100.7"}, true, "198.51.100.7"},
		{"192.0.2.1:5", []string{"10.0.0.1", "203.0.113.5,198.51.100.7:443"}, true, "198.51.100.7"},
		{"192.0.2.1:5", []string{"10.0.0.1, nonsense"}, true, "192.0.2.1"},
		{"192.0.2.1:5", []string{""}, true, "192.0.2.1"},
		{"192.0.2.1:5", []string{"[2001:db8::1]:80"}, true, "2001:db8::1"},
		{"192.0.2.1:5", []string{"::ffff:198.51.100.7"}, true, "198.51.100.7"},
		{"[2001:db8::2]:5", nil, true, "2001:db8::2"},
		{"pipe", nil, true, "invalid IP"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.remote
		r.Header["X-Forwarded-For"] = c.forwarded
		if got := visitors.Addr(r, c.trust).String(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
