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

// field measures a fresh Tendril that archives a large public service: one relay, and one git host
// that sets the pace: it is asked for half of the repositories in a minute. Its queue is longer
// than events are held, as it is at full size.
func field(t *testing.T, s *stage) {
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
	p := world.Start(t, settings(map[string]string{
		"NGIT_SYNC_BOOTSTRAP_RELAY_URL": f.Relays[0], "NGIT_ARCHIVE_ALL": "true", "NGIT_PURGATORY_HOLD": "10s",
		"NGIT_SYNC_DOMAIN_CONCURRENT": "5", "NGIT_SYNC_DOMAIN_RATE_LIMIT": fmt.Sprint(max(10, n/2)),
		"NGIT_HUNT_SYNC_DELAY": "500ms", "NGIT_HUNT_INTERVAL": "1s", "NGIT_HUNT_BACKOFF_BASE": "2s", "NGIT_HUNT_BACKOFF_MAX": "5s",
	}))
	expired := hearExpired(t, p.NATS, archived)
	began, told := time.Now(), time.Now()
	exist, filter := n-n/10, nostr.Filter{Kinds: []int{nostr.KindAnnouncement}}
	served := 0
	for ; served < exist && time.Since(began) < longest; time.Sleep(200 * time.Millisecond) {
		served = p.Count(filter)
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			s.say("field, %.0f s: %d of %d repositories are served, %d of what exists expired", time.Since(began).Seconds(), served, exist, expired())
		}
	}
	took, u := time.Since(began), used(t, p.PID())
	threads := p.Count(nostr.Filter{Kinds: kinds})
	host.mu.Lock()
	defer host.mu.Unlock()
	s.add(fmt.Sprintf("archive of %d repositories (%d events) on one host, until all that exists is served", n, len(lines)),
		fmt.Sprintf("%.0f s; %d of %d repositories, %d of their events", took.Seconds(), served, exist, threads), "all", s.limits.String())
	s.add("… of what exists, expired", fmt.Sprint(expired()), "0", "")
	s.add("… requests to the host; bytes of packs, fetched twice", fmt.Sprintf("%d; %s, %s", host.requests, mib(int64(packBytes(host.bytes))), mib(int64(host.twice))), "", "")
	s.add("… in one process", fmt.Sprintf("%.1f s of CPU, %.1f s of git's; %s resident at most", u.cpu.Seconds(), u.children.Seconds(), mib(u.peak)), "", "")
	must(t, p.Stop())
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
