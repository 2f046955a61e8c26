package proto

import (
	"slices"
	"strings"
	"testing"
)

func TestEncodings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		encode, decode func(string) (string, error)
		want           map[string]string
	}{
		{"relay", EncodeRelay, DecodeRelay, map[string]string{
			"relay.example.com": "relay.example.com", "relay.example.com:8080": "relay.example.com_8080",
			"relay.example.com/inner/path": "relay.example.com/inner/path", "127.0.0.1:7777": "127.0.0.1_7777",
			"[::1]:7777": "=5B__1=5D_7777", "under_score.example.com": "under=5Fscore.example.com", "a..b": "a.=2Eb", ".a.": "=2Ea=2E",
			"a *>b": "a=20=2A=3Eb", "=": "=3D", "ünïcode": "=C3=BCn=C3=AFcode",
		}},
		{"identifier", EncodeIdentifier, DecodeIdentifier, map[string]string{
			"": "=", "tendril": "tendril", "my_repo-2": "my_repo-2", "a.b": "a=2Eb", "a:b/c": "a=3Ab=2Fc", "..": "=2E=2E",
			"with space": "with=20space", "🌱": "=F0=9F=8C=B1", "\x00": "=00",
		}},
	} {
		for text, want := range c.want {
			got, err := c.encode(text)
			back, backErr := c.decode(got)
			if err != nil || backErr != nil || got != want || back != text {
				t.Errorf("%s %q = %q, %v; want %q; back %q, %v", c.name, text, got, err, want, back, backErr)
			}
		}
	}
}

func TestEncodingsRefuse(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", MaxEncodedLength+1)
	for name, c := range map[string]struct {
		take func(string) (string, error)
		bad  []string
	}{
		"EncodeRelay":      {EncodeRelay, []string{"", long}},
		"EncodeIdentifier": {EncodeIdentifier, []string{long}},
		"DecodeRelay":      {DecodeRelay, []string{"", ".a", "a.", "a..b", "a b", "a>", "*", "=", "=4", "=4g", "=61", "=2e", "a:b", long}},
		"DecodeIdentifier": {DecodeIdentifier, []string{"", "a.b", "a b", "a/b", "==", "=4", "=61", "=2e", "é", long}},
	} {
		for _, text := range c.bad {
			if got, err := c.take(text); err == nil {
				t.Errorf("%s(%q) = %q, want an error", name, text, got)
			}
		}
	}
}

// validKey is what nats.go asks of the key of a bucket, and NATS of a subject to publish to: tokens
// that are not empty, no wildcard, no white space.
func validKey(s string) bool {
	return !slices.Contains(strings.Split(s, "."), "") && !strings.ContainsFunc(s, func(r rune) bool {
		return r > 'z' || !isPlain(byte(r)) && !strings.ContainsRune("-/_=.", r)
	})
}

// FuzzEncodings: what is encoded is a key and decodes to the same; what is decoded encodes to the
// same.
func FuzzEncodings(f *testing.F) {
	for _, seed := range []string{"", "relay.example.com", "a..b", "[::1]:80", "../..", "\xff", "=", "_", "a=2E", "=5B__1=5D_7777", "=4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range []struct{ encode, decode func(string) (string, error) }{{EncodeRelay, DecodeRelay}, {EncodeIdentifier, DecodeIdentifier}} {
			if encoded, err := c.encode(text); err == nil {
				if back, err := c.decode(encoded); err != nil || back != text || !validKey(encoded) {
					t.Fatalf("%q is %q, and back %q, %v", text, encoded, back, err)
				}
			}
			if decoded, err := c.decode(text); err == nil {
				if again, err := c.encode(decoded); err != nil || again != text {
					t.Fatalf("%q decodes to %q, which is %q, %v", text, decoded, again, err)
				}
			}
		}
	})
}
