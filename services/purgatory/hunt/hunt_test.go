package hunt_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/repostate"
)

// world is identifiers that miss something, and servers that each have some of it.
type world struct {
	*hunt.Hunter
	limit  hunt.Limit
	atOnce int
	share  func() (place, workers int)
	takes  func(url string) time.Duration // nil: 100 ms

	mu      sync.Mutex
	missing map[string][]repostate.Want
	urls    map[string][]repostate.Source
	has     map[string][]string       // URL → objects
	broken  map[string]netguard.Cause // URL
	busy    map[string]hunt.Outcome   // host → what it says to everything
	asked   []string                  // "identifier owner URL"
	askedAt []time.Time
	lateBy  time.Duration // how late the worker comes to what it should look at
	rare    bool          // all that waits is kept though its time is over
}

func newWorld() *world {
	return &world{
		limit: hunt.Limit{Concurrent: 5, Rate: 60}, atOnce: 16, share: func() (place, workers int) { return 0, 1 },
		missing: map[string][]repostate.Want{}, urls: map[string][]repostate.Source{}, has: map[string][]string{}, broken: map[string]netguard.Cause{},
	}
}

// run begins to hunt; Add and Seek are called as the worker does.
func (w *world) run(t *testing.T) (stop func()) {
	w.Hunter = hunt.New(hunt.Options{
		Base: 20 * time.Second, Max: 2 * time.Minute, Limits: hunt.Limits{Default: w.limit, AtOnce: w.atOnce},
		Share: w.share, Fetch: w.fetch, Log: slog.New(slog.DiscardHandler),
		Look: func(identifier, owner string, at time.Time) {
			time.AfterFunc(time.Until(at)+w.lateBy, func() { w.look(identifier, owner) })
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (w *world) look(identifier, owner string) {
	wanted, all := w.Wanted(identifier)
	if !wanted {
		return
	}
	of := func(other string) bool { return all || other == owner }
	w.mu.Lock()
	wants, sources := slices.Clone(w.missing[identifier]), w.urls[identifier]
	w.mu.Unlock()
	wants = slices.DeleteFunc(wants, func(want repostate.Want) bool { return !of(want.Owner) })
	w.Seek(identifier, hunt.Found{Wants: wants, Sources: sources, Of: of, All: all, Rare: w.rare})
}

func (w *world) fetch(ctx context.Context, identifier string, from repostate.Source, want repostate.Want) hunt.Outcome {
	url := from.URL
	w.mu.Lock()
	left := slices.ContainsFunc(w.missing[identifier], func(m repostate.Want) bool { return m.Owner == want.Owner })
	w.mu.Unlock()
	if !left {
		return hunt.Outcome{}
	}
	takes := 100 * time.Millisecond
	if w.takes != nil {
		takes = w.takes(url)
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return hunt.Outcome{Failed: netguard.CauseTimeout}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.Contains(url, "/unpaid/") {
		return hunt.Outcome{Failed: netguard.CauseOther}
	}
	w.asked = append(w.asked, identifier+" "+want.Owner+" "+url)
	w.askedAt = append(w.askedAt, time.Now())
	if w.broken[url] != "" {
		return hunt.Outcome{Failed: w.broken[url], Answer: "broken", Requests: 1}
	}
	if out, is := w.busy[hunt.HostOf(url)]; is {
		return out
	}
	out := hunt.Outcome{Failed: netguard.CauseOther, Answer: "answered", Requests: 2}
	for i, m := range w.missing[identifier] {
		left := slices.DeleteFunc(slices.Clone(m.Objects), func(id string) bool { return slices.Contains(w.has[url], id) })
		if m.Owner == want.Owner && len(left) < len(m.Objects) {
			out.Failed = ""
			w.missing[identifier][i].Objects = left
		}
	}
	w.missing[identifier] = slices.DeleteFunc(w.missing[identifier], func(m repostate.Want) bool { return len(m.Objects) == 0 })
	return out
}

// set says what an identifier misses, and the URLs that its author names.
func (w *world) set(identifier, author string, objects []string, urls ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missing[identifier] = []repostate.Want{{Owner: "o", Waits: true, Objects: objects}}
	w.urls[identifier] = nil
	for _, url := range urls {
		author, client, _ := strings.Cut(author, " by ")
		w.urls[identifier] = append(w.urls[identifier], repostate.Source{URL: url, Author: author, Client: client})
	}
}

// give lets a server have objects from now on.
func (w *world) give(url string, objects ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.has[url] = objects
}

func (w *world) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

func (w *world) misses(identifier string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.missing[identifier]) > 0
}

// inTime runs a test by a clock that jumps.
func inTime(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld()) })
}

// TestSeveralServersEachBringAPart: first those that the owner's people name, then the others in
// their order, and no more are asked than needed.
func TestSeveralServersEachBringAPart(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.set("x", "alice", []string{"1", "2", "3"}, "http://a/x", "http://b/x", "http://c/x", "http://d/x")
		w.has = map[string][]string{"http://a/x": {"1"}, "http://c/x": {"2", "3"}, "http://d/x": {"1", "2", "3"}}
		w.missing["x"][0].Near = w.urls["x"][1:2]
		defer w.run(t)()
		w.Add("x", 500*time.Millisecond)
		time.Sleep(5 * time.Second)
		if want := []string{"x o http://b/x", "x o http://a/x", "x o http://c/x"}; !slices.Equal(w.requests(), want) {
			t.Errorf("asked %v, want %v", w.requests(), want)
		}
		if w.Len() != 0 {
			t.Error("the hunt goes on though nothing is missing")
		}
	})
}

// TestBackoffUntilSomeServerHasIt: attempts at 180, 200, 240, 320, 440 s and so on; a new event
// begins again, sooner and never later.
func TestBackoffUntilSomeServerHasIt(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.set("x", "alice", []string{"1"}, "http://a/x")
		defer w.run(t)()
		began := time.Now()
		attempts := func(at time.Duration, want int) {
			t.Helper()
			time.Sleep(time.Until(began.Add(at)))
			if got := len(w.requests()); got != want {
				t.Fatalf("%d attempts after %v, want %d", got, at, want)
			}
		}
		w.Add("x", 3*time.Minute)
		attempts(179*time.Second, 0)
		attempts(190*time.Second, 1)
		attempts(210*time.Second, 2)
		attempts(330*time.Second, 4)
		attempts(450*time.Second, 5)
		attempts(690*time.Second, 7)
		w.Add("x", 3*time.Minute)
		attempts(700*time.Second, 7)
		w.Add("x", 500*time.Millisecond)
		attempts(702*time.Second, 8)
		attempts(723*time.Second, 9)
		w.give("http://a/x", "1")
		attempts(24*time.Hour, 10)
		if w.Len() != 0 {
			t.Error("the hunt goes on though nothing is missing")
		}
	})
}

// TestWhatIsKeptIsHuntedRarely: once in an hour, until a new event comes.
func TestWhatIsKeptIsHuntedRarely(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.rare = true
		w.set("x", "alice", []string{"1"}, "http://a/x")
		defer w.run(t)()
		w.Add("x", 0)
		time.Sleep(5*time.Hour + time.Minute)
		if n := len(w.requests()); n != 6 {
			t.Errorf("%d requests in five hours", n)
		}
		w.rare = false
		w.Add("x", 0)
		time.Sleep(5 * time.Minute)
		if n := len(w.requests()); n < 6+4 {
			t.Errorf("%d requests after a new event", n-6)
		}
	})
}

// TestAnEventDuringAnAttempt does not put off the next one.
func TestAnEventDuringAnAttempt(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.takes = func(string) time.Duration { return 10 * time.Second }
		w.set("x", "alice", []string{"1"}, "http://a/x")
		defer w.run(t)()
		w.Add("x", 0)
		time.Sleep(5 * time.Second)
		w.Add("x", 3*time.Minute)
		time.Sleep(35 * time.Second)
		if n := len(w.requests()); n < 2 {
			t.Errorf("%d requests in 40 s", n)
		}
	})
}

// TestWhatIsNotAskedCostsNoRequest: one whose budget is used up does not use up a host's limit too.
func TestWhatIsNotAskedCostsNoRequest(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.limit = hunt.Limit{Concurrent: 5, Rate: 2}
		defer w.run(t)()
		for n := range 50 {
			w.set(fmt.Sprint(n), "poor", []string{"1"}, fmt.Sprint("http://busy/unpaid/", n))
			w.Add(fmt.Sprint(n), 0)
		}
		w.set("x", "alice", []string{"1"}, "http://busy/x")
		w.Add("x", time.Second)
		time.Sleep(5 * time.Second)
		if len(w.requests()) != 1 {
			t.Errorf("asked %v", w.requests())
		}
	})
}

// TestWhatCameMeanwhileCostsNoRequest: an identifier that a push completes while it waits for a
// busy host does not use one of the requests of that host.
func TestWhatCameMeanwhileCostsNoRequest(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.limit = hunt.Limit{Concurrent: 5, Rate: 2}
		defer w.run(t)()
		for _, id := range []string{"a", "b", "c", "d"} {
			w.set(id, id, []string{"1"}, "http://busy/"+id)
			w.Add(id, 0)
		}
		time.Sleep(10 * time.Second)
		w.mu.Lock()
		waits := []string{"a", "b", "c", "d"}
		for _, r := range w.asked {
			waits = slices.DeleteFunc(waits, func(id string) bool { return strings.HasPrefix(r, id+" ") })
		}
		delete(w.missing, waits[0]) // pushed
		w.has["http://busy/"+waits[1]] = []string{"1"}
		w.mu.Unlock()
		w.set("e", "e", []string{"1"}, "http://busy/e")
		w.Add("e", 0)
		time.Sleep(55 * time.Second)
		if got := w.requests(); len(got) != 4 || w.misses(waits[1]) {
			t.Errorf("asked %v; %s had been completed by a push", got, waits[0])
		}
	})
}

// crowd makes x an identifier of many owners who each miss something that no server has.
func (w *world) crowd(owners int) {
	for i := range owners {
		owner := fmt.Sprintf("o%d", i)
		near := []repostate.Source{{URL: "http://s/" + owner, Author: owner}}
		w.urls["x"] = append(w.urls["x"], near...)
		w.missing["x"] = append(w.missing["x"], repostate.Want{Owner: owner, Waits: true, Objects: []string{"1"}, Near: near})
	}
}

// TestACrowdsRequestsAreBounded: hundreds of owners with as many URLs are a bounded number of
// requests, and none of them is always the one left out.
func TestACrowdsRequestsAreBounded(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.limit = hunt.Limit{Concurrent: 1000, Rate: 1_000_000}
		w.crowd(400)
		w.set("one", "alice", []string{"1"}, strings.Fields(strings.Repeat("http://one/%d ", 500))...)
		for n := range w.urls["one"] {
			w.urls["one"][n].URL = fmt.Sprint("http://one/", n)
		}
		defer w.run(t)()
		w.Add("x", 0)
		w.Add("one", 0)
		time.Sleep(15 * time.Second)
		asked := w.requests()
		one := slices.DeleteFunc(slices.Clone(asked), func(r string) bool { return !strings.HasPrefix(r, "one ") })
		if len(asked)-len(one) > 1000 || len(one) > 32 {
			t.Errorf("in the first attempt %d requests for a crowd and %d for one, want 1000 and 32 at most", len(asked)-len(one), len(one))
		}
		time.Sleep(10 * time.Minute)
		served := map[string]bool{}
		for _, r := range w.requests() {
			served[strings.Fields(r)[1]] = true
		}
		if len(served) < 390 {
			t.Errorf("only %d of 400 were asked for", len(served))
		}
	})
}

// TestTriedURLsSurviveTheAttempts: while an identifier waits for a busy host, its own attempts come
// and go. No URL of that host is asked a second time before all others were asked once.
func TestTriedURLsSurviveTheAttempts(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		const urls = 12
		var list []string
		for n := range urls {
			list = append(list, fmt.Sprintf("http://busy/%02d", n))
		}
		w.limit = hunt.Limit{Concurrent: 1, Rate: 2}
		w.set("x", "alice", []string{"1"}, list...)
		defer w.run(t)()
		w.Add("x", 0)
		time.Sleep(9 * time.Minute)
		asked := w.requests()
		if len(asked) < urls+2 {
			t.Fatalf("%d requests: %v", len(asked), asked)
		}
		first := slices.Sorted(slices.Values(asked[:urls]))
		if len(slices.Compact(first)) != urls {
			t.Errorf("within one cycle asked %v", asked)
		}
	})
}

// TestABrokenHostIsLeftAlone for 12 hours, by all identifiers: the whole host where its name is
// broken, and no other port of it where TLS is.
func TestABrokenHostIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cause  netguard.Cause
		broken string
		others string // is on the same host
		alone  bool   // the others are left alone too
	}{
		"name":          {netguard.CauseDNS, "http://broken/", "http://broken:8080/", true},
		"TLS":           {netguard.CauseTLS, "https://host:22/", "https://host/", false},
		"TLS of a port": {netguard.CauseTLS, "https://host:8443/", "https://host:9443/", false},
		"TLS of a user": {netguard.CauseTLS, "https://alice@host:8443/", "https://bob@host:8443/", true},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, w *world) {
				for _, id := range []string{"x", "y"} {
					w.set(id, id, []string{"1"}, tc.broken+id, tc.others+id, "http://sound/"+id)
					w.broken[tc.broken+id] = tc.cause
				}
				defer w.run(t)()
				w.Add("x", 0)
				w.Add("y", time.Hour)
				count := func(at string) (n int) {
					for _, r := range w.requests() {
						if strings.Contains(r, " "+at) {
							n++
						}
					}
					return n
				}
				others := func() bool { return count(tc.others) > 100 == !tc.alone }
				time.Sleep(11 * time.Hour)
				if count(tc.broken) != 1 || count("http://sound/") < 100 || !others() {
					t.Errorf("asked what is broken %d times, what is beside it %d times, and a sound host %d times", count(tc.broken), count(tc.others), count("http://sound/"))
				}
				time.Sleep(2 * time.Hour)
				if count(tc.broken) != 2 {
					t.Errorf("asked the broken host %d times in 13 hours", count(tc.broken))
				}
			})
		})
	}
}

// TestAFloodDelaysNoOther: while strangers announce much, the repository of another owner is hunted
// within some minutes. A slow server takes as long as a fetch may last.
func TestAFloodDelaysNoOther(t *testing.T) {
	t.Parallel()
	keys := func(n int) string { return fmt.Sprint("key", n) }
	one := func(n int) string { return fmt.Sprint("one by client", n) }
	for _, tc := range []struct {
		name   string
		flood  int
		url    string // of the nth, with %d
		host   int    // n is taken modulo this for the host
		author func(n int) string
		served bool // the owner of the normal one is
		within time.Duration
	}{
		{"110 identifiers on one slow host", 110, "http://slow.example/%d", 1, keys, false, time.Minute},
		{"800 identifiers by as many keys on 50 slow hosts", 800, "http://slow%d.example/", 50, keys, false, 6 * time.Minute},
		{"hosts without number below one domain", 500, "http://slow%d.slow.example/", 500, keys, false, time.Minute},
		{"one author on hosts without number", 500, "http://slow%d.example/", 500, one, false, time.Minute},
		{"one author with many identifiers on the same host", 600, "http://git.example.org/%d", 1, one, false, 3 * time.Minute},
		{"200 identifiers of as many keys on the same host", 200, "http://git.example.org/%d", 1, keys, false, 10 * time.Minute},
		{"800 of as many keys on the host of an owner who is served", 800, "http://git.example.org/%d", 1, keys, true, time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inTime(t, func(t *testing.T, w *world) {
				w.takes = func(url string) time.Duration {
					if strings.HasPrefix(url, "http://slow") {
						return 5 * time.Minute
					}
					return 100 * time.Millisecond
				}
				defer w.run(t)()
				for n := range tc.flood {
					id := fmt.Sprint("flood", n)
					w.set(id, tc.author(n), []string{"1"}, fmt.Sprintf(tc.url, n%max(tc.host, 2)))
					w.Add(id, 0)
				}
				time.Sleep(11 * time.Minute) // the flood is in full flow
				w.set("normal", "normal", []string{"1"}, "http://git.example.org/x")
				w.mu.Lock()
				w.missing["normal"][0].Served = tc.served
				w.has["http://git.example.org/x"] = []string{"1"}
				w.mu.Unlock()
				w.Add("normal", 0)
				began := time.Now()
				for w.misses("normal") && time.Since(began) < time.Hour {
					time.Sleep(time.Second)
				}
				if took := time.Since(began); took > tc.within {
					t.Errorf("the normal repository waited %v, want %v at most", took, tc.within)
				}
			})
		})
	}
}

// TestWorkersShareTheLimits: the limits of hosts hold for all workers together, also where there
// are more workers than a host may be asked at once.
func TestWorkersShareTheLimits(t *testing.T) {
	inTime(t, func(t *testing.T, _ *world) {
		const workers = 8
		var all []*world
		for place := range workers {
			w := newWorld()
			w.limit = hunt.Limit{Concurrent: 5, Rate: 5}
			var urls []string
			for n := range 40 {
				urls = append(urls, fmt.Sprintf("http://busy/%d/%d", place, n))
			}
			w.set("x", "alice", []string{"1"}, urls...)
			w.share = func() (int, int) { return place, workers }
			defer w.run(t)()
			w.Add("x", 0)
			all = append(all, w)
		}
		time.Sleep(20 * time.Minute)
		sum, least := 0, 1000
		for _, w := range all {
			sum, least = sum+len(w.requests()), min(least, len(w.requests()))
		}
		if sum > 5*21 || sum < 5*15 || least < 5 {
			t.Errorf("%d requests in 20 minutes by all workers, %d by the one with the least", sum, least)
		}
	})
}
