package secrets_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/services/purgatory/secrets"
)

// Tokens are put together here, so that no other scanner takes them for real ones.
var (
	githubToken = "ghp" + "_" + "R2d7kQ9xLm4TzV8bNc1WfYp3HsJ6aGu5EoKt"
	awsKey      = "AKIA" + "Q3EGZ5RT7VJ2LHWN"
	stripeKey   = "sk" + "_live_" + "51Hq8RtLkZmWvYx7Ns"
	pemBody     = "MC4CAQAwBQYDK2VwBCIEIFv7Zk1q3mYtW9xR8uJc2LdPa6oHsN0bTgXeQi4KwVzr"
)

func pem(kind, body, end string) string {
	return "-----BEGIN " + kind + "-----" + end + body + end + "-----END " + kind + "-----" + end
}

// secretKey is a made-up secret key as NIP-19 writes it.
func secretKey(t testing.TB) string {
	t.Helper()
	key, err := nip19.EncodePrivateKey("9c1f8a3be07d5264f1e0bb934c8d27a65d3f7e1982c4b6a0517e3d9f264b8ac5")
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestFind(t *testing.T) {
	t.Parallel()
	nsec := secretKey(t)
	npub, err := nip19.EncodePublicKey("9c1f8a3be07d5264f1e0bb934c8d27a65d3f7e1982c4b6a0517e3d9f264b8ac5")
	if err != nil {
		t.Fatal(err)
	}
	one, err := nip19.EncodePrivateKey(strings.Repeat("0", 63) + "1")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		content string
		want    []secrets.Finding
	}{
		"nostr key":               {"a\nb\nkey = " + nsec + "\n", []secrets.Finding{{"nostr-secret-key", 3}}},
		"nostr key at both ends":  {nsec, []secrets.Finding{{"nostr-secret-key", 1}}},
		"two keys":                {nsec + "\r\n\r\n" + nsec, []secrets.Finding{{"nostr-secret-key", 1}, {"nostr-secret-key", 3}}},
		"token":                   {"x\nexport GITHUB_TOKEN=" + githubToken + "\n", []secrets.Finding{{"github-pat", 2}}},
		"token in a string":       {`{"key":"` + awsKey + `"}`, []secrets.Finding{{"aws-access-token", 1}}},
		"token of two shapes":     {"stripe: " + stripeKey, []secrets.Finding{{"stripe-access-token", 1}}},
		"PEM":                     {"\n" + pem("PRIVATE KEY", pemBody, "\n"), []secrets.Finding{{"private-key", 2}}},
		"PEM with CRLF":           {pem("EC PRIVATE KEY", pemBody, "\r\n"), []secrets.Finding{{"private-key", 1}}},
		"PEM in a string":         {`key := "` + pem("OPENSSH PRIVATE KEY", pemBody, `\n`) + `"`, []secrets.Finding{{"private-key", 1}}},
		"PGP":                     {pem("PGP PRIVATE KEY BLOCK", "\n"+pemBody, "\n"), []secrets.Finding{{"private-key", 1}}},
		"token behind a key":      {pem("PRIVATE KEY", pemBody, "\n") + githubToken, []secrets.Finding{{"private-key", 1}, {"github-pat", 4}}},
		"PEM with headers":        {pem("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,3F17F5316E2BAC893F17F5316E2BAC89\n\n"+pemBody, "\n"), []secrets.Finding{{"private-key", 1}}},
		"key behind a token":      {githubToken + "\n" + pem("PRIVATE KEY", pemBody, "\n"), []secrets.Finding{{"github-pat", 1}, {"private-key", 2}}},
		"wrong checksum":          {strings.Replace(nsec, nsec[20:21], map[bool]string{true: "q", false: "p"}[nsec[20] != 'q'], 1), nil},
		"nostr key in words":      {"key\\n" + nsec + "x", []secrets.Finding{{"nostr-secret-key", 1}}},
		"public key":              {npub, nil},
		"key of NIP-19":           {"nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5", nil},
		"key that was made up":    {one, nil},
		"placeholder of a key":    {"nsec1..., nsec1" + strings.Repeat("x", 58), nil},
		"placeholder of a token":  {"ghp_" + strings.Repeat("x", 36) + " AKIAIOSFODNN7EXAMPLE", nil},
		"placeholder of PEM":      {pem("PRIVATE KEY", strings.Repeat("your key goes here ", 9), "\n"), nil},
		"dots of PEM":             {pem("RSA PRIVATE KEY", "...", "\n"), nil},
		"PEM that is cut off":     {"-----BEGIN PRIVATE KEY-----\n" + pemBody, nil},
		"public PEM":              {pem("PUBLIC KEY", pemBody, "\n"), nil},
		"certificate":             {pem("CERTIFICATE", pemBody+pemBody, "\n"), nil},
		"hashes":                  {"sha256:9c1f8a3be07d5264f1e0bb934c8d27a65d3f7e1982c4b6a0517e3d9f264b8ac5 h1:kQ9xLm4TzV8bNc1WfYp3HsJ6aGu5EoKtR2d7k=", nil},
		"allowed":                 {nsec + " # gitleaks:allow", nil},
		"allowed, the line after": {nsec + "\n# gitleaks:allow", []secrets.Finding{{"nostr-secret-key", 1}}},
		"allowed PEM":             {strings.Replace(pem("PRIVATE KEY", pemBody, "\n"), "KEY-----\n", "KEY----- gitleaks:allow\n", 1), nil},
		"binary":                  {"\x00" + nsec, nil},
		"binary, later":           {strings.Repeat("\n", 8000) + nsec + "\x00", []secrets.Finding{{"nostr-secret-key", 8001}}},
		"UTF-16, little-endian":   {"\xff\xfe" + utf16("Schlüssel:\r\n"+nsec, 0, 1), []secrets.Finding{{"nostr-secret-key", 2}}},
		"UTF-16, big-endian":      {"\xfe\xff" + utf16("\n\n"+githubToken, 1, 0), []secrets.Finding{{"github-pat", 3}}},
		"nothing":                 {"", nil},
	} {
		if got := secrets.Find([]byte(test.content)); !slices.Equal(got, test.want) {
			t.Errorf("%s: found %v, want %v", name, got, test.want)
		}
	}
}

func TestFindTellsOfFewSecretsOfOneFile(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 100 {
		key, err := nip19.EncodePrivateKey(nostr.GeneratePrivateKey())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%d %s\n", i, key)
	}
	if got := secrets.Find([]byte(b.String())); len(got) != secrets.MaxFindings || got[9].Line != 10 {
		t.Errorf("%v", got)
	}
}

func TestOrdinary(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"main.go": true, ".env": true, "config/app.yaml": true, "src/latest/keys.ts": true, "contest.go": true, "attest.rs": true, "": true,
		"key_test.go": false, "src/key.test.ts": false, "test_key.py": false, "src/KeyTest.java": false, "app/testdata/key.pem": false,
		"Tests/key.pem": false, "vendor/x/key.go": false, "web/node_modules/a/b.js": false, "go.sum": false, "Cargo.lock": false,
		"package-lock.json": false, "dist/app.min.js": false,
	} {
		if got := secrets.Ordinary(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
}

// TestFindInLargeFiles: a file of any size, and what begins, ends and is cut at any place.
func TestFindInLargeFiles(t *testing.T) {
	t.Parallel()
	line := "a line of a log that nobody has looked at for years\n"
	key := pem("RSA PRIVATE KEY", strings.Repeat(pemBody+"\n", 700), "\n")
	allowed := "// gitleaks:allow " + strings.Repeat("-", 4000) + secretKey(t)
	var file strings.Builder
	var want []secrets.Finding
	add := func(text, rule string) {
		if rule != "" {
			want = append(want, secrets.Finding{Rule: rule, Line: 1 + strings.Count(file.String(), "\n")})
		}
		file.WriteString(text + "\n")
	}
	for i := range 9 {
		for file.Len() < (i+1)*256<<10-(i*30+20) {
			file.WriteString(line)
		}
		switch i % 3 {
		case 0:
			add(secretKey(t), "nostr-secret-key")
		case 1:
			add(key, "private-key")
			add(allowed, "")
		case 2:
			add("token = "+githubToken, "github-pat")
		}
	}
	if got := secrets.Find([]byte(file.String())); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	var f secrets.Finder
	got, err := f.Find(iotest.HalfReader(strings.NewReader(file.String())))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("in other pieces: found %v, want %v (%v)", got, want, err)
	}
	broken := errors.New("broken")
	if got, err := f.Find(io.MultiReader(strings.NewReader(file.String()), iotest.ErrReader(broken))); !errors.Is(err, broken) || len(got) < 8 {
		t.Errorf("a reader that fails: found %v, %v", got, err)
	}
	if got, err := f.Find(strings.NewReader("nothing")); err != nil || got != nil {
		t.Errorf("after that: found %v, %v", got, err)
	}
}

// utf16 writes text of one byte a letter in UTF-16.
func utf16(text string, low, high int) string {
	wide := make([]byte, 2*len([]rune(text)))
	for i, c := range []rune(text) {
		wide[2*i+low], wide[2*i+high] = byte(c), byte(c>>8)
	}
	return string(wide)
}

func FuzzFind(f *testing.F) {
	f.Add([]byte(secretKey(f)))
	f.Add([]byte(githubToken + " gitleaks:allow"))
	f.Add([]byte(pem("PRIVATE KEY", pemBody, `\n`)))
	raw, _ := hex.DecodeString("2d2d2d2d2d424547494e50524956415445204b45592d2d2d2d2d2d2d2d2d2d454e44")
	f.Add(raw)
	f.Fuzz(func(t *testing.T, content []byte) {
		found := secrets.Find(content)
		last := 1
		for _, finding := range found {
			if finding.Line < last || finding.Line > strings.Count(string(content), "\n")+1 {
				t.Errorf("lines of %v", found)
			}
			last = finding.Line
		}
		// What stands before changes nothing but the line.
		if later := secrets.Find(append([]byte("\n"), content...)); len(later) != len(found) && len(content) < 4000 {
			t.Errorf("%v and %v", found, later)
		}
	})
}

// BenchmarkFind looks through text in which there is nothing, and through text that is full of what
// secrets begin with.
func BenchmarkFind(b *testing.B) {
	for name, text := range map[string]string{
		"code":   "func (x *keywordIndex) each(content []byte, found func(at int, k keyword) bool) {\n\treturn hf(content, pat, \"npm install\")\n",
		"hashes": "9c1f8a3be07d5264f1e0bb934c8d27a65d3f7e1982c4b6a0517e3d9f264b8ac5  file\n",
		"tokens": "ghp_nsec1_AKIA_xoxb_ -----BEGIN PRIVATE KEY----- ",
	} {
		content := []byte(strings.Repeat(text, 1<<20/len(text)))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(content)))
			b.ReportAllocs()
			for b.Loop() {
				secrets.Find(content)
			}
		})
	}
}
