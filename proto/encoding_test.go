package proto

import (
	"strings"
	"testing"
)

func TestEncodeRelay(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ key, want string }{
		{"relay.example.com", "relay.example.com"},
		{"relay.example.com:8080", "relay.example.com_8080"},
		{"relay.example.com/inner/path", "relay.example.com/inner/path"},
		{"127.0.0.1:7777", "127.0.0.1_7777"},
		{"[::1]:7777", "=5B__1=5D_7777"},
		{"under_score.example.com", "under=5Fscore.example.com"},
		{"a..b", "a.=2Eb"},
		{".a.", "=2Ea=2E"},
		{"a *>b", "a=20=2A=3Eb"},
		{"=", "=3D"},
		{"ünïcode", "=C3=BCn=C3=AFcode"},
	} {
		got, err := EncodeRelay(tc.key)
		if err != nil || got != tc.want {
			t.Errorf("EncodeRelay(%q) = %q, %v; want %q", tc.key, got, err, tc.want)
			continue
		}
		if back, err := DecodeRelay(got); err != nil || back != tc.key {
			t.Errorf("DecodeRelay(%q) = %q, %v; want %q", got, back, err, tc.key)
		}
	}
}

func TestEncodeIdentifier(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ identifier, want string }{
		{"", "="},
		{"tendril", "tendril"},
		{"my_repo-2", "my_repo-2"},
		{"a.b", "a=2Eb"},
		{"a:b/c", "a=3Ab=2Fc"},
		{"..", "=2E=2E"},
		{"with space", "with=20space"},
		{"🌱", "=F0=9F=8C=B1"},
		{"\x00", "=00"},
	} {
		got, err := EncodeIdentifier(tc.identifier)
		if err != nil || got != tc.want {
			t.Errorf("EncodeIdentifier(%q) = %q, %v; want %q", tc.identifier, got, err, tc.want)
			continue
		}
		if back, err := DecodeIdentifier(got); err != nil || back != tc.identifier {
			t.Errorf("DecodeIdentifier(%q) = %q, %v; want %q", got, back, err, tc.identifier)
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

func FuzzEncodeRelay(f *testing.F) {
	for _, seed := range []string{"relay.example.com", "a..b", "[::1]:80", "x:1/y", "\xff", "=", "_"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		name, err := EncodeRelay(key)
		if err != nil {
			return
		}
		if !validKey(name) {
			t.Fatalf("EncodeRelay(%q) = %q, which is no key", key, name)
		}
		if back, err := DecodeRelay(name); err != nil || back != key {
			t.Fatalf("DecodeRelay(%q) = %q, %v; want %q", name, back, err, key)
		}
	})
}

func FuzzDecodeRelay(f *testing.F) {
	for _, seed := range []string{"relay.example.com", "a=2E", "=5B__1=5D_7777", "=", "a..b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		key, err := DecodeRelay(name)
		if err != nil {
			return
		}
		if again, err := EncodeRelay(key); err != nil || again != name {
			t.Fatalf("%q decodes to %q, which encodes to %q, %v", name, key, again, err)
		}
	})
}

func FuzzEncodeIdentifier(f *testing.F) {
	for _, seed := range []string{"", "tendril", "../..", "a b", "🌱", "\x00", "="} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, identifier string) {
		token, err := EncodeIdentifier(identifier)
		if err != nil {
			return
		}
		if !validKey(token) || strings.Contains(token, ".") {
			t.Fatalf("EncodeIdentifier(%q) = %q, which is not one token", identifier, token)
		}
		if back, err := DecodeIdentifier(token); err != nil || back != identifier {
			t.Fatalf("DecodeIdentifier(%q) = %q, %v; want %q", token, back, err, identifier)
		}
	})
}

func FuzzDecodeIdentifier(f *testing.F) {
	for _, seed := range []string{"=", "tendril", "=2E=2E", "=4", "a.b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		identifier, err := DecodeIdentifier(token)
		if err != nil {
			return
		}
		if again, err := EncodeIdentifier(identifier); err != nil || again != token {
			t.Fatalf("%q decodes to %q, which encodes to %q, %v", token, identifier, again, err)
		}
	})
}
