package layers_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
)

// BenchmarkScale is what it costs a worker to plan what it asks one relay for, for each root event:
// to read the changes of the target, to list what is wanted, to work out what of it is new and to
// write the filters for that. The relay has as many repositories as the everyday size knows in all,
// four times and sixteen times as many, with fifty root events each; those come in fifty changes of
// the whole target.
func BenchmarkScale(b *testing.B) {
	for _, scale := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(scale, "x"), func(b *testing.B) { benchmarkScale(b, 1000*scale) })
	}
}

func benchmarkScale(b *testing.B, repos int) {
	const roots = 50
	b.ReportAllocs()
	var kept int64
	var took time.Duration
	var filters int
	for b.Loop() {
		before := liveHeap()
		var wanted target.Target
		var confirmed items.Set
		var live []nostr.Filter
		for n := range roots {
			changes := messages(b, repos, n)
			began := cpuTime(b)
			for _, data := range changes {
				var change proto.TargetChange
				if err := json.Unmarshal(data, &change); err != nil {
					b.Fatal(err)
				}
				wanted = wanted.Apply(change)
			}
			of := items.Of(wanted)
			fresh := items.New(of, items.Set{}, confirmed)
			live = append(live, layers.TwoAndThree(fresh)...)
			confirmed = items.Union(items.Only(confirmed, of), fresh)
			took += cpuTime(b) - began
		}
		filters += len(live)
		kept = liveHeap() - before
		runtime.KeepAlive(wanted)
		runtime.KeepAlive(live)
		runtime.KeepAlive(confirmed)
	}
	all := float64(repos * roots)
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N)/all, "cpu-ns/root")
	b.ReportMetric(float64(kept)/all, "heap-B/root")
	b.ReportMetric(float64(filters)/float64(b.N)/all*1000, "filters/1000-roots")
}

// messages are what the stream says when every repository gets its nth root event.
func messages(b *testing.B, repos, n int) (list [][]byte) {
	to := target.Target{URL: "wss://relay.example.com", Repos: map[string]target.Repo{}}
	from := target.Target{URL: to.URL, Repos: map[string]target.Repo{}}
	for i := range repos {
		ref := fmt.Sprintf("30617:%064x:repository-%d", i, i)
		to.Repos[ref] = target.Repo{Level: proto.LevelFull, Roots: []target.ID{spread(uint64(i*1000 + n))}}
		if n > 0 {
			from.Repos[ref] = target.Repo{Level: proto.LevelFull}
		}
	}
	if n == 0 {
		from = target.Target{}
	}
	for _, change := range target.Diff(from, to, 512<<10) {
		data, err := json.Marshal(change)
		if err != nil {
			b.Fatal(err)
		}
		list = append(list, data)
	}
	return slices.Clip(list)
}

// spread is an id that is spread as hashes are.
func spread(x uint64) (id target.ID) {
	for i := range 4 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		for n := range 8 {
			id[8*i+n] = byte(z >> (8 * n))
		}
	}
	return id
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
