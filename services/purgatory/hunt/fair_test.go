package hunt_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/repostate"
)

// within is how many requests of an identifier there were in a time after its start.
func (w *world) within(from time.Time, d time.Duration, prefix string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, at := range w.askedAt {
		if strings.HasPrefix(w.asked[i], prefix) && !at.Before(from) && at.Sub(from) < d {
			n++
		}
	}
	return n
}

// TestServedOwnersDoNotStarveStrangers: a host that 120 identifiers of served owners keep busy for
// ever, since it has nothing of what they want, is asked for a stranger's too; three times in four
// it is asked for the owners.
func TestServedOwnersDoNotStarveStrangers(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.limit = hunt.Limit{Concurrent: 5, Rate: 10}
		defer w.run(t)()
		began := time.Now()
		for n := range 120 {
			id := fmt.Sprint("served", n)
			w.set(id, id, []string{"1"}, "http://busy/"+id)
			w.missing[id][0].Served = true
			w.Add(id, 0)
		}
		time.Sleep(10 * time.Minute)
		for n := range 20 {
			id := fmt.Sprint("stranger", n)
			w.set(id, id, []string{"1"}, "http://busy/"+id)
			w.Add(id, 0)
		}
		time.Sleep(9 * time.Minute)
		for n := range 20 {
			if id := fmt.Sprint("stranger", n); w.within(began, time.Hour, id+" ") == 0 {
				t.Errorf("%s was not asked for within 9 minutes", id)
			}
		}
		if n := w.within(began.Add(10*time.Minute), 9*time.Minute, "served"); n < 63 {
			t.Errorf("owners who are served had %d of 90 requests", n)
		}
	})
}

// TestAHostThatIsAskedTooOftenIsLeftAlone for a minute, or as long as it says; what it refused then
// is asked again.
func TestAHostThatIsAskedTooOftenIsLeftAlone(t *testing.T) {
	t.Parallel()
	for says, pause := range map[time.Duration]time.Duration{0: time.Minute, 10 * time.Minute: 10 * time.Minute, 48 * time.Hour: time.Hour} {
		t.Run(says.String(), func(t *testing.T) {
			inTime(t, func(t *testing.T, w *world) {
				w.busy = map[string]hunt.Outcome{"busy": {Failed: "rate_limited", Answer: "429", Requests: 1, Pause: true, RetryAfter: says}}
				w.limit = hunt.Limit{Concurrent: 1, Rate: 60}
				defer w.run(t)()
				began := time.Now()
				for n := range 60 {
					id := fmt.Sprint(n)
					w.set(id, id, []string{"1"}, "http://busy/"+id)
					w.Add(id, 0)
				}
				time.Sleep(pause - time.Second)
				if n := w.within(began, pause-time.Second, ""); n != 1 {
					t.Errorf("%d requests before the pause was over", n)
				}
				w.mu.Lock()
				w.busy = nil
				for n := range 60 {
					w.has["http://busy/"+fmt.Sprint(n)] = []string{"1"}
				}
				w.mu.Unlock()
				time.Sleep(2 * time.Minute)
				if w.Len() != 0 {
					t.Errorf("%d are still hunted for", w.Len())
				}
				if asked := w.requests(); asked[1] != asked[0] { // it has not had its turn yet
					t.Errorf("after %s comes %s", asked[0], asked[1])
				}
			})
		})
	}
}

// TestAllURLsGetTheirTurn: of 500 URLs, no URL is asked a second time before all were asked once.
func TestAllURLsGetTheirTurn(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		var urls []string
		for n := range 500 {
			urls = append(urls, fmt.Sprintf("http://h%d/x", n))
		}
		w.set("x", "alice", []string{"1"}, urls...)
		w.missing["x"][0].Near = w.urls["x"][:3]
		defer w.run(t)()
		w.Add("x", 0)
		time.Sleep(15 * time.Minute)
		if w.Status("x").Tried {
			t.Errorf("all was tried with %d requests", len(w.requests()))
		}
		time.Sleep(25 * time.Minute)
		if !w.Status("x").Tried {
			t.Errorf("not all was tried with %d requests", len(w.requests()))
		}
		asked := w.requests()
		if len(asked) < 500 {
			t.Fatalf("%d requests in 40 minutes", len(asked))
		}
		if asked[0] != "x o http://h0/x" || len(slices.Compact(slices.Sorted(slices.Values(asked[:500])))) != 500 {
			t.Errorf("asked %v", asked[:500])
		}
	})
}

// TestTimeInQueuesAndFetchesDoesNotCount: the time that an identifier waits for a busy host, and
// that a fetch takes, is told apart from the time between attempts.
func TestTimeInQueuesAndFetchesDoesNotCount(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.limit = hunt.Limit{Concurrent: 1, Rate: 1}
		w.takes = func(string) time.Duration { return 10 * time.Second }
		defer w.run(t)()
		began := time.Now()
		for n := range 10 {
			id := fmt.Sprint(n)
			w.set(id, id, []string{"1"}, "http://busy/"+id)
			w.Add(id, 0)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(9*time.Minute + 5*time.Second)
		s := w.Status("9")
		if got := s.Waited.Within(began, time.Now()).Round(time.Second); !s.Waited.Now() || s.Tried || got != 9*time.Minute+5*time.Second {
			t.Errorf("while it waits or a fetch runs: %v of that, tried %v", got, s.Tried)
		}
		time.Sleep(15 * time.Second) // its fetch has ended after 5, the next attempt comes after 20
		s = w.Status("9")
		if got := s.Waited.Within(began, time.Now()).Round(time.Second); s.Waited.Now() || !s.Tried || got != 9*time.Minute+10*time.Second {
			t.Errorf("after its fetch: %v of that, tried %v", got, s.Tried)
		}
		if got := s.Waited.Within(began.Add(9*time.Minute), began.Add(9*time.Minute+2*time.Second)); got != 2*time.Second {
			t.Errorf("of two seconds %v", got)
		}
	})
}

// TestTimeUntilTheWorkerComesDoesNotCount: where very many identifiers wait, an attempt is due long
// before the worker comes to it.
func TestTimeUntilTheWorkerComesDoesNotCount(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.lateBy = time.Hour
		defer w.run(t)()
		w.set("x", "alice", []string{"1"}, "http://h/x")
		began := time.Now()
		w.Add("x", 10*time.Second)
		time.Sleep(40 * time.Minute)
		s := w.Status("x")
		if got := s.Waited.Within(began, time.Now()); !s.Waited.Now() || got != 40*time.Minute-10*time.Second {
			t.Errorf("while it is due: %v", got)
		}
		time.Sleep(20*time.Minute + 15*time.Second) // its fetch has ended, and it waits for the next attempt
		s = w.Status("x")
		if got := s.Waited.Within(began, time.Now()); s.Waited.Now() || got != time.Hour+100*time.Millisecond {
			t.Errorf("after its fetch: %v", got)
		}
	})
}

// TestNothingStalls: URLs come and go in between, and at the end every URL of every identifier
// is asked.
func TestNothingStalls(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inTime(t, func(t *testing.T, w *world) {
				random := rand.New(rand.NewPCG(seed, 38))
				w.atOnce = 1 + random.IntN(12)
				w.limit = hunt.Limit{Concurrent: 1 + random.IntN(3), Rate: 5 + random.IntN(30)}
				hosts, authors := 1+random.IntN(20), 1+random.IntN(6)
				w.takes = func(url string) time.Duration {
					return time.Duration(1+len(url)%7*len(url)%5) * 3 * time.Second
				}
				defer w.run(t)()
				want := map[string]bool{}
				for n := range 60 {
					id := fmt.Sprint("i", n)
					var urls []string
					for range 1 + random.IntN(4) {
						urls = append(urls, fmt.Sprintf("http://h%d.d%d.example/%s", random.IntN(hosts), random.IntN(3), id))
					}
					w.set(id, fmt.Sprint("author", random.IntN(authors)), []string{"1"}, urls...)
					w.mu.Lock()
					w.missing[id][0].Served = random.IntN(3) == 0
					w.mu.Unlock()
					w.Add(id, time.Duration(random.IntN(20))*time.Second)
					if random.IntN(3) == 0 {
						time.Sleep(time.Duration(random.IntN(9)) * time.Second)
					}
					if random.IntN(8) == 0 {
						gone := fmt.Sprint("i", random.IntN(n+1))
						w.Drop(func(id string) bool { return id == gone })
						for url := range want {
							if strings.HasPrefix(url, gone+" ") {
								delete(want, url)
							}
						}
					}
					if w.Status(id).Next.IsZero() && w.Status(id).Tried {
						continue // dropped at once
					}
					for _, url := range urls {
						want[id+" o "+url] = true
					}
				}
				time.Sleep(3 * time.Hour)
				asked := map[string]bool{}
				for _, r := range w.requests() {
					asked[r] = true
				}
				for url := range want {
					if !asked[url] {
						t.Errorf("%s was never asked", url)
					}
				}
			})
		})
	}
}

// BenchmarkCrowd measures how long other callers wait while so many identifiers with 30 URLs each
// are hunted for, on hosts that answer at once and have nothing, and what an identifier that waits
// takes of the heap.
func BenchmarkCrowd(b *testing.B) {
	for _, identifiers := range []int{2000, 5000} {
		b.Run(fmt.Sprint(identifiers), func(b *testing.B) {
			h := hunt.New(hunt.Options{
				Base: time.Hour, Max: time.Hour, Share: func() (int, int) { return 0, 1 }, Log: slog.New(slog.DiscardHandler),
				Limits: hunt.Limits{AtOnce: 32, Default: hunt.Limit{Concurrent: 5, Rate: 60}},
				Fetch: func(context.Context, string, repostate.Source, repostate.Want) hunt.Outcome {
					return hunt.Outcome{Failed: "not_found", Answer: "404", Requests: 1}
				},
				Look: func(string, string, time.Time) {},
			})
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() { done <- h.Run(ctx) }()
			before := heap()
			for n := range identifiers {
				id := fmt.Sprint(n)
				h.Add(id, 0)
				f := hunt.Found{All: true, Of: func(string) bool { return true }, Wants: []repostate.Want{{Owner: id, Payer: id, Waits: true, Objects: []string{"1"}}}}
				for host := range 30 {
					f.Sources = append(f.Sources, repostate.Source{URL: fmt.Sprintf("http://h%d.example/%s", (n+host*7)%1000, id), Author: id})
				}
				h.Seek(id, f)
			}
			taken := heap() - before
			b.ResetTimer()
			var longest time.Duration
			for n := range b.N {
				began := time.Now()
				h.Wanted(fmt.Sprint(n % identifiers))
				longest = max(longest, time.Since(began))
			}
			b.StopTimer()
			b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
			b.ReportMetric(taken/float64(identifiers), "B/identifier")
			cancel()
			<-done
		})
	}
}

// heap is how many bytes of the heap are in use.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
