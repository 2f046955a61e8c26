package relay

import (
	"strings"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// TestCheck: the fields of a note are changed before and after it is signed.
func TestCheck(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	// No point of the curve has the coordinate F64.
	words := strings.NewReplacer("F64", strings.Repeat("f", 64), "ZERO128", strings.Repeat("0", 128))
	for _, row := range fixture.Rows(`
		good | | |
		farther | "created_at":1700000901 | | invalid: created_at is more than 15m0s in the future
		the end of time | "created_at":9223372036854775807 | | invalid: created_at
		first ephemeral | "kind":20000 | | invalid: ephemeral
		last ephemeral | "kind":29999 | | invalid: ephemeral
		in its last second | "tags":[["expiration","1700000000"]] | |
		expired | "tags":[["expiration","1699999999"]] | | invalid: the event has expired
		expires, it does not say when | "tags":[["expiration","soon"]] | |
		protected | "tags":[["-"]] | | auth-required:
		repost of a protected one | "kind":6,"content":"{\"tags\":[[\"-\"]],\"id\":\"x\"}" | | blocked: a repost
		another content | | "content":"x" | invalid: the id
		another signature | | "sig":"ZERO128" | invalid: the signature
		another author | | "pubkey":"F64" | invalid: the signature`) {
		ev, want := nostr.Event{Kind: 1, CreatedAt: nostr.Timestamp(now.Unix())}, row[3]
		change(t, &ev, row[1])
		must(t, ev.Sign(gonostr.GeneratePrivateKey()))
		change(t, &ev, words.Replace(row[2]))
		reason, got := check(&ev, nil, now, 15*time.Minute)
		if !strings.HasPrefix(got, want) || want == "" && got != "" || (reason == "") != (got == "") {
			t.Errorf("%s: %q, want %q", row[0], got, want)
		}
	}
}
