package eventdb

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
)

// BenchmarkQuery asks as the front door does, for JSON as logged, in turn without bans and beside a
// thousand banned events. What is told is the least time of each.
func BenchmarkQuery(b *testing.B) {
	const events, authors = 50_000, 3000
	rnd := rand.New(rand.NewPCG(1, 3))
	hex := func(n int) string { return fmt.Sprintf("%016x%048x", rand.New(rand.NewPCG(7, uint64(n))).Uint64(), n) }
	var all []*nostr.Event
	var names, ids []string
	for n := range events {
		all = append(all, &nostr.Event{
			ID: hex(n), PubKey: hex(rnd.IntN(authors)), CreatedAt: nostr.Timestamp(n / 3), Kind: []int{7, 1111, 1617, 1621}[rnd.IntN(4)],
			Content: strings.Repeat("as said before, ", 4+rnd.IntN(20)), Sig: strings.Repeat("0", 128),
			Tags: nostr.Tags{{"a", fmt.Sprint("30617:", hex(n%50), ":x")}, {"p", hex(n % 50)}, {"r", hex(n / 2)}},
		})
	}
	for n := range 2000 {
		names, ids = append(names, hex(n)), append(ids, hex(n*(events/2000)))
	}
	db := open(b, b.TempDir())
	defer closeDB(b, db)
	for some := range slices.Chunk(all, 500) {
		apply(b, db, some...)
	}
	before := db.View()
	defer before.Close()
	if err := db.Hide(filters{{IDs: ids[:1000]}}); err != nil {
		b.Fatal(err)
	}
	beside := db.View()
	defer beside.Close()
	for name, f := range map[string]nostr.Filter{
		"kind": {Kinds: []int{1621}}, "tag": {Tags: nostr.TagMap{"a": {"30617:" + hex(3) + ":x"}}}, "all": {},
		"2000 authors": {Authors: names}, "2000 ids": {IDs: ids},
	} {
		f.Limit = 500
		b.Run(name, func(b *testing.B) {
			least := [2]time.Duration{time.Hour, time.Hour}
			for b.Loop() {
				for i, v := range []*View{before, beside} {
					began := time.Now()
					for _, err := range v.QueryRaw(b.Context(), f) {
						if err != nil {
							b.Fatal(err)
						}
					}
					least[i] = min(least[i], time.Since(began))
				}
			}
			b.ReportMetric(float64(least[0].Microseconds()), "µs-without")
			b.ReportMetric(float64(least[1].Microseconds()), "µs-beside")
		})
	}
}
