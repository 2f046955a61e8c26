package hunt_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/purgatory/throttle"
)

// TestAFloodDelaysNobody: whatever strangers announce, a repository of somebody else is hunted
// within some minutes. A slow server takes as long as a fetch may last.
func TestAFloodDelaysNobody(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		flood  int
		url    func(n int) string
		author func(n int) string
		normal string // where the data of the normal repository is
		within time.Duration
	}{
		{"110 identifiers on four ports of one slow host", 110,
			func(n int) string { return fmt.Sprintf("http://slow.example:%d/%d", 8000+n%4, n) },
			func(n int) string { return fmt.Sprint("key", n) }, "http://git.example.org/x", time.Minute},
		{"10,000 identifiers by as many keys on 50 slow hosts", 10_000,
			func(n int) string { return fmt.Sprintf("http://slow%d.example/%d", n%50, n) },
			func(n int) string { return fmt.Sprint("key", n) }, "http://git.example.org/x", 6 * time.Minute},
		{"hosts without number below one domain", 500,
			func(n int) string { return fmt.Sprintf("http://slow%d.slow.example/%d", n, n) },
			func(n int) string { return fmt.Sprint("key", n) }, "http://git.example.org/x", time.Minute},
		{"hosts without number at one address", 500,
			func(n int) string { return fmt.Sprintf("http://slow%d.example/%d", n, n) },
			func(n int) string { return fmt.Sprint("key", n) }, "http://git.example.org/x", time.Minute},
		{"one author on hosts without number", 500,
			func(n int) string { return fmt.Sprintf("http://slow%d.example/%d", n, n) },
			func(int) string { return "one" }, "http://git.example.org/x", time.Minute},
		{"one author with many identifiers on everybody's host", 1_500,
			func(n int) string { return fmt.Sprintf("http://git.example.org/%d", n) },
			func(int) string { return "one" }, "http://git.example.org/x", 3 * time.Minute},
		{"200 identifiers of as many keys on everybody's host", 200,
			func(n int) string { return fmt.Sprintf("http://git.example.org/%d", n) },
			func(n int) string { return fmt.Sprint("key", n) }, "http://git.example.org/x", 10 * time.Minute},
		{"4,000 identifiers of as many keys on everybody's host, by one client", 4_000,
			func(n int) string { return fmt.Sprintf("http://git.example.org/%d", n) },
			func(n int) string { return fmt.Sprint("key", n) }, "http://git.example.org/x", time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &ground{missing: map[string][]string{}, urls: map[string][]string{}, has: map[string][]string{}, author: map[string]string{}}
				g.takes = func(url string) time.Duration {
					if strings.HasPrefix(url, "http://slow") {
						return 5 * time.Minute
					}
					return 100 * time.Millisecond
				}
				if strings.HasSuffix(tc.name, "at one address") {
					g.at = func(url string) netip.Addr {
						if strings.HasPrefix(url, "http://slow") {
							return netip.MustParseAddr("198.51.100.1")
						}
						return netip.MustParseAddr("203.0.113.1")
					}
				}
				if strings.HasSuffix(tc.name, "by one client") {
					g.client = func(identifier string) string {
						if identifier == "normal" {
							return ""
						}
						return "192.0.2.1"
					}
				}
				for n := range tc.flood {
					id := fmt.Sprint("flood", n)
					g.missing[id], g.urls[id], g.author[id] = []string{"1"}, []string{tc.url(n)}, tc.author(n)
				}
				g.missing["normal"], g.urls["normal"], g.has[tc.normal] = []string{"1"}, []string{tc.normal}, []string{"1"}
				q, stop := run(t, g, throttle.Limit{Concurrent: 5, Rate: 30})
				for n := range tc.flood {
					q.Add(fmt.Sprint("flood", n), time.Now(), 0)
				}
				time.Sleep(10 * time.Minute) // the flood is in full flow
				q.Add("normal", time.Now(), 0)
				began := time.Now()
				for len(g.left()["normal"]) > 0 && time.Since(began) < 24*time.Hour {
					time.Sleep(time.Second)
				}
				took := time.Since(began)
				if took > tc.within {
					t.Errorf("the normal repository waited %v, want %v at most", took, tc.within)
				}
				t.Logf("waited %v", took)
				stop()
			})
		})
	}
}

// TestTriedURLsSurviveTheAttempts: while an identifier waits in the queue of a busy server, its own
// attempts come and go. No URL of that server is asked a second time before all others were asked
// once.
func TestTriedURLsSurviveTheAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const urls = 12
		g := &ground{missing: map[string][]string{"x": {"1"}}, urls: map[string][]string{}, has: map[string][]string{}}
		for n := range urls {
			g.urls["x"] = append(g.urls["x"], fmt.Sprintf("http://busy/%02d", n))
		}
		q, stop := run(t, g, throttle.Limit{Concurrent: 1, Rate: 2})
		q.Add("x", time.Now(), 0)
		time.Sleep(8 * time.Minute)
		asked := g.requests()
		if len(asked) < urls || len(asked) > 2*urls {
			t.Fatalf("%d requests: %v", len(asked), asked)
		}
		first := slices.Clone(asked[:urls])
		slices.Sort(first)
		if len(slices.Compact(first)) != urls {
			t.Errorf("within one cycle asked %v", asked)
		}
		// What is new is asked for where the old was asked for in vain.
		before := len(asked)
		g.mu.Lock()
		g.missing["x"] = []string{"1", "2"}
		g.has["http://busy/00"] = []string{"1", "2"}
		g.mu.Unlock()
		q.Add("x", time.Now(), 0)
		time.Sleep(8 * time.Minute)
		if len(g.left()) > 0 {
			t.Errorf("not found in %v", g.requests()[before:])
		}
		stop()
	})
}
