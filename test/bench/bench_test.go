// Package bench measures the built program as a whole: how fast events of another relay are served,
// how long a user waits for an OK, how many users' events go through at once. Figures of single
// parts are in the benchmarks of their packages.
package bench

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

func TestMain(m *testing.M) {
	code := m.Run()
	world.Clean()
	os.Exit(code)
}

// quiet are settings as in production, but for the delays that would only be waited out.
func quiet(more map[string]string) map[string]string {
	env := map[string]string{"NGIT_LOG_LEVEL": "info", "NGIT_SYNC_BATCH_WINDOW_MS": "1000"}
	for k, v := range more {
		env[k] = v
	}
	return env
}

// hosted returns a running Tendril with one repository that is served.
func hosted(b *testing.B, more map[string]string) (*world.Tendril, *world.Person) {
	b.Helper()
	p := world.Start(b, quiet(more))
	ann, work := world.NewPerson(b), world.NewWorkTree(b)
	for _, ev := range []*nostr.Event{ann.Announce("mine", "mine", nil, nil), ann.State("mine", work.Refs(), "refs/heads/main")} {
		if ok, message := world.Submit(b, p.Relay(), ev); !ok {
			b.Fatal(message)
		}
	}
	world.Git(b, work.Dir, "push", "-q", p.URL+"/"+ann.Npub+"/mine.git", "main")
	return p, ann
}

// issues signs n issues about a repository, a second apart.
func issues(p *world.Person, address string, n int) []*nostr.Event {
	events := make([]*nostr.Event, n)
	for i := range events {
		events[i] = p.SignAt(nostr.Now()-nostr.Timestamp(n-i), 1621, fmt.Sprint("issue ", i), nostr.Tag{"a", address})
	}
	return events
}

// BenchmarkSync syncs the issues of one repository from a relay that lists it, from the connection
// to the moment when the last one is served: verification, the bus, commits with fsync, the index.
func BenchmarkSync(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		b.StopTimer()
		ann, work, git := world.NewPerson(b), world.NewWorkTree(b), world.NewGitServer(b)
		events := issues(ann, ann.Address("mine"), n)
		relay := world.NewRelay(b, events...)
		relay.Publish(ann.Announce("mine", "mine", []string{git.Host("mine", work)}, []string{relay.URL}), ann.State("mine", work.Refs(), "refs/heads/main"))
		relay.Shut(true)
		p := world.Start(b, quiet(map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": relay.URL}))
		b.StartTimer()
		relay.Shut(false)
		// The oldest comes last: pages go back in time.
		world.Serves(b, p.Relay(), events[0])
		b.StopTimer()
		if got := world.Count(b, p.Relay(), nostr.Filter{Kinds: []int{1621}}); got != n {
			b.Fatalf("%d issues are served, want %d", got, n)
		}
		if err := p.Stop(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkUserEvent is how long a single user waits for the OK of an event: one commit each, fsync
// included.
func BenchmarkUserEvent(b *testing.B) {
	p, ann := hosted(b, nil)
	s := world.Dial(b, p.Relay())
	events := issues(ann, ann.Address("mine"), 2000)
	next := 0
	for b.Loop() {
		s.Send("EVENT", events[next%len(events)])
		next++
		if m := s.Next(); m[0] != "OK" || m[2] != true {
			b.Fatalf("answered %v", m)
		}
	}
}

// BenchmarkUsersAtOnce is how many events of fifty users at once are acknowledged in a second: they
// share commits.
func BenchmarkUsersAtOnce(b *testing.B) {
	p, ann := hosted(b, nil)
	const users, each = 50, 40
	var took time.Duration
	total := 0
	for b.Loop() {
		b.StopTimer()
		events := issues(ann, ann.Address("mine"), users*each)
		var sockets []*world.Socket
		for range users {
			sockets = append(sockets, world.Dial(b, p.Relay()))
		}
		b.StartTimer()
		began := time.Now()
		var all sync.WaitGroup
		for u, s := range sockets {
			all.Go(func() {
				for _, ev := range events[u*each : (u+1)*each] {
					s.Send("EVENT", ev)
					if m := s.Next(); m[0] != "OK" || m[2] != true {
						b.Errorf("answered %v", m)
						return
					}
				}
			})
		}
		all.Wait()
		took += time.Since(began)
		total += users * each
		for _, s := range sockets {
			s.Close()
		}
	}
	b.ReportMetric(float64(total)/took.Seconds(), "events/s")
}
