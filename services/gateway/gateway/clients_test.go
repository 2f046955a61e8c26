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

func request(remote string, xff, forwarded []string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = remote
	if xff != nil {
		r.Header["X-Forwarded-For"] = xff
	}
	if forwarded != nil {
		r.Header["Forwarded"] = forwarded
	}
	return r
}

func TestOf(t *testing.T) {
	t.Parallel()
	nobody := proxies{}
	one := proxies(prefixes("10.0.0.1/32"))
	chain := proxies(prefixes("10.0.0.0/8", "2001:db8:ffff::/48", "203.0.113.9/32"))
	const proxy = "10.0.0.1:5"
	for name, c := range map[string]struct {
		resolver       proxies
		remote         string
		xff, forwarded []string
		want           string
	}{
		"nobody is trusted":            {nobody, proxy, []string{"198.51.100.7"}, nil, "10.0.0.1"},
		"the peer is no proxy":         {one, "192.0.2.1:5", []string{"198.51.100.7"}, nil, "192.0.2.1"},
		"a proxy that says nothing":    {one, proxy, nil, nil, "10.0.0.1"},
		"one hop":                      {one, proxy, []string{"198.51.100.7"}, nil, "198.51.100.7"},
		"what the client made up":      {one, proxy, []string{"6.6.6.6, 198.51.100.7"}, nil, "198.51.100.7"},
		"its own address made up":      {one, proxy, []string{"6.6.6.6, 10.0.0.2, 198.51.100.7"}, nil, "198.51.100.7"},
		"several headers":              {one, proxy, []string{"6.6.6.6", "203.0.113.5,198.51.100.7:443"}, nil, "198.51.100.7"},
		"a chain":                      {chain, proxy, []string{"6.6.6.6, 198.51.100.7, 203.0.113.9, 10.1.1.1"}, nil, "198.51.100.7"},
		"a chain over IPv6":            {chain, "[2001:db8:ffff::1]:9", []string{"2001:db8::5, 2001:db8:ffff::2"}, nil, "2001:db8::5"},
		"only proxies":                 {chain, proxy, []string{"10.2.2.2, 10.3.3.3"}, nil, "10.2.2.2"},
		"more hops than are taken":     {chain, proxy, []string{"198.51.100.7" + strings.Repeat(", 10.0.0.9", 20)}, nil, "10.0.0.9"},
		"not an address":               {one, proxy, []string{"198.51.100.7, nonsense"}, nil, "10.0.0.1"},
		"not an address further left":  {chain, proxy, []string{"198.51.100.7, nonsense, 10.9.9.9"}, nil, "10.9.9.9"},
		"empty":                        {one, proxy, []string{""}, nil, "10.0.0.1"},
		"an empty entry":               {one, proxy, []string{"198.51.100.7,"}, nil, "10.0.0.1"},
		"too long":                     {one, proxy, []string{strings.Repeat("1.1.1.1,", 1000) + "198.51.100.7"}, nil, "10.0.0.1"},
		"brackets and a port":          {one, proxy, []string{"[2001:db8::1]:80"}, nil, "2001:db8::1"},
		"brackets":                     {one, proxy, []string{"[2001:db8::1]"}, nil, "2001:db8::1"},
		"an open bracket":              {one, proxy, []string{"[2001:db8::1"}, nil, "10.0.0.1"},
		"something behind the bracket": {one, proxy, []string{"[2001:db8::1]80"}, nil, "10.0.0.1"},
		"IPv4 in brackets":             {one, proxy, []string{"[198.51.100.7]"}, nil, "10.0.0.1"},
		"a port that is none":          {one, proxy, []string{"198.51.100.7:x"}, nil, "10.0.0.1"},
		"a port beyond all":            {one, proxy, []string{"198.51.100.7:65536"}, nil, "10.0.0.1"},
		"a zone":                       {one, proxy, []string{"fe80::1%eth0"}, nil, "10.0.0.1"},
		"no host's address":            {one, proxy, []string{"0.0.0.0"}, nil, "10.0.0.1"},
		"quotes":                       {one, proxy, []string{`"198.51.100.7"`}, nil, "10.0.0.1"},
		"IPv4 in IPv6":                 {one, "[::ffff:10.0.0.1]:5", []string{"::ffff:198.51.100.7"}, nil, "198.51.100.7"},
		"a peer without an address":    {one, "pipe", []string{"198.51.100.7"}, nil, "invalid IP"},

		"RFC 7239":                {one, proxy, nil, []string{"for=198.51.100.7"}, "198.51.100.7"},
		"RFC 7239, all of it":     {one, proxy, nil, []string{`for=6.6.6.6, For="[2001:db8:cafe::17]:4711"; proto=https;by=203.0.113.43`}, "2001:db8:cafe::17"},
		"a quoted pair":           {one, proxy, nil, []string{`for="198.51.100\.7"`}, "10.0.0.1"},
		"several Forwarded":       {chain, proxy, nil, []string{"for=198.51.100.7", "for=10.2.2.2"}, "198.51.100.7"},
		"a port not told":         {one, proxy, nil, []string{`for="198.51.100.7:_x1"`}, "198.51.100.7"},
		"obfuscated":              {one, proxy, nil, []string{"for=_hidden"}, "10.0.0.1"},
		"obfuscated further left": {chain, proxy, nil, []string{"for=_hidden, for=10.2.2.2"}, "10.2.2.2"},
		"unknown":                 {one, proxy, nil, []string{"for=unknown"}, "10.0.0.1"},
		"no for":                  {one, proxy, nil, []string{"for=198.51.100.7, proto=https"}, "10.0.0.1"},
		"for twice":               {one, proxy, nil, []string{"for=198.51.100.7;for=6.6.6.6"}, "10.0.0.1"},
		"IPv6 without quotes":     {one, proxy, nil, []string{"for=[2001:db8::1]"}, "10.0.0.1"},
		"a quote left open":       {one, proxy, nil, []string{`for=6.6.6.6;x=", for=198.51.100.7`}, "10.0.0.1"},
		"a quote that eats ours":  {one, proxy, nil, []string{`for=6.6.6.6;x="`, `for="[2001:db8::1]"`}, "10.0.0.1"},
		"space around =":          {one, proxy, nil, []string{"for = 198.51.100.7"}, "198.51.100.7"},

		"both agree":            {one, proxy, []string{"198.51.100.7"}, []string{"for=198.51.100.7"}, "198.51.100.7"},
		"a Forwarded made up":   {one, proxy, []string{"198.51.100.7"}, []string{"for=6.6.6.6"}, "10.0.0.1"},
		"an X-Forwarded-For so": {one, proxy, []string{"6.6.6.6"}, []string{"for=198.51.100.7"}, "10.0.0.1"},
	} {
		if got := c.resolver.client(request(c.remote, c.xff, c.forwarded)).String(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// FuzzOf: whatever a client sends, a proxy that adds the client's address behind it is believed, or
// else only the proxy's own address is: never one that the client chose.
func FuzzOf(f *testing.F) {
	for _, seed := range []string{"", "6.6.6.6", `for="`, `for=6.6.6.6;x="`, "for=6.6.6.6, for=", "[2001:db8::1]:80", "a, b", "10.0.0.1", `for="\`} {
		f.Add(seed, seed)
	}
	resolver := proxies(prefixes("10.0.0.1/32"))
	f.Fuzz(func(t *testing.T, xff, forwarded string) {
		for _, r := range []*http.Request{
			request("10.0.0.1:1", []string{xff + ", 198.51.100.7"}, nil),
			request("10.0.0.1:1", nil, []string{forwarded + ", for=198.51.100.7"}),
			request("10.0.0.1:1", nil, []string{forwarded, `for="198.51.100.7"`}),
			request("10.0.0.1:1", []string{xff, "198.51.100.7"}, []string{forwarded}),
		} {
			if got := resolver.client(r).String(); got != "198.51.100.7" && got != "10.0.0.1" {
				t.Fatalf("%v: %s", r.Header, got)
			}
		}
	})
}
