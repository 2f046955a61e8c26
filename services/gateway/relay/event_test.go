package relay

import (
	"strings"
	"testing"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// TestCheck: the fields of a note are changed before and after it is signed.
func TestCheck(t *testing.T) {
	t.Parallel()
	// No point of the curve has the coordinate F64.
	words := strings.NewReplacer("F64", strings.Repeat("f", 64), "ZERO128", strings.Repeat("0", 128))
	for _, row := range fixture.Rows(`
		good | | |
		protected | "tags":[["-"]] | | auth-required:
		another content | | "content":"x" | invalid: the id
		another signature | | "sig":"ZERO128" | invalid: the signature
		another author | | "pubkey":"F64" | invalid: the signature`) {
		ev, want := nostr.Event{Kind: 1, CreatedAt: 1_700_000_000}, row[3]
		change(t, &ev, row[1])
		must(t, ev.Sign(gonostr.GeneratePrivateKey()))
		change(t, &ev, words.Replace(row[2]))
		reason, got := check(&ev, nil)
		if !strings.HasPrefix(got, want) || want == "" && got != "" || (reason == "") != (got == "") {
			t.Errorf("%s: %q, want %q", row[0], got, want)
		}
	}
}
