package wire_test

import (
	"testing"
	"fmt"
	"strings"

	"github.com/nbd-wtf/go-nostr"
	"tendril.dev/services/relayconn/wire"
)

func BenchmarkParse(b *testing.B) {
	ev := nostr.Event{Kind: 1621, CreatedAt: 1700000000, Content: strings.Repeat("A line of an issue's text.\n", 8), Tags: nostr.Tags{
		{"a", "30617:" + strings.Repeat("ab", 32) + ":tendril"}, {"p", strings.Repeat("cd", 32)}, {"subject", "an issue"}, {"t", "bug"}}}
	if err := ev.Sign("0000000000000000000000000000000000000000000000000000000000000001"); err != nil {
		b.Fatal(err)
	}
	data, err := ev.MarshalJSON()
	if err != nil {
		b.Fatal(err)
	}
	data = fmt.Appendf(nil, `["EVENT","h12",%s]`, data)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}
