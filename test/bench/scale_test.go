package bench

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
	total int            // events that can be had, with announcements and states
}

// spread starts the relays, and before them one that has announcements and states only.
func (s *stage) spread(t *testing.T, spec corpus.Spec, args ...string) *spread {
	t.Helper()
	relays := scaleRelays + 1
	f := s.feed(t, spec, relays, append(args, "-copies", fmt.Sprint(scaleCopies))...)
	sp := &spread{spec: spec, feed: f, repos: map[string]int{}, roots: map[string]int{}, total: spec.Size() + 2*spec.Repositories}
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
		"TENDRIL_TEST_HUNT_SYNC_DELAY": "500ms", "TENDRIL_TEST_HUNT_INTERVAL": "1s", "TENDRIL_TEST_HUNT_BACKOFF_BASE": "20s", "TENDRIL_TEST_HUNT_BACKOFF_MAX": "2m",
		"NGIT_SYNC_DOMAIN_CONCURRENT": "32", "NGIT_SYNC_DOMAIN_RATE_LIMIT": "1000000", "TENDRIL_TEST_HUNTS_AT_ONCE": "128",
	}
}

// scale measures how long a fresh start takes at the everyday size.
func scale(t *testing.T, s *stage) {
	sp := s.spread(t, corpus.Spec{Repositories: scaleRepositories, Roots: scaleRoots})
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
	state := sp.watch(t, js)
	synced := func() (n int) {
		for url, repos := range sp.repos {
			is := state(url)
			if is.Connection == allSynced && is.Repos == repos && is.Roots == sp.roots[url] {
				n++
			}
		}
		return n
	}
	deadline := time.Now().Add(longest)
	before, began, told := report(t, sp.feed).CPU, sp.began(t, deadline), time.Now()
	for ; r.all == 0; time.Sleep(100 * time.Millisecond) {
		logged, relays, since := int(length(t, js)), synced(), time.Since(began)
		if r.logged == 0 && logged >= sp.total {
			r.logged = since
		}
		if r.logged > 0 && r.served == 0 && door.Count(nostr.Filter{Kinds: kinds}) == sp.total-2*sp.spec.Repositories {
			r.served = time.Since(began)
		}
		if r.served > 0 && relays == len(sp.repos) {
			r.all = time.Since(began)
		}
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			s.say("%s, %.0f s: %d of %d in the log, %d of %d relays in sync", name, since.Seconds(), logged, sp.total, relays, len(sp.repos))
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

// watch follows what the workers write down about relays. The function that it returns tells how one
// stands.
func (sp *spread) watch(t *testing.T, js jetstream.JetStream) (state func(url string) proto.RelayState) {
	t.Helper()
	relays, err := js.KeyValue(t.Context(), proto.BucketRelays)
	must(t, err)
	watcher, err := relays.WatchAll(t.Context())
	must(t, err)
	t.Cleanup(func() { watcher.Stop() }) // an error says that the server is gone
	var mu sync.Mutex
	states := map[string]proto.RelayState{} // by URL
	go func() {
		for entry := range watcher.Updates() {
			var state proto.RelayState
			if entry == nil || json.Unmarshal(entry.Value(), &state) != nil {
				continue // all that was there has come, or it is gone
			}
			mu.Lock()
			states[state.URL] = state
			mu.Unlock()
		}
	}()
	return func(url string) proto.RelayState {
		mu.Lock()
		defer mu.Unlock()
		return states[url]
	}
}

// oddAmongMany measures a fresh start with a hundred relays of which ten are slow, limited, refuse,
// or lie. All that can be had from any relay is served in the end, and those that do as they are
// asked are in sync.
func oddAmongMany(t *testing.T, s *stage) {
	sp := s.spread(t, corpus.Spec{Repositories: scaleRepositories / 5, Roots: scaleRoots / 5, Comments: 1}, "-odd")
	for i := range feed.OddRelays {
		delete(sp.repos, sp.feed.Relays[i])
	}
	for i := range sp.spec.Repositories {
		homes := feed.Homes(corpus.Identifier(i), scaleRelays+1, scaleCopies)
		if !slices.ContainsFunc(homes, feed.Delivers) {
			sp.total -= sp.spec.Size() / sp.spec.Repositories
		}
	}
	p := world.Start(t, sp.settings())
	r := sp.sync(t, s, "spread", p.NATS, p.Door)
	u, traffic := used(t, p.PID()), report(t, sp.feed).Relays
	s.add(fmt.Sprintf("%d repositories, %d events, %d relays of which %d are odd, cold, to all in sync", sp.spec.Repositories, sp.total,
		scaleRelays, len(feed.OddRelays)), r.String(), "all that can be had", s.limits.String())
	s.add("… in one process", fmt.Sprintf("%.1f s of CPU; %s resident at most", u.cpu.Seconds(), mib(u.peak)), "", "")
	js, done := world.JetStream(t, p.NATS)
	defer done()
	state := sp.watch(t, js)
	for _, i := range slices.Sorted(maps.Keys(feed.OddRelays)) {
		url := sp.feed.Relays[i]
		for deadline := time.Now().Add(5 * time.Second); state(url).URL == "" && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		is, went := state(url), traffic[i]
		s.add("… one that is "+feed.OddRelays[i], fmt.Sprintf("connection %d, health %d, %d of %d roots confirmed; %d connections, %d REQ, %d NEG-OPEN, %s from it", is.Connection,
			is.Health, is.Roots, sp.roots[url], went.Connections, went.Requests, went.Reconciled, mib(int64(went.Out))), "", is.LastError)
	}
	must(t, p.Stop())
}
