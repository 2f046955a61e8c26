package repos_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/services/discovery/repos"
	"tendril.dev/services/discovery/wanted"
)

// everyday is the everyday size, of which the scales are multiples: 1,000 repositories with fifty
// root events each, on five of a hundred relays.
const everydayRepos, everydayRoots, everydayRelays, relaysOfRepo = 1000, 50, 100, 5

// network is a made-up network of a scale. Its events have ids that are not their hashes: nobody
// looks here.
type network struct {
	scale int
	// everywhere: a relay that every repository lists.
	everywhere bool
}

func (n network) String() string {
	if n.everywhere {
		return fmt.Sprintf("OneRelayHasAll/%dx", n.scale)
	}
	return fmt.Sprintf("%dx", n.scale)
}

func (n network) author(repo int) string { return fmt.Sprintf("%064x", repo+1) }

// announcement of a repository.
func (n network) announcement(repo int) *nostr.Event {
	var relays []string
	if n.everywhere {
		relays = append(relays, "wss://everywhere.example.com")
	}
	for i := range relaysOfRepo {
		relays = append(relays, fmt.Sprintf("wss://relay%d.example.com", (repo*relaysOfRepo+i)%(everydayRelays*n.scale)))
	}
	ev := announce(n.author(repo), fmt.Sprintf("repository-%d", repo), 1, relays...)
	ev.ID = eventID(1, repo)
	return ev
}

// issue is a root event of a repository.
func (n network) issue(repo, issue int) *nostr.Event {
	return &nostr.Event{ID: eventID(2, repo*everydayRoots+issue), PubKey: n.author(issue), Kind: nip34.KindIssue, CreatedAt: 2, Tags: nostr.Tags{
		{"a", fmt.Sprintf("30617:%s:repository-%d", n.author(repo), repo)},
	}}
}

// eventID is an id that is spread as hashes are.
func eventID(kind, n int) string {
	var id target.ID
	x := uint64(kind)<<56 ^ uint64(n)
	for i := range 4 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		for b := range 8 {
			id[8*i+b] = byte(z >> (8 * b))
		}
	}
	return hex.EncodeToString(id[:])
}

// BenchmarkScale is what it costs to work out all targets and the changes that publish them, for
// each root event, in a network of the everyday size, of four times and of sixteen times that. The
// announcements come in ten windows, then in each window one root event of every repository: as in
// a cold sync, and at its worst, because every window changes every target.
func BenchmarkScale(b *testing.B) {
	for _, everywhere := range []bool{false, true} {
		for _, scale := range []int{1, 4, 16} {
			n := network{scale, everywhere}
			b.Run(n.String(), func(b *testing.B) { benchmarkScale(b, n) })
		}
	}
}

func benchmarkScale(b *testing.B, n network) {
	limits := repos.Limits{Served: 1 << 20, Held: 1 << 20}
	all := everydayRepos * n.scale
	b.ReportAllocs()
	var kept int64
	var took time.Duration
	var bytes int
	for b.Loop() {
		before := liveHeap()
		book := repos.NewBook(hosting.Of(domain), nil, limits)
		published := map[string]wanted.Target{}
		window := func(events []*nostr.Event) {
			began := cpu(b)
			for _, ev := range events {
				book.Accept(ev)
			}
			book.TakeUnread()
			bytes += publish(b, published, book.Targets(), target.SortIDs(book.TakeHeard()))
			took += cpu(b) - began
		}
		for w := range 10 {
			var events []*nostr.Event
			for repo := w * all / 10; repo < (w+1)*all/10; repo++ {
				events = append(events, n.announcement(repo))
			}
			window(events)
		}
		for issue := range everydayRoots {
			events := make([]*nostr.Event, all)
			for repo := range all {
				events[repo] = n.issue(repo, issue)
			}
			window(events)
		}
		kept = liveHeap() - before
		runtime.KeepAlive(book)
		runtime.KeepAlive(published)
	}
	roots := float64(all * everydayRoots)
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N)/roots, "cpu-ns/root")
	b.ReportMetric(float64(kept)/roots, "heap-B/root")
	b.ReportMetric(float64(kept)/(1<<20), "heap-MiB")
	b.ReportMetric(float64(bytes)/float64(b.N)/roots, "published-B/root")
}

// publish writes down what is different, as the publisher does, and gives its bytes.
func publish(b *testing.B, published, targets map[string]wanted.Target, heard []target.ID) (bytes int) {
	for key, want := range targets {
		added := map[string][]target.ID{}
		_, changed := target.Changed(published[key].Repos, want.Repos)
		for _, ref := range changed {
			came, went := wanted.RootChanges(published[key].Repos[ref], want.Repos[ref])
			found, missing := wanted.Find(heard, came)
			if len(missing)+len(went) > 0 {
				b.Fatalf("%d root events came that nobody heard of, and %d went", len(missing), len(went))
			}
			added[ref] = found
		}
		for _, change := range wanted.Diff(published[key], want, added, nil, nil, 512<<10) {
			data, err := json.Marshal(change)
			if err != nil {
				b.Fatal(err)
			}
			bytes += len(data)
		}
		published[key] = want
	}
	return bytes
}

func cpu(b *testing.B) time.Duration {
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
