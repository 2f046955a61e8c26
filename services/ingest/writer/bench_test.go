package writer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/proto"
)

// BenchmarkDecideAndCommit measures what the one writer does for each event: parse, decide, append
// in an atomic batch to a log on disk that syncs every commit, apply to the index, answer.
// Signatures are not its work. One operation is one event.
func BenchmarkDecideAndCommit(b *testing.B) {
	for _, bm := range []struct{ batch, pack int }{{1, 1}, {100, 1}, {500, 1}, {500, 250}, {1000, 250}} {
		b.Run(fmt.Sprintf("batch=%d/pack=%d", bm.batch, bm.pack), func(b *testing.B) {
			bus := openBus(b, b.TempDir())
			r := startWith(b, bus, "bench", bm.batch, func(w *Writer) {
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
			packs := historic(b, owner, b.N, bm.pack)
			commits, inCommit, commitBegan := 0, time.Duration(0), time.Time{}
			r.beforeCommit = func() { commits, commitBegan = commits+1, time.Now() }
			r.afterEvents = func() { inCommit += time.Since(commitBegan) }
			head := r.Index.Seq()
			b.ReportAllocs()
			b.ResetTimer()
			began := time.Now()
			for i := range packs {
				r.fetched = append(r.fetched, itemsOf(readPack(&packs[i]))...)
				for len(r.fetched) >= bm.batch || i == len(packs)-1 && len(r.fetched) > 0 {
					if err := r.step(ctx); err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := r.land(); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if got := r.Index.Seq() - head; got != uint64(b.N) {
				b.Fatalf("%d of %d events in the log", got, b.N)
			}
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "events/s")
			b.ReportMetric(float64(b.N)/float64(commits), "events/commit")
			b.ReportMetric(inCommit.Seconds()/time.Since(began).Seconds(), "commit/all") // how much of the time a commit is under way
		})
	}
}

// historic makes packs of so many issues that nobody has seen yet.
func historic(b *testing.B, owner person, n, size int) (packs []message) {
	b.Helper()
	var lines [][]byte
	for i := range n {
		lines = append(lines, encode(b, newPerson(i%1000+10).issue(owner, "tree", i)))
	}
	for part := range slices.Chunk(lines, size) {
		packs = append(packs, message{subject: proto.LaneSyncHistoric.Subject(), data: proto.JoinPack(part),
			header: nats.Header{proto.HeaderSource: {string(proto.SourceStartup)}, proto.HeaderReply: {"grasp.verdict.bench"}}})
	}
	return packs
}

// advance decides and commits what was fetched.
func (r *replica) advance(t testing.TB) {
	t.Helper()
	if err := r.step(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.land(); err != nil {
		t.Fatal(err)
	}
}

func (r *replica) take(t testing.TB, m message) {
	t.Helper()
	r.fetched = append(r.fetched, itemsOf(readPack(&m))...)
	r.advance(t)
}
