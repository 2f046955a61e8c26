package bench

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/corpus"
	"tendril.dev/test/world"
)

var fieldRepositories = flag.Int("field-repositories", 2500, "repositories of the row field")

// fieldKeys is how many keys announce the repositories of the row field, for each 1,000.
const fieldKeys = 300

// fieldHold is how long events are held in the row field.
const fieldHold = 86 * time.Second

// fieldHost is the one git host of the row field. It counts what it is asked for.
type fieldHost struct {
	*httptest.Server
	all *oneForAll

	mu       sync.Mutex
	requests int
	bytes    map[string]int // of packs, by path
	twice    int            // bytes of packs that a repository got after its first
}

func newFieldHost(t *testing.T, s *stage) *fieldHost {
	h := &fieldHost{all: newOneForAll(t, s.work), bytes: map[string]int{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

// ServeHTTP answers a git client; repositories whose name begins with none are not there.
func (h *fieldHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, _, _ := strings.Cut(r.URL.Path, ".git/")
	h.mu.Lock()
	h.requests++
	h.mu.Unlock()
	if strings.HasPrefix(path, "/none") {
		http.NotFound(w, r)
		return
	}
	answer := httptest.NewRecorder()
	h.all.ServeHTTP(answer, r)
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	sent, _ := w.Write(answer.Body.Bytes())
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Method != http.MethodPost || !strings.Contains(answer.Body.String(), "PACK") {
		return
	}
	if h.bytes[path] > 0 {
		h.twice += sent
	}
	h.bytes[path] += sent
}

// field measures a fresh Tendril that archives a large public service.
func field(t *testing.T, s *stage) {
	archive(t, s, "in one process", func(env map[string]string) (string, world.Door, func() string) {
		p := world.Start(t, env)
		return p.NATS, p.Door, func() string {
			u := used(t, p.PID())
			must(t, p.Stop())
			return fmt.Sprintf("%.1f s of CPU, %.1f s of git's; %s resident at most", u.cpu.Seconds(), u.children.Seconds(), mib(u.peak))
		}
	})
}

// fieldOfThree is the same with services apart, and three purgatory workers.
func fieldOfThree(t *testing.T, s *stage) {
	archive(t, s, "with services apart, of which three are purgatory's", func(env map[string]string) (string, world.Door, func() string) {
		a, gateway := &apart{nats: world.StartNATS(t), volume: world.Folder(t), env: env}, (*world.Replica)(nil)
		for _, service := range []string{"ingest", "purgatory", "purgatory", "purgatory", "gateway", "relayconn", "discovery"} {
			if p, _ := a.start(t, service); service == "gateway" {
				gateway = p
			}
		}
		return a.nats.Direct(), gateway.Door(), func() string { return fmt.Sprintf("%.1f s of CPU", a.cpu(t).Seconds()) }
	})
}

// archive archives a service that is one relay, and one git host that sets the pace: it is asked for
// half of the repositories in a minute. In service it is asked for 60, so that the queue of 2,500
// takes 42 min, and events are held for 30. Here the queue takes 2 min, and fieldHold is as much of
// that: more than the minute for which live filters wait to be consolidated, as in service.
func archive(t *testing.T, s *stage, how string, start func(env map[string]string) (bus string, door world.Door, end func() string)) {
	n := *fieldRepositories
	for i := range 4 {
		s.work.Git("branch", "-f", fmt.Sprint("branch-", i))
	}
	for i := range 3 {
		s.work.Git("tag", "-f", fmt.Sprint("v", i))
	}
	host, f := newFieldHost(t, s), s.feed(t, corpus.Spec{}, 1)
	set := corpus.Field{
		Repositories: n, Keys: max(10, n*fieldKeys/1000), Refs: s.work.Refs(), Commit: s.work.Refs()["refs/heads/main"], Relay: f.Relays[0],
	}
	set.Clone = func(i int) []string {
		name := "some"
		if set.IsNowhere(i) {
			name = "none"
		}
		return []string{fmt.Sprintf("%s/%s%d.git", host.URL, name, i)}
	}
	lines, archived := set.Lines()
	must(t, f.Load(lines...))
	bus, door, end := start(settings(map[string]string{
		"NGIT_SYNC_BOOTSTRAP_RELAY_URL": f.Relays[0], "NGIT_ARCHIVE_ALL": "true", "NGIT_PURGATORY_HOLD": fieldHold.String(),
		"NGIT_SYNC_DOMAIN_CONCURRENT": "5", "NGIT_SYNC_DOMAIN_RATE_LIMIT": fmt.Sprint(max(10, n/2)),
		"TENDRIL_TEST_HUNT_SYNC_DELAY": "500ms", "TENDRIL_TEST_HUNT_INTERVAL": "1s", "TENDRIL_TEST_HUNT_BACKOFF_BASE": "2s", "TENDRIL_TEST_HUNT_BACKOFF_MAX": "5s",
	}))
	expired := hearExpired(t, bus, archived)
	began, told := time.Now(), time.Now()
	exist, filter := n-n/10, nostr.Filter{Kinds: []int{nostr.KindAnnouncement}}
	everything := nostr.Filter{Kinds: append([]int{nostr.KindAnnouncement, nostr.KindState, nostr.KindStatusApplied, 9841}, kinds...)}
	served, events := 0, 0
	for ; events < len(archived) && time.Since(began) < longest; time.Sleep(200 * time.Millisecond) {
		if served = door.Count(filter); served == exist {
			events = door.Count(everything)
		}
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			s.say("field, %.0f s: %d of %d repositories are served, %d of what exists expired", time.Since(began).Seconds(), served, exist, expired())
		}
	}
	took := time.Since(began)
	host.mu.Lock()
	defer host.mu.Unlock()
	s.add(fmt.Sprintf("archive of %d repositories (%d events) on one host, until all that exists is served", n, len(lines)),
		fmt.Sprintf("%.0f s; %d of %d repositories, %d of %d events", took.Seconds(), served, exist, events, len(archived)), "all", s.limits.String())
	s.add("… of what exists, expired", fmt.Sprint(expired()), "0", "")
	s.add("… requests to the host; bytes of packs, fetched twice", fmt.Sprintf("%d; %s, %s", host.requests, mib(int64(packBytes(host.bytes))), mib(int64(host.twice))), "", "")
	s.add("… "+how, end(), "", "")
}

func packBytes(counts map[string]int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

// hearExpired counts which of these events have expired.
func hearExpired(t *testing.T, url string, of map[string]bool) (expired func() int) {
	t.Helper()
	conn, err := nats.Connect(url)
	must(t, err)
	t.Cleanup(conn.Close)
	var mu sync.Mutex
	gone := map[string]bool{}
	_, err = conn.Subscribe("grasp.git.*."+string(proto.GitExpired), func(m *nats.Msg) {
		var notice proto.GitNotice
		if json.Unmarshal(m.Data, &notice) == nil && of[notice.Event] {
			mu.Lock()
			gone[notice.Event] = true
			mu.Unlock()
		}
	})
	must(t, err, conn.Flush())
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(gone)
	}
}
