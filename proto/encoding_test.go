package proto

import (
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
	if _, err := EncodeRelay(""); err == nil {
		t.Error("EncodeRelay took the empty string")
	}
	if _, err := EncodeRelay(long); err == nil {
		t.Error("EncodeRelay took a name that is too long")
	}
	if _, err := EncodeIdentifier(long); err == nil {
		t.Error("EncodeIdentifier took an identifier that is too long")
	}
	for _, name := range []string{"", ".a", "a.", "a..b", "a b", "a>", "*", "=", "=4", "=4g", "=61", "=2e", "a:b", long} {
		if key, err := DecodeRelay(name); err == nil {
			t.Errorf("DecodeRelay(%q) = %q, want an error", name, key)
		}
	}
	for _, token := range []string{"", "a.b", "a b", "a/b", "==", "=4", "=61", "=2e", "é", long} {
		if identifier, err := DecodeIdentifier(token); err == nil {
			t.Errorf("DecodeIdentifier(%q) = %q, want an error", token, identifier)
		}
	}
}

// validSubject is what NATS asks of a subject to publish to: tokens that are not empty, no
// wildcard, no white space.
func validSubject(s string) bool {
	for _, token := range strings.Split(s, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t\r\n\x00") {
			return false
		}
	}
	return true
}

// validKey is what nats.go asks of the key of a bucket.
func validKey(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isPlain(c) && !strings.ContainsRune("-/_=.", rune(c)) {
			return false
		}
	}
	return validSubject(s)
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
