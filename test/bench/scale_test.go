package bench

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/bench/feed"
	"tendril.dev/test/corpus"
	"tendril.dev/test/world"
)

// The everyday size.
const (
	scaleRepositories = 1000
	scaleRoots        = 50_000
	scaleRelays       = 100
	scaleCopies       = 5 // relays of each repository
)

// spread is many repositories on many relays, each of which has some of them.
type spread struct {
	spec  corpus.Spec
	feed  *feed.Feed
	repos map[string]int // by relay's URL: repositories that it has
	roots map[string]int // root events of these
}

// spread starts the relays, and before them one that has announcements and states only.
func (s *stage) spread(t *testing.T) *spread {
	t.Helper()
	spec := corpus.Spec{Repositories: scaleRepositories, Roots: scaleRoots}
	relays := scaleRelays + 1
	f := s.feed(t, spec, relays, "-copies", fmt.Sprint(scaleCopies))
	sp := &spread{spec: spec, feed: f, repos: map[string]int{}, roots: map[string]int{}}
	git, refs := newOneForAll(t, s.work), s.work.Refs()
	// A relay shows no more of one second than it does of one page, so each event has its own.
	at := nostr.Now() - nostr.Timestamp(2*spec.Repositories)
	var lines [][]byte
	for i := range spec.Repositories {
		p, id := corpus.Owner(i), corpus.Identifier(i)
		var listed []string
		for _, home := range feed.Homes(id, relays, scaleCopies) {
			url := f.Relays[home]
			listed = append(listed, url)
			sp.repos[url]++
			sp.roots[url] += spec.Roots / spec.Repositories
		}
		lines = append(lines, []byte(p.At(at).Announce(id, append(listed, git.URL+"/"+id+".git")...).String()), []byte(p.At(at+1).State(id, refs).String()))
		at += 2
	}
	must(t, f.Load(lines...))
	return sp
}

// settings are those of production, but for the limits on how much is asked of one git server:
// here one machine has all git data.
func (sp *spread) settings() map[string]string {
	return map[string]string{
		"NGIT_LOG_LEVEL": "info", "NGIT_OBSERVE_ADDRESS": "127.0.0.1:0", "NGIT_SYNC_BOOTSTRAP_RELAY_URL": sp.feed.Relays[0],
		"NGIT_SYNC_BATCH_WINDOW_MS": "5000", "NGIT_SYNC_STARTUP_JITTER_MS": "10000", "NGIT_SYNC_BASE_BACKOFF_SECS": "5",
		"NGIT_HUNT_SYNC_DELAY": "500ms", "NGIT_HUNT_INTERVAL": "1s", "NGIT_HUNT_BACKOFF_BASE": "20s", "NGIT_HUNT_BACKOFF_MAX": "2m",
		"NGIT_SYNC_DOMAIN_CONCURRENT": "32", "NGIT_SYNC_DOMAIN_RATE_LIMIT": "1000000", "NGIT_HUNTS_AT_ONCE": "128",
	}
}

// scale measures how long a fresh start takes at the everyday size.
func scale(t *testing.T, s *stage) {
	sp := s.spread(t)
	p := world.Start(t, sp.settings())
	ended := saveProfile(t, "scale", p.Output())
	r := sp.sync(t, s, "scale", p.NATS, p.Door)
	ended()
	u := used(t, p.PID())
	s.add(fmt.Sprintf("%d repositories, %d roots, %d relays, cold, to all in sync", sp.spec.Repositories, sp.spec.Roots, len(sp.repos)),
		r.String(), "≤ 35 s", s.limits.String())
	s.add("… in one process", fmt.Sprintf("%.1f s of CPU, %.1f s of git's; %s resident at most",
		u.cpu.Seconds(), u.children.Seconds(), mib(u.peak)), "", fmt.Sprintf("the source used %.1f s", r.source.Seconds()))
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// times are when the stages of a sync were over, since the first connection.
type times struct {
	logged, served, all time.Duration
	sent                int           // events by the relays
	source              time.Duration // CPU of these
}

func (r times) String() string {
	return fmt.Sprintf("%.1f s (all in the log after %.1f s, served after %.1f s; %d events received)",
		r.all.Seconds(), r.logged.Seconds(), r.served.Seconds(), r.sent)
}

// sync waits until everything is served, and every relay is in sync and has confirmed all that it
// has.
func (sp *spread) sync(t *testing.T, s *stage, name, bus string, door world.Door) (r times) {
	t.Helper()
	js, done := world.JetStream(t, bus)
	defer done()
	synced := sp.watch(t, js)
	total := sp.spec.Roots + 2*sp.spec.Repositories // with announcements and states
	deadline := time.Now().Add(longest)
	before, began, told := report(t, sp.feed).CPU, sp.began(t, deadline), time.Now()
	for ; r.all == 0; time.Sleep(100 * time.Millisecond) {
		logged, relays, since := int(length(t, js)), synced(), time.Since(began)
		if r.logged == 0 && logged >= total {
			r.logged = since
		}
		if r.logged > 0 && r.served == 0 && door.Count(nostr.Filter{Kinds: []int{1617, 1621}}) == sp.spec.Roots {
			r.served = time.Since(began)
		}
		if r.served > 0 && relays == len(sp.repos) {
			r.all = time.Since(began)
		}
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			s.say("%s, %.0f s: %d of %d in the log, %d of %d relays in sync", name, since.Seconds(), logged, total, relays, len(sp.repos))
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %d in the log, %d relays in sync", since, logged, relays)
		}
	}
	after := report(t, sp.feed)
	r.sent, r.source = after.Total().Sent, after.CPU-before
	return r
}

// began waits for the first connection to a relay, and returns when it was.
func (sp *spread) began(t *testing.T, deadline time.Time) time.Time {
	t.Helper()
	for ; time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if at := report(t, sp.feed).Total().Connected; !at.IsZero() {
			return at
		}
	}
	t.Fatal("no connection to the relays")
	return time.Time{}
}

// watch follows what the workers write down about relays. The function that it returns counts those
// that are in sync with all that they have.
func (sp *spread) watch(t *testing.T, js jetstream.JetStream) (synced func() int) {
	t.Helper()
	relays, err := js.KeyValue(t.Context(), proto.BucketRelays)
	must(t, err)
	watcher, err := relays.WatchAll(t.Context())
	must(t, err)
	t.Cleanup(func() { watcher.Stop() }) // an error says that the server is gone
	var mu sync.Mutex
	done := map[string]bool{} // by URL
	go func() {
		for entry := range watcher.Updates() {
			var state proto.RelayState
			if entry == nil || json.Unmarshal(entry.Value(), &state) != nil {
				continue // all that was there has come, or it is gone
			}
			mu.Lock()
			if n, ours := sp.repos[state.URL]; ours {
				done[state.URL] = state.Connection == allSynced && state.Repos == n && state.Roots == sp.roots[state.URL]
			}
			mu.Unlock()
		}
	}()
	return func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, yes := range done {
			if yes {
				n++
			}
		}
		return n
	}
}
