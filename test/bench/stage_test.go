package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/bench/feed"
	"tendril.dev/test/corpus"
	"tendril.dev/test/world"
)

const (
	repositories = 20
	// longest is how long one sync may take before its row is given up.
	longest = 5 * time.Minute
)

// stage is what rows share: the sets of events, and a Tendril that has synced one.
type stage struct {
	t      *testing.T // of the whole table
	dir    string     // of the sets
	work   *world.WorkTree
	git    *world.GitServer
	limits limits
	lines  []line
	synced *play // what the cold sync left; nil: none yet
}

func newStage(t *testing.T) *stage {
	// The same commit every time, because events that are kept from run to run name it.
	t.Setenv("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z")
	t.Setenv("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")
	s := &stage{t: t, dir: os.Getenv("TENDRIL_BENCH_DIR"), work: world.NewWorkTree(t), git: world.NewGitServer(t)}
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	must(t, os.MkdirAll(s.dir, 0o755))
	for i := range repositories {
		s.git.Host(corpus.Identifier(i), s.work)
	}
	return s
}

// spec is a set of so many events.
func (s *stage) spec(events int) corpus.Spec {
	return corpus.Spec{
		Repositories: repositories, Roots: events / 2, Comments: 1, Commit: s.work.Refs()["refs/heads/main"],
	}
}

// feed starts relays that have the events of a spec, but for announcements and states.
func (s *stage) feed(t testing.TB, spec corpus.Spec, relays int, args ...string) *feed.Feed {
	t.Helper()
	f, err := feed.Start(world.Program(t, "test/bench/source"), append([]string{"-relays", fmt.Sprint(relays)}, args...)...)
	must(t, err)
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Errorf("the source ended: %v", err)
		}
	})
	path, err := corpus.File(spec, s.dir)
	must(t, err, f.LoadFile(path))
	return f
}

// report is what the relays of a source did.
func report(t testing.TB, f *feed.Feed) feed.Report {
	t.Helper()
	r, err := f.Report()
	must(t, err)
	return r
}

// source starts relays that have the announcements, states and all events of a spec.
func (s *stage) source(t testing.TB, spec corpus.Spec, relays int, args ...string) *feed.Feed {
	t.Helper()
	f := s.feed(t, spec, relays, args...)
	refs := s.work.Refs()
	for i := range spec.Repositories {
		p, id := corpus.Owner(i), corpus.Identifier(i)
		must(t, f.Load([]byte(p.Announce(id, append(f.Relays, s.git.URL+"/"+id+".git")...).String()), []byte(p.State(id, refs).String())))
	}
	return f
}

// settings are as in production but for delays that would only be
// waited out and limits that one machine, which is every stranger at once, would meet.
func settings(more map[string]string) map[string]string {
	env := map[string]string{"NGIT_LOG_LEVEL": "info", "NGIT_SYNC_BATCH_WINDOW_MS": "1000", "NGIT_OBSERVE_ADDRESS": "127.0.0.1:0",
		"NGIT_EVENTS_PER_MINUTE": "1000000", "NGIT_EVENTS_PER_MINUTE_PER_IP": "1000000"}
	for k, v := range more {
		env[k] = v
	}
	return env
}

// play is a Tendril that syncs a set from a source.
type play struct {
	*world.Tendril
	feed  *feed.Feed
	total int // events that it should serve, without announcements and states
	own   int // issues besides, which a row has published here and the feed does not have
}

// result is what a sync took.
type result struct {
	took   time.Duration // from the first connection until the last event was served
	began  time.Duration // of that, until the first of the many events was in the log, about
	cpu    time.Duration
	peak   int64
	source time.Duration // CPU of the source
	in     int           // bytes that the source sent
}

func (r result) rate(events int) float64 { return float64(events) / r.took.Seconds() }

// each is the CPU time for one event.
func (r result) each(events int) time.Duration { return r.cpu / time.Duration(events) }

// kinds are those of a set's events, without announcements and states.
var kinds = []int{1111, 1617, 1618, 1621}

// sync waits until everything is served that was not when began was read.
func (p *play) sync(t testing.TB, s *stage, name string) result {
	t.Helper()
	before := report(t, p.feed)
	used0 := used(t, p.PID())
	profiled := saveProfile(t, name, p.Output())
	js, done := world.JetStream(t, p.NATS)
	defer done()
	deadline, told, first := time.Now().Add(longest), time.Now(), time.Time{}
	for logged := uint64(0); logged < uint64(p.total); time.Sleep(50 * time.Millisecond) {
		if logged = length(t, js); first.IsZero() && logged > 3*repositories { // more than announcements and states
			first = time.Now()
		}
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			s.say("%s: %d of %d in the log", name, logged, p.total)
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v there are %d events in the log, want %d", longest, logged, p.total)
		}
	}
	for n := 0; n < p.total; time.Sleep(20 * time.Millisecond) {
		if n = p.served(t); time.Now().After(deadline) {
			t.Fatalf("after %v %d events are served, want %d", longest, n, p.total)
		}
	}
	ended := time.Now()
	u := used(t, p.PID())
	after := report(t, p.feed)
	profiled()
	sum := after.Total()
	return result{
		took: ended.Sub(sum.Connected), began: first.Sub(sum.Connected), cpu: u.cpu - used0.cpu, peak: u.peak,
		source: after.CPU - before.CPU, in: sum.Out - before.Total().Out,
	}
}

// served is how many events of the set's kinds are served.
func (p *play) served(t testing.TB) int {
	t.Helper()
	return p.Count(nostr.Filter{Kinds: kinds})
}

// length is how many events are in the log.
func length(t testing.TB, js jetstream.JetStream) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log, err := js.Stream(ctx, proto.StreamEvents)
	must(t, err)
	return log.CachedInfo().State.Msgs
}

// start runs a Tendril that knows the relays of a source.
func (s *stage) start(t testing.TB, f *feed.Feed, spec corpus.Spec, more map[string]string) *play {
	t.Helper()
	env := settings(more)
	env["NGIT_SYNC_BOOTSTRAP_RELAY_URL"] = f.Relays[0]
	return &play{Tendril: world.Start(t, env), feed: f, total: spec.Size()}
}

// profilesAt is where the process says that it serves profiles.
var profilesAt = regexp.MustCompile(`msg=listening service=observation address=(\S+)`)

// profilesOf is where a process serves its profiles, as its output says.
func profilesOf(t testing.TB, output string) string {
	t.Helper()
	at := profilesAt.FindStringSubmatch(output)
	if at == nil {
		t.Fatal("the process does not say where profiles are")
	}
	return "http://" + at[1] + "/debug/pprof"
}

// saveProfile takes a CPU profile of a process while a row syncs, and a heap profile when done is
// called, if profiles are wanted.
func saveProfile(t testing.TB, name, output string) (done func()) {
	t.Helper()
	if *profileDir == "" {
		return func() {}
	}
	path, from := filepath.Join(*profileDir, name), profilesOf(t, output)
	saved := make(chan error, 1)
	go func() { saved <- save(path+".pprof", fmt.Sprintf("%s/profile?seconds=%d", from, *profileSecs)) }()
	return func() {
		if err := errors.Join(<-saved, save(path+"-heap.pprof", from+"/heap?gc=1")); err != nil {
			t.Errorf("profile: %v", err)
		}
	}
}

func save(path, url string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", url, resp.Status)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, resp.Body); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// mib shows bytes.
func mib(bytes int64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20)) }

// micros is a duration in microseconds.
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
