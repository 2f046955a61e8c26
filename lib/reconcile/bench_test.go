package reconcile_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"tendril.dev/lib/reconcile"
)

// BenchmarkSession runs whole sessions in which nothing, or 100 events at random, are missing, and
// tells how many bytes pass both ways, as hex digits, and in how many messages.
func BenchmarkSession(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		all := random(rand.New(rand.NewPCG(1, uint64(n))), n, 3)
		for _, missing := range []int{0, 100} {
			ours, theirs := packed(all[missing:]), packed(all)
			b.Run(fmt.Sprintf("events=%d/missing=%d", n, missing), func(b *testing.B) {
				bytes, messages := 0, 0
				for b.Loop() {
					bytes, messages = 0, 0
					told, _, err := ask(b.Context(), ours, reconcile.DefaultLimits, func(message []byte) ([]byte, error) {
						answer, err := reconcile.Respond(b.Context(), theirs, message, reconcile.LimitsFor(512<<10))
						bytes, messages = bytes+2*(len(message)+len(answer)), messages+2
						return answer, err
					})
					if err != nil || len(told) < missing {
						b.Fatal(len(told), err)
					}
				}
				b.ReportMetric(float64(bytes), "bytes")
				b.ReportMetric(float64(messages), "messages")
			})
		}
	}
}
