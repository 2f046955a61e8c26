package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/corpus"
)

const (
	asked = 5 * time.Second // how long clients ask
	page  = 500
)

// answered is what clients got who asked one after the other.
type answered struct {
	rate   float64 // events a second, all clients together
	median time.Duration
	events int
}

// ask lets clients ask for the newest events of a kind, limit at a time.
func ask(t *testing.T, url string, kind, clients, limit int) answered {
	t.Helper()
	took := make([][]time.Duration, clients)
	var all sync.WaitGroup
	began, filter := time.Now(), fmt.Sprintf(`{"kinds":[%d],"limit":%d}`, kind, limit)
	for i := range clients {
		c := dial(t, url)
		all.Go(func() {
			for time.Since(began) < asked {
				sent := time.Now()
				if n, err := c.request(filter); err != nil || n != limit {
					t.Errorf("asked for %d events, got %d: %v", limit, n, err)
					return
				}
				took[i] = append(took[i], time.Since(sent))
			}
		})
	}
	all.Wait()
	elapsed := time.Since(began)
	each := slices.Concat(took...)
	if len(each) == 0 {
		t.Fatal("no request was answered")
	}
	slices.Sort(each)
	return answered{float64(len(each)*limit) / elapsed.Seconds(), each[len(each)/2], len(each) * limit}
}

// requests measures how fast the gateway answers, and the same client with a relay that does
// nothing but write: what the client itself can take. The events came from twenty repositories at
// once, and not in the order in which they are asked for.
func requests(t *testing.T, s *stage) {
	p := s.played(t)
	for _, c := range []struct {
		clients, limit int
		target         string
	}{{1, page, "≥ 140,000 events/s"}, {8, page, "≥ 175,000 events/s"}, {1, 10, ""}, {8, 10, "≥ 81,000 events/s"}} {
		before := used(t, p.PID())
		got := ask(t, p.Relay(), nostr.KindIssue, c.clients, c.limit)
		cpu := used(t, p.PID()).cpu - before.cpu
		most := ask(t, p.feed.Relays[0], nostr.KindIssue, c.clients, c.limit)
		s.add(fmt.Sprintf("REQ of %d by kind, clients: %d", c.limit, c.clients),
			fmt.Sprintf("%.1f ms; %.0f events/s; %.1f µs of CPU an event", ms(got.median), got.rate, float64(cpu.Nanoseconds())/1e3/float64(got.events)),
			c.target, fmt.Sprintf("a relay with answers in memory: %.1f ms; %.0f events/s", ms(most.median), most.rate))
	}
	live := &pair{first: p.Tendril, second: p, who: corpus.Owner(0), repo: corpus.Identifier(0), kind: nostr.KindIssue}
	const rate = 50
	issues := live.issues(rate * int(longest.Seconds()))
	reading, over := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	readers.Go(func() {
		defer over()
		ask(t, p.Relay(), nostr.KindComment, 8, page)
	})
	d := live.publish(t, rate, issues, reading)
	p.own += len(d)
	readers.Wait()
	s.add(fmt.Sprintf("… live event of another client meanwhile, %d/s", rate), d.String(), "p99 ≤ 50ms", "")
}

// ms shows milliseconds.
func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
