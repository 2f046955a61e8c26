package nostr_test

import (
	"net/url"
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

func TestNormalizeRelayURL(t *testing.T) {
	t.Parallel()
	for _, c := range fixture.Rows(`
		wss://relay.example             | wss://relay.example         | relay.example
		relay.example                   | wss://relay.example         | relay.example
		WSS://Relay.Example/            | wss://relay.example         | relay.example
		https://relay.example           | wss://relay.example         | relay.example
		http://relay.example            | ws://relay.example          | relay.example:80
		ws://relay.example:80           | ws://relay.example          | relay.example:80
		wss://relay.example:80          | wss://relay.example:80      | relay.example:80
		ws://relay.example:443          | ws://relay.example:443      | relay.example
		ws://relay.example:7000         | ws://relay.example:7000     | relay.example:7000
		wss://relay.example:07000       | wss://relay.example:7000    | relay.example:7000
		wss://relay.example.            | wss://relay.example         | relay.example
		wss://relay.example/Path/       | wss://relay.example/Path    | relay.example/Path
		wss://relay.example/a%20b       | wss://relay.example/a%20b   | relay.example/a%20b
		wss://relay.example/?x=y#z      | wss://relay.example         | relay.example
		wss://[2001:DB8::0:1]:7000/x    | wss://[2001:db8::1]:7000/x  | [2001:db8::1]:7000/x
		ws://[::1]/a:b                  | ws://[::1]/a:b              | [::1]:80/a:b
		wss://bücher.example            | wss://xn--bcher-kva.example | xn--bcher-kva.example`) {
		if got, err := NormalizeRelayURL(c[0]); err != nil || string(got) != c[1] || got.Key() != c[2] {
			t.Errorf("NormalizeRelayURL(%q) = %q, %v, with the key %q; want %q, %q", c[0], got, err, got.Key(), c[1], c[2])
		}
	}
}

func TestNormalizeRelayURLRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range append(strings.Fields(`wss:// wss:///path ftp://relay.example file:///etc/passwd javascript:alert(1) mailto:a@b.example
		wss://user@relay.example wss://user:pass@relay.example wss://relay.example:0 wss://relay.example:65536 wss://relay.example:x wss://relay.example:-1
		wss://[::1 wss://[fe80::1%25eth0] wss://relay..example wss://.relay.example wss://relay*example wss://relay.example/%zz wss://%72elay.example/
		wss://a,b wss://wss://relay.example wss://relay.example: ://relay.example`), "", " ", "wss://relay.example\n", "wss://relay.example/\x00", "wss://rel ay.example",
		"wss://"+strings.Repeat("x", 254), "wss://relay.example/"+strings.Repeat("x", 512), "wss://relay.example\u0085") {
		if got, err := NormalizeRelayURL(s); err == nil {
			t.Errorf("NormalizeRelayURL(%q) = %q, want an error", s, got)
		}
	}
}

func TestNormalizeCloneURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://Git.Example/Someone/x.git":  "https://git.example/Someone/x.git",
		"HTTP://git.example:80/x.git/":       "http://git.example/x.git",
		"https://git.example:443":            "https://git.example",
		" https://git.example:8443/x ":       "https://git.example:8443/x",
		"https://git.example/a%2Fb.git":      "https://git.example/a%2Fb.git",
		"https://[::1]:3000/x":               "https://[::1]:3000/x",
		"https://git.example/x/../y":         "https://git.example/x/../y",
		"https://git.example/--upload-pack=": "https://git.example/--upload-pack=",
		"https://user@git.example:8443/x@y":  "https://git.example:8443/x@y",
	} {
		if got, err := NormalizeCloneURL(in); err != nil || got != want {
			t.Errorf("NormalizeCloneURL(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
	for _, s := range append(strings.Fields(`git.example/x.git ssh://git@git.example/x git@git.example:x.git git://git.example/x file:///srv/x /srv/x.git
		--upload-pack=x https://u:p@git.example/x https://git.example/x?y https://git.example/x? https://git.example/x#y https:///x`),
		"", "ext::sh -c x", "https://git.example/a b", "https://git.example/\n", "https://git.example/"+strings.Repeat("x", 2048)) {
		if got, err := NormalizeCloneURL(s); err == nil {
			t.Errorf("NormalizeCloneURL(%q) = %q, want an error", s, got)
		}
	}
}

func FuzzNormalizeRelayURL(f *testing.F) {
	for _, seed := range []string{
		"wss://relay.example", "relay.example:7000/x", "WS://[::1]:80/", "wss://ß.example", "http://a//b%2F/", "wss://１２７.0.0.1", "wss://a/\"", "wss://[v1.x]",
		"wss://%5B::1%5D", "wss://a:b@c", "wss://xn--a", "wss://a.。",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := NormalizeRelayURL(s)
		if err != nil {
			return
		}
		if again, err := NormalizeRelayURL(string(u)); err != nil || again != u {
			t.Fatalf("%q became %q, then %q, %v", s, u, again, err)
		}
		parsed, err := url.Parse(string(u))
		if err != nil || parsed.Host == "" || parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
			t.Fatalf("%q became %q: %+v, %v", s, u, parsed, err)
		}
		key := u.Key()
		other := RelayURL("wss://" + strings.TrimSuffix(key, "/"))
		if normal, err := NormalizeRelayURL(string(other)); err != nil || normal.Key() != key {
			t.Fatalf("the key %q of %q is not its own: %q, %v", key, u, normal.Key(), err)
		}
	})
}
