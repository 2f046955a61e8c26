package writer

import (
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
	for _, bm := range []struct{ batch, pack int }{{1, 1}, {100, 1}, {500, 1}, {500, 128}} {
		b.Run(fmt.Sprintf("batch=%d/pack=%d", bm.batch, bm.pack), func(b *testing.B) {
			bus := openBus(b, b.TempDir())
			r := standby(b, bus, "bench", bm.batch, nil)
			w := r.begin(b)
			r.running.Go(func() { _ = w.run(r.ctx) })
			s, owner := newSender(b, bus, "bench"), newPerson(1)
			reply := func(m message) *message {
				m.header.Set(proto.HeaderReply, s.sub.Subject)
				return &m
			}
			announcement := encode(b, owner.announcement("tree", 1))
			w.lanes.put(r.ctx, laneUser, readPack(reply(message{subject: proto.LaneUser.Subject(), header: nats.Header{}, data: announcement})))
			w.lanes.put(r.ctx, laneUser, readPack(reply(message{subject: proto.LaneRelease.Subject(), data: announcement,
				header: nats.Header{proto.HeaderAction: {string(proto.ActionRelease)}}})))
			s.wait(2)
			packs := historic(b, owner, b.N, bm.pack)
			commits := 0
			r.beforeCommit = func() { commits++ }
			head := r.Index.Seq()
			b.ReportAllocs()
			b.ResetTimer()
			began := time.Now()
			go func() {
				for i := range packs {
					w.lanes.put(r.ctx, laneOlder, readPack(reply(packs[i])))
				}
			}()
			s.wait(2 + b.N)
			b.StopTimer()
			if got := r.Index.Seq() - head; got != uint64(b.N) {
				b.Fatalf("%d of %d events in the log", got, b.N)
			}
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "events/s")
			b.ReportMetric(float64(b.N)/float64(commits), "events/commit")
		})
	}
}

// historic makes packs of so many issues that are new.
func historic(b *testing.B, owner person, n, size int) (packs []message) {
	b.Helper()
	var lines [][]byte
	for i := range n {
		lines = append(lines, encode(b, newPerson(i%1000+10).issue(owner, "tree", i)))
	}
	for part := range slices.Chunk(lines, size) {
		packs = append(packs, message{subject: proto.LaneSyncHistoric.Subject(), data: proto.JoinPack(part),
			header: nats.Header{proto.HeaderSource: {string(proto.SourceStartup)}}})
	}
	return packs
}
