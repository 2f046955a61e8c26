package pages_test

import (
	"fmt"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/pages"
)

// BenchmarkSaw is an event of a page of 500: that it matches one of three filters of a hundred ids,
// that it is noted, and its share of the end of the page.
func BenchmarkSaw(b *testing.B) {
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("%064x", i*7919))
	}
	var filters []nostr.Filter
	for _, name := range []string{"e", "E", "q"} {
		filters = append(filters, nostr.Filter{Tags: nostr.TagMap{name: ids}})
	}
	var events []*nostr.Event
	for i := range 500 {
		ev := event(i, nostr.Timestamp(1_790_000_000-i))
		id := ids[i*37%100]
		ev.Tags = nostr.Tags{{"E", id}, {"K", "1621"}, {"P", ids[3]}, {"e", id}, {"k", "1621"}, {"p", ids[3]}}
		events = append(events, ev)
	}
	b.ReportAllocs()
	for b.Loop() {
		w := pages.New(filters, 500)
		for _, ev := range events {
			if !w.Matches(ev) {
				b.Fatal("no match")
			}
			w.Saw(ev)
		}
		w.Ended()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
}
