package eventdb

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

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
	db   *DB
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
func million(b *testing.B) *DB {
	b.Helper()
	bench.once.Do(func() {
		if bench.dir = os.Getenv("TENDRIL_BENCH_DIR"); bench.dir == "" {
			if bench.temp, bench.err = os.MkdirTemp("", "eventdb-bench-"); bench.err != nil {
				return
			}
			bench.dir = bench.temp
		}
		if bench.db, bench.err = Open(filepath.Join(bench.dir, "index"), Options{}); bench.err != nil {
			return
		}
		for seq := bench.db.Seq(); seq < benchEvents && bench.err == nil; seq = bench.db.Seq() {
			bench.err = bench.db.Apply(benchRecords(seq+1, benchBatch))
		}
		if bench.err == nil {
			bench.err = bench.db.settle()
		}
	})
	if bench.err != nil {
		b.Fatal(bench.err)
	}
	return bench.db
}

// settle writes out what is in memory and waits until no compaction is running.
func (db *DB) settle() error {
	if err := db.pebble.Flush(); err != nil {
		return err
	}
	// One may begin a moment after another ended.
	for idle := 0; idle < 3; idle++ {
		if m := db.pebble.Metrics(); m.Compact.NumInProgress+m.Flush.NumInProgress > 0 {
			idle = -1
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// benchRecords makes the records of n sequences; they depend on nothing else.
func benchRecords(from uint64, n int) []Record {
	recs := make([]Record, n)
	for i := range recs {
		seq := from + uint64(i)
		ev := benchEvent(seq)
		raw, err := ev.MarshalJSON()
		if err != nil {
			panic(err)
		}
		recs[i] = Record{Seq: seq, Event: ev, Raw: raw}
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
	batches := make([][]Record, b.N)
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
	if err := db.settle(); err != nil {
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

func copyOf(b *testing.B, db *DB) *DB {
	b.Helper()
	dir := filepath.Join(bench.dir, "copy")
	if err := os.RemoveAll(dir); err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(db.pebble.Flush(), db.pebble.Checkpoint(dir, pebble.WithFlushedWAL())); err != nil {
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
	{"Tag", nostr.Filter{Tags: nostr.TagMap{"a": {"30617:" + benchID(ofAuthor, 3) + ":project-3"}}, Limit: 500}},
	{"TagAndKind", nostr.Filter{Kinds: []int{1621}, Tags: nostr.TagMap{"a": {"30617:" + benchID(ofAuthor, 3) + ":project-3"}}, Limit: 500}},
	{"TagAndAuthor", nostr.Filter{Authors: []string{benchID(ofAuthor, 0)}, Tags: nostr.TagMap{"k": {"1621", "1111"}}, Limit: 500}},
	{"Authors2000", nostr.Filter{Authors: benchIDs(ofAuthor, 2000), Limit: 500}},
	{"IDs2000", nostr.Filter{IDs: benchIDs(ofEvent, 2000), Limit: 500}},
	{"Nothing", nostr.Filter{Tags: nostr.TagMap{"x": {"no one said this"}}, Limit: 500}},
	{"All", nostr.Filter{Limit: 500}},
}

func benchIDs(what, n uint64) []string {
	var list []string
	for i := range n {
		list = append(list, benchID(what, i))
	}
	return list
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
