package eventdb_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/reconcile"
)

// BenchmarkReconcile answers the first message of somebody who has all but some hundred of the
// events that match, opening the view and the set included, and tells what the set keeps in memory.
func BenchmarkReconcile(b *testing.B) {
	db := million(b)
	since := nostr.Timestamp(1_700_100_000)
	for name, f := range map[string]nostr.Filter{
		"All": {}, "Kind": {Kinds: []int{1111}}, "Kinds": {Kinds: []int{1617, 1621, 1111, 7, 30618}},
		"Since": {Kinds: []int{1111, 7}, Since: &since}, "Tags": {Tags: nostr.TagMap{"a": benchReferences(100)}},
	} {
		b.Run(name, func(b *testing.B) {
			first := firstMessage(b, db, f)
			b.ReportAllocs()
			before := cpuTime(b)
			b.ResetTimer()
			for b.Loop() {
				v := db.View()
				set, end := benchSet(b, v, f)
				if _, err := reconcile.Respond(b.Context(), set, first, reconcile.DefaultLimits); err != nil {
					b.Fatal(err)
				}
				end()
			}
			b.ReportMetric(float64(db.SumsBytes()), "kept-bytes")
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// benchReferences are those of rarely named repositories.
func benchReferences(n int) (refs []string) {
	for i := range n {
		repo := uint64(benchRepos - 1 - i)
		refs = append(refs, fmt.Sprintf("30617:%s:project-%d", benchID(ofAuthor, repo), repo))
	}
	return refs
}

func benchSet(b *testing.B, v *eventdb.View, f nostr.Filter) (reconcile.Set, func()) {
	if eventdb.IsOrdered(f) {
		o, err := v.Ordered(f)
		if err != nil {
			b.Fatal(err)
		}
		return o, func() { o.Close(); v.Close() }
	}
	p, err := v.Packed(b.Context(), f, 1_000_000)
	if err != nil {
		b.Fatal(err)
	}
	return p, func() { v.Close() }
}

func lacks(i *reconcile.Item) bool {
	return uint32(i.ID[5])<<16|uint32(i.ID[6])<<8|uint32(i.ID[7]) < 1<<24/10_000
}

// firstMessage is what somebody says who lacks one of ten thousand events.
func firstMessage(b *testing.B, db *eventdb.DB, f nostr.Filter) []byte {
	var items []reconcile.Item
	v := db.View()
	defer v.Close()
	for e, err := range v.IDs(b.Context(), f) {
		if err != nil {
			b.Fatal(err)
		}
		if i := (reconcile.Item{CreatedAt: e.CreatedAt, ID: e.ID}); !lacks(&i) {
			items = append(items, i)
		}
	}
	first, err := reconcile.Start(context.Background(), reconcile.Pack(items), reconcile.DefaultLimits)
	if err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	return first
}

// BenchmarkReadSums makes the sums of a million events, as opening the index does.
func BenchmarkReadSums(b *testing.B) {
	db := million(b)
	for b.Loop() {
		if err := db.ReadSums(); err != nil {
			b.Fatal(err)
		}
	}
}
