package eventdb_test

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// The benchmarks ask an index of a million events. Making it takes a minute, so TENDRIL_BENCH_DIR
// may name a folder that keeps it from run to run (about 1 GB); without it, it is made in a
// temporary folder and removed.
const (
	benchEvents  = 1_000_000
	benchAuthors = 20_000
	benchRepos   = 1_000
	benchBatch   = 500
	// benchTopic is a tag's value that every hundredth event carries: 10,000 of them.
	benchTopic = "hundredth"
)

var bench struct {
	once sync.Once
	dir  string
	temp string
	db   *eventdb.DB
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if bench.db != nil {
		bench.db.Close()
	}
	if bench.temp != "" {
		os.RemoveAll(bench.temp)
	}
	os.Exit(code)
}

// million opens the index of a million events, and makes it if need be.
func million(b *testing.B) *eventdb.DB {
	b.Helper()
	bench.once.Do(func() {
		if bench.dir = os.Getenv("TENDRIL_BENCH_DIR"); bench.dir == "" {
			if bench.temp, bench.err = os.MkdirTemp("", "eventdb-bench-"); bench.err != nil {
				return
			}
			bench.dir = bench.temp
		}
		if bench.db, bench.err = eventdb.Open(filepath.Join(bench.dir, "index"), eventdb.Options{}); bench.err != nil {
			return
		}
		for seq := bench.db.Seq(); seq < benchEvents && bench.err == nil; seq = bench.db.Seq() {
			bench.err = bench.db.Apply(benchRecords(seq+1, benchBatch))
		}
		if bench.err == nil {
			bench.err = bench.db.Settle()
		}
	})
	if bench.err != nil {
		b.Fatal(bench.err)
	}
	return bench.db
}

// benchRecords makes the records of n sequences; they depend on nothing else.
func benchRecords(from uint64, n int) []eventdb.Record {
	recs := make([]eventdb.Record, n)
	for i := range recs {
		seq := from + uint64(i)
		ev := benchEvent(seq)
		raw, err := ev.MarshalJSON()
		if err != nil {
			panic(err)
		}
		recs[i] = eventdb.Record{Seq: seq, Event: ev, Raw: raw}
	}
	return recs
}

// benchID is a well mixed id that follows from a number.
func benchID(what, n uint64) string {
	rnd := rand.New(rand.NewPCG(what, n))
	var b [32]byte
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return hex.EncodeToString(b[:])
}

const (
	ofEvent = iota
	ofAuthor
	ofSignature
)

// benchEvent makes an event as a git relay has them: of few prolific and many rare authors, about
// few busy and many quiet repositories, 500 to 900 bytes of JSON.
func benchEvent(seq uint64) *nostr.Event {
	rnd := rand.New(rand.NewPCG(seq, 3))
	skewed := func(n int) uint64 { f := rnd.Float64(); return uint64(f * f * float64(n)) }
	repo := skewed(benchRepos)
	owner := benchID(ofAuthor, repo)
	ev := &nostr.Event{
		ID: benchID(ofEvent, seq), PubKey: benchID(ofAuthor, skewed(benchAuthors)), CreatedAt: nostr.Timestamp(1_700_000_000 + seq/3),
		Sig: benchID(ofSignature, seq) + benchID(ofSignature, ^seq), Content: strings.Repeat("as said before, ", 4+rnd.IntN(20)),
		Tags: nostr.Tags{{"a", fmt.Sprintf("30617:%s:project-%d", owner, repo)}, {"p", owner}},
	}
	switch n := rnd.IntN(100); {
	case n < 2:
		ev.Kind, ev.Tags = 30618, nostr.Tags{{"d", fmt.Sprintf("project-%d", repo)}, {"refs/heads/main", strings.Repeat("c", 40)}, {"HEAD", "ref: refs/heads/main"}}
	case n < 20:
		ev.Kind = 1617
		ev.Tags = append(ev.Tags, nostr.Tag{"t", "root"}, nostr.Tag{"r", strings.Repeat("e", 40)})
	case n < 35:
		ev.Kind = 1621
		ev.Tags = append(ev.Tags, nostr.Tag{"subject", "it does not work"}, nostr.Tag{"t", fmt.Sprintf("topic-%d", rnd.IntN(50))})
	case n < 75:
		ev.Kind = 1111
		root := benchID(ofEvent, 1+seq/2)
		ev.Tags = append(ev.Tags, nostr.Tag{"E", root}, nostr.Tag{"K", "1621"}, nostr.Tag{"e", root}, nostr.Tag{"k", "1621"})
	default:
		ev.Kind = 7
		ev.Tags = append(ev.Tags, nostr.Tag{"e", benchID(ofEvent, 1+seq/2)}, nostr.Tag{"k", "1111"})
	}
	if seq%100 == 0 {
		ev.Tags = append(ev.Tags, nostr.Tag{"t", benchTopic})
	}
	return ev
}

// BenchmarkApply applies events, a batch of the log at a time, on top of a million. Run it with
// GOMAXPROCS=1 to see what one core does, flushes and compactions included, and long enough that
// there are some: -benchtime 800x. The settled figure counts what is still to be written out and
// merged when the last batch is applied; it is what a rebuild of many millions comes down to.
func BenchmarkApply(b *testing.B) {
	db := copyOf(b, million(b))
	batches := make([][]eventdb.Record, b.N)
	bytes, next := 0, db.Seq()+1
	for i := range batches {
		batches[i] = benchRecords(next, benchBatch)
		next += benchBatch
		for _, r := range batches[i] {
			bytes += len(r.Raw)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	start := cpuTime(b)
	for _, recs := range batches {
		if err := db.Apply(recs); err != nil {
			b.Fatal(err)
		}
	}
	events := float64(b.N * benchBatch)
	b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(events/(cpuTime(b)-start).Seconds(), "events/cpu-s")
	b.ReportMetric(float64(bytes)/events, "B/event")
	b.StopTimer()
	if err := db.Settle(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(events/(cpuTime(b)-start).Seconds(), "settled-events/cpu-s")
}

// cpuTime is what the process has used of all cores: unlike the clock it does not count what other
// processes use.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func copyOf(b *testing.B, db *eventdb.DB) *eventdb.DB {
	b.Helper()
	dir := filepath.Join(bench.dir, "copy")
	if err := os.RemoveAll(dir); err != nil {
		b.Fatal(err)
	}
	if err := db.CheckpointTo(dir); err != nil {
		b.Fatal(err)
	}
	again := open(b, dir)
	b.Cleanup(func() {
		closeDB(b, again)
		os.RemoveAll(dir)
	})
	return again
}

// The filters that clients send; each asks for 500 events.
var benchFilters = []struct {
	name   string
	filter nostr.Filter
}{
	{"Kind", nostr.Filter{Kinds: []int{1621}, Limit: 500}},
	{"Kinds", nostr.Filter{Kinds: []int{1617, 1618, 1621, 30617, 30618}, Limit: 500}},
	{"Tag", nostr.Filter{Tags: nostr.TagMap{"a": {"30617:" + benchID(ofAuthor, 3) + ":project-3"}}, Limit: 500}},
	{"TagAndKind", nostr.Filter{Kinds: []int{1621}, Tags: nostr.TagMap{"a": {"30617:" + benchID(ofAuthor, 3) + ":project-3"}}, Limit: 500}},
	{"TagAndAuthor", nostr.Filter{Authors: []string{benchID(ofAuthor, 0)}, Tags: nostr.TagMap{"k": {"1621", "1111"}}, Limit: 500}},
	{"RareTagAndRareAuthor", nostr.Filter{Authors: []string{benchID(ofAuthor, benchAuthors-1)}, Tags: nostr.TagMap{"k": {"1621"}}, Limit: 500}},
	{"Authors2000", nostr.Filter{Authors: benchIDs(ofAuthor, 2000), Limit: 500}},
	{"Authors2000AndKind", nostr.Filter{Authors: benchIDs(ofAuthor, 2000), Kinds: []int{1621}, Limit: 500}},
	{"Authors1000AndKinds1000", nostr.Filter{Authors: benchIDs(ofAuthor, 1000), Kinds: manyKinds(1000), Limit: 500}},
	{"IDs2000", nostr.Filter{IDs: benchIDs(ofEvent, 2000), Limit: 500}},
	{"TagsE2000", nostr.Filter{Tags: nostr.TagMap{"e": benchIDs(ofEvent, 2000)}, Limit: 500}},
	{"Nothing", nostr.Filter{Tags: nostr.TagMap{"x": {"nobody said this"}}, Limit: 500}},
	{"All", nostr.Filter{Limit: 500}},
}

func benchIDs(what, n uint64) []string {
	var list []string
	for i := range n {
		list = append(list, benchID(what, i))
	}
	return list
}

func manyKinds(n int) []int {
	kinds := []int{1621}
	for k := 2000; len(kinds) < n; k++ {
		kinds = append(kinds, k)
	}
	return kinds
}

// BenchmarkQueryBy asks as the front door does, for JSON as logged.
func BenchmarkQueryBy(b *testing.B) {
	v := million(b).View()
	defer v.Close()
	for _, q := range benchFilters {
		b.Run(q.name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n = 0
				for _, err := range v.QueryRaw(b.Context(), q.filter) {
					if err != nil {
						b.Fatal(err)
					}
					n++
				}
			}
			b.ReportMetric(float64(n), "events")
		})
	}
}

// BenchmarkFromTheLog reads a log of 100,000 events into a new index, as a process without one does
// at its start. The processor's time has that of the embedded NATS in it.
func BenchmarkFromTheLog(b *testing.B) {
	bus := openBus(b)
	const events = 100_000
	var last uint64
	for from := uint64(1); from <= events; from += benchBatch {
		var some []*nostr.Event
		for _, r := range benchRecords(from, benchBatch) {
			some = append(some, r.Event)
		}
		last = write(b, bus, some...)
	}
	before := cpuTime(b)
	for b.Loop() {
		db := open(b, b.TempDir())
		stop := follow(b, bus, db, slog.New(slog.DiscardHandler))
		waitFor(b, db, last)
		stop()
		closeDB(b, db)
	}
	perMillion := float64(1_000_000) / events / float64(b.N)
	b.ReportMetric(b.Elapsed().Seconds()*perMillion, "s/million")
	b.ReportMetric((cpuTime(b)-before).Seconds()*perMillion, "cpu-s/million")
}
