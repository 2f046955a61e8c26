package gateway

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"tendril.dev/test/fixture"
)

func trusting(networks string) (all proxies) {
	for s := range strings.FieldsSeq(networks) {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func request(remote string, xff ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr, r.Header["X-Forwarded-For"] = remote, xff
	return r
}

// TestClient: a row has the trusted networks, the peer, what X-Forwarded-For says ("-": there is
// none), and the client's address.
func TestClient(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("ONE", "10.0.0.1/32", "CHAIN", "10.0.0.0/8 2001:db8:ffff::/48 203.0.113.9/32",
		"HOPS", strings.Repeat(", 10.0.0.9", 20), "LONG", strings.Repeat("1.1.1.1,", 1000))
	for _, c := range fixture.Rows(`
		none is trusted              |       | 10.0.0.1:5          | 198.51.100.7                                | 10.0.0.1
		the peer is no proxy         | ONE   | 192.0.2.1:5         | 198.51.100.7                                | 192.0.2.1
		a proxy that says nothing    | ONE   | 10.0.0.1:5          | -                                           | 10.0.0.1
		what the client made up      | ONE   | 10.0.0.1:5          | 6.6.6.6, 198.51.100.7                       | 198.51.100.7
		its own address made up      | ONE   | 10.0.0.1:5          | 6.6.6.6, 10.0.0.2, 198.51.100.7             | 198.51.100.7
		a chain                      | CHAIN | 10.0.0.1:5          | 6.6.6.6, 198.51.100.7, 203.0.113.9, 10.1.1.1 | 198.51.100.7
		only proxies                 | CHAIN | 10.0.0.1:5          | 10.2.2.2, 10.3.3.3                          | 10.2.2.2
		more hops than are taken     | CHAIN | 10.0.0.1:5          | 198.51.100.7HOPS                            | 10.0.0.9
		not an address               | ONE   | 10.0.0.1:5          | 198.51.100.7, nonsense                      | 10.0.0.1
		empty                        | ONE   | 10.0.0.1:5          |                                             | 10.0.0.1
		too long                     | ONE   | 10.0.0.1:5          | LONG198.51.100.7                            | 10.0.0.1
		brackets and a port          | ONE   | 10.0.0.1:5          | [2001:db8::1]:80                            | 2001:db8::1
		something behind the bracket | ONE   | 10.0.0.1:5          | [2001:db8::1]80                             | 10.0.0.1
		a port that is none          | ONE   | 10.0.0.1:5          | 198.51.100.7:x                              | 10.0.0.1
		a zone                       | ONE   | 10.0.0.1:5          | fe80::1%eth0                                | 10.0.0.1
		no host's address            | ONE   | 10.0.0.1:5          | 0.0.0.0                                     | 10.0.0.1
		IPv4 in IPv6                 | ONE   | [::ffff:10.0.0.1]:5 | ::ffff:198.51.100.7                         | 198.51.100.7
		a peer without an address    | ONE   | pipe                | 198.51.100.7                                | invalid IP`) {
		r := request(c[2], words.Replace(c[3]))
		if c[3] == "-" {
			r = request(c[2])
		}
		if got := trusting(words.Replace(c[1])).client(r).String(); got != c[4] {
			t.Errorf("%s: %s, want %s", c[0], got, c[4])
		}
	}
}

// FuzzClient: a client may send anything. A proxy that adds the client's address behind it is
// believed, or else only the proxy's own address is: never one that the client chose.
func FuzzClient(f *testing.F) {
	for _, seed := range []string{"", "6.6.6.6", `"`, "[2001:db8::1]:80", "a, b", "10.0.0.1", `\`, "198.51.100.8,"} {
		f.Add(seed)
	}
	trusted := trusting("10.0.0.1/32")
	f.Fuzz(func(t *testing.T, given string) {
		for _, xff := range [][]string{{given + ", 198.51.100.7"}, {given, "198.51.100.7"}} {
			if got := trusted.client(request("10.0.0.1:1", xff...)).String(); got != "198.51.100.7" && got != "10.0.0.1" {
				t.Fatalf("%q: %s", xff, got)
			}
		}
	})
}
