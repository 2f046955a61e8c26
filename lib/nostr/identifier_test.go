package nostr_test

import (
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
)

func TestEncodeIdentifier(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"My_Repo-2.0": "My_Repo-2.0", "": "%", "..": "%2E.", ".git": "%2Egit", "-rf": "%2Drf", "../../etc": "%2E.%2F..%2Fetc", "50%": "50%25", "a\x00b": "a%00b", "ä*": "%C3%A4%2A",
	} {
		if got := EncodeIdentifier(id); got != want {
			t.Errorf("EncodeIdentifier(%q) = %q, want %q", id, got, want)
		}
		if got, err := DecodeIdentifier(want); err != nil || got != id {
			t.Errorf("DecodeIdentifier(%q) = %q, %v, want %q", want, got, err, id)
		}
	}
}

func TestDecodeIdentifierTakesOnlyTheCanonicalForm(t *testing.T) {
	t.Parallel()
	for _, s := range append(strings.Fields(". .. .a -a a/b a%2fb %61 a% a%2 a%zz %% ä %2E%2E"), "", "a b", "a\x00") {
		if id, err := DecodeIdentifier(s); err == nil {
			t.Errorf("DecodeIdentifier(%q) = %q, want an error", s, id)
		}
	}
}

func TestCheckIdentifier(t *testing.T) {
	t.Parallel()
	for id, wrong := range map[string]string{
		"tendril": "", "a:b/c d%*": "", "..": "", "リポジトリ": "", strings.Repeat("x", 200): "", "": "missing or empty",
		strings.Repeat("x", 201): "longer than 200", strings.Repeat("ä", 34): "longer than 200",
		"a\x00b": "control", "a\nb": "control", "a\x7f": "control", "a\u0085": "control", "a\xff": "UTF-8",
	} {
		mentions(t, id, CheckIdentifier(id), wrong)
	}
}

func FuzzEncodeIdentifier(f *testing.F) {
	for _, seed := range []string{"", ".", "..", "a/b", "%2F", "-", "\x00", "ä", "a%", "x.git"} {
		f.Add(seed, seed+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		encoded := EncodeIdentifier(a)
		if encoded == "" || encoded[0] == '.' || encoded[0] == '-' {
			t.Fatalf("EncodeIdentifier(%q) = %q is no safe name", a, encoded)
		}
		for _, r := range []byte(encoded) {
			if r != '%' && r != '.' && r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
				t.Fatalf("EncodeIdentifier(%q) = %q contains %q", a, encoded, r)
			}
		}
		if back, err := DecodeIdentifier(encoded); err != nil || back != a {
			t.Fatalf("%q came back from %q as %q, %v", a, encoded, back, err)
		}
		if a != b && encoded == EncodeIdentifier(b) {
			t.Fatalf("%q and %q share the name %q", a, b, encoded)
		}
		if id, err := DecodeIdentifier(a); err == nil && EncodeIdentifier(id) != a {
			t.Fatalf("DecodeIdentifier took %q, which is written %q", a, EncodeIdentifier(id))
		}
		if CheckIdentifier(a) == nil && len(encoded) > MaxIdentifier {
			t.Fatalf("CheckIdentifier let %q pass, which takes %d bytes", a, len(encoded))
		}
	})
}
