package writer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/proto"
)

// BenchmarkDecideAndCommit measures what the one writer does for each event: parse, decide, append in an atomic batch to a log on disk
// that syncs every commit, apply to the index, answer. Signatures are not its work. One operation is one event.
func BenchmarkDecideAndCommit(b *testing.B) {
	for _, size := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			bus := openBus(b, b.TempDir())
			r := startWith(b, bus, "bench", size, func(w *Writer) {
				w.turn.beforePull = func() { <-b.Context().Done() }
			})
			ctx := context.Background()
			if err := r.begin(ctx); err != nil {
				b.Fatal(err)
			}
			defer r.lanes.close()
			owner := newPerson(1)
			r.take(b, message{subject: proto.LaneUser.Subject(), header: nats.Header{}, data: encode(b, owner.announcement("tree", 1))})
			r.take(b, message{subject: proto.LaneRelease.Subject(), data: encode(b, owner.announcement("tree", 1)),
				header: nats.Header{proto.HeaderAction: {string(proto.ActionRelease)}}})
			candidates := make([]message, b.N)
			for i := range candidates {
				candidates[i] = message{
					subject: proto.LaneSyncHistoric.Subject(), data: encode(b, newPerson(i%1000+10).issue(owner, "tree", i)),
					header: nats.Header{proto.HeaderSource: {string(proto.SourceStartup)}, proto.HeaderReply: {"grasp.verdict.bench"}},
				}
			}
			commits := 0
			r.beforeCommit = func() { commits++ }
			head := r.Index.Seq()
			b.ReportAllocs()
			b.ResetTimer()
			began := time.Now()
			for i := range candidates {
				r.fetched = append(r.fetched, &candidates[i])
				if len(r.fetched) == size || i == len(candidates)-1 {
					if err := r.step(ctx); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.StopTimer()
			if got := r.Index.Seq() - head; got != uint64(b.N) {
				b.Fatalf("%d of %d events in the log", got, b.N)
			}
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "events/s")
			b.ReportMetric(float64(b.N)/float64(commits), "events/commit")
		})
	}
}

func (r *replica) take(t testing.TB, m message) {
	t.Helper()
	r.fetched = append(r.fetched, &m)
	if err := r.step(context.Background()); err != nil {
		t.Fatal(err)
	}
}
