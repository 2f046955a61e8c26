package gateway

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func prefixes(given ...string) (all []netip.Prefix) {
	for _, s := range given {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func request(remote string, xff []string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr, r.Header["X-Forwarded-For"] = remote, xff
	return r
}

func TestClient(t *testing.T) {
	t.Parallel()
	none := proxies{}
	one := proxies(prefixes("10.0.0.1/32"))
	chain := proxies(prefixes("10.0.0.0/8", "2001:db8:ffff::/48", "203.0.113.9/32"))
	const proxy = "10.0.0.1:5"
	for name, c := range map[string]struct {
		trusted proxies
		remote  string
		xff     []string
		want    string
	}{
		"none is trusted":              {none, proxy, []string{"198.51.100.7"}, "10.0.0.1"},
		"the peer is no proxy":         {one, "192.0.2.1:5", []string{"198.51.100.7"}, "192.0.2.1"},
		"a proxy that says nothing":    {one, proxy, nil, "10.0.0.1"},
		"what the client made up":      {one, proxy, []string{"6.6.6.6, 198.51.100.7"}, "198.51.100.7"},
		"its own address made up":      {one, proxy, []string{"6.6.6.6, 10.0.0.2, 198.51.100.7"}, "198.51.100.7"},
		"a chain":                      {chain, proxy, []string{"6.6.6.6, 198.51.100.7, 203.0.113.9, 10.1.1.1"}, "198.51.100.7"},
		"only proxies":                 {chain, proxy, []string{"10.2.2.2, 10.3.3.3"}, "10.2.2.2"},
		"more hops than are taken":     {chain, proxy, []string{"198.51.100.7" + strings.Repeat(", 10.0.0.9", 20)}, "10.0.0.9"},
		"not an address":               {one, proxy, []string{"198.51.100.7, nonsense"}, "10.0.0.1"},
		"empty":                        {one, proxy, []string{""}, "10.0.0.1"},
		"too long":                     {one, proxy, []string{strings.Repeat("1.1.1.1,", 1000) + "198.51.100.7"}, "10.0.0.1"},
		"brackets and a port":          {one, proxy, []string{"[2001:db8::1]:80"}, "2001:db8::1"},
		"something behind the bracket": {one, proxy, []string{"[2001:db8::1]80"}, "10.0.0.1"},
		"a port that is none":          {one, proxy, []string{"198.51.100.7:x"}, "10.0.0.1"},
		"a zone":                       {one, proxy, []string{"fe80::1%eth0"}, "10.0.0.1"},
		"no host's address":            {one, proxy, []string{"0.0.0.0"}, "10.0.0.1"},
		"IPv4 in IPv6":                 {one, "[::ffff:10.0.0.1]:5", []string{"::ffff:198.51.100.7"}, "198.51.100.7"},
		"a peer without an address":    {one, "pipe", []string{"198.51.100.7"}, "invalid IP"},
	} {
		if got := c.trusted.client(request(c.remote, c.xff)).String(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// FuzzClient: a client may send anything. A proxy that adds the client's address behind it is
// believed, or else only the proxy's own address is: never one that the client chose.
func FuzzClient(f *testing.F) {
	for _, seed := range []string{"", "6.6.6.6", `"`, "[2001:db8::1]:80", "a, b", "10.0.0.1", `\`, "198.51.100.8,"} {
		f.Add(seed)
	}
	trusted := proxies(prefixes("10.0.0.1/32"))
	f.Fuzz(func(t *testing.T, given string) {
		for _, xff := range [][]string{{given + ", 198.51.100.7"}, {given, "198.51.100.7"}} {
			if got := trusted.client(request("10.0.0.1:1", xff)).String(); got != "198.51.100.7" && got != "10.0.0.1" {
				t.Fatalf("%q: %s", xff, got)
			}
		}
	})
}
