package hunt_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/throttle"
)

var rules = hunt.Rules{Base: 20 * time.Second, Max: 2 * time.Minute, Interval: time.Second}

func TestQueue(t *testing.T) {
	t.Parallel()
	at := func(seconds float64) time.Time { return time.Unix(0, int64(seconds*1e9)) }
	q := hunt.NewQueue(rules)
	due := func(seconds float64, want ...string) {
		t.Helper()
		if got := q.Due(at(seconds), 10); !slices.Equal(got, want) {
			t.Fatalf("at %v s due %v, want %v", seconds, got, want)
		}
	}
	q.Add("x", at(0), 3*time.Minute) // by a user
	due(1)
	q.Add("x", at(1), 500*time.Millisecond) // and by sync: sooner
	q.Add("x", at(1.2), 3*time.Minute)      // never later
	due(1.5, "x")
	due(2) // in progress
	q.Finished("x", at(2), true)
	due(21.9)
	due(22, "x")
	q.Finished("x", at(22), true)
	due(61.9)
	due(62, "x")
	q.Finished("x", at(62), true)
	due(142, "x")
	for n := range 3 { // 120 s each from here
		now := 142 + 120*float64(n)
		q.Finished("x", at(now), true)
		due(now + 119.9)
		due(now+120, "x")
	}
	// A new event while the hunt is on: at its own time, with the attempts counted anew.
	q.Add("x", at(510), 500*time.Millisecond)
	q.Finished("x", at(511), true)
	due(511, "x")
	q.Finished("x", at(511), true)
	due(531, "x")
	q.Finished("x", at(531), false)
	due(10_000)
	if q.Len() != 0 {
		t.Fatalf("%d entries are left", q.Len())
	}
}

// alone is how a worker counts that has no others beside it.
func alone() (place, workers int) { return 0, 1 }

// ground is a world of servers, each with some objects.
type ground struct {
	mu      sync.Mutex
	missing map[string][]string // identifier → objects
	urls    map[string][]string
	author  map[string]string   // identifier → who announces it; nobody else, if it has none
	has     map[string][]string // url → objects
	asked   []string
	broken  bool
	takes   func(url string) time.Duration
	at      func(url string) netip.Addr    // where a server is, if that matters
	client  func(identifier string) string // who submitted it, if that matters
}

func (g *ground) Look(_ context.Context, identifier string) (hunt.Prospect, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken {
		return hunt.Prospect{}, errors.New("broken")
	}
	if len(g.missing[identifier]) == 0 {
		return hunt.Prospect{}, nil
	}
	sources := by(cmp.Or(g.author[identifier], identifier), g.urls[identifier]...)
	if g.client != nil {
		for i := range sources {
			sources[i].Client = g.client(identifier)
		}
	}
	wants := []dossier.Want{{Owner: "o", Objects: slices.Clone(g.missing[identifier])}}
	return hunt.Prospect{Wants: wants, Sources: sources}, nil
}

// by are URLs that somebody names.
func by(author string, urls ...string) (list []dossier.Source) {
	for _, url := range urls {
		list = append(list, dossier.Source{URL: url, Author: author})
	}
	return list
}

func (g *ground) Fetch(_ context.Context, identifier, url string, want dossier.Want, reached func(netip.Addr) bool) hunt.Outcome {
	if g.at != nil && !reached(g.at(url)) {
		return hunt.PutOff
	}
	if g.takes != nil {
		time.Sleep(g.takes(url))
	} else {
		time.Sleep(100 * time.Millisecond)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, identifier+" "+url)
	before := len(g.missing[identifier])
	g.missing[identifier] = slices.DeleteFunc(g.missing[identifier], func(id string) bool { return slices.Contains(g.has[url], id) })
	if len(g.missing[identifier]) < before {
		return hunt.Brought
	}
	return hunt.Failed
}

func (g *ground) requests() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.asked)
}

// left is what nobody has brought yet.
func (g *ground) left() map[string][]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := maps.Clone(g.missing)
	maps.DeleteFunc(left, func(_ string, objects []string) bool { return len(objects) == 0 })
	return left
}

func (g *ground) count() int { return len(g.requests()) }

func run(t *testing.T, g *ground, limit throttle.Limit) (*hunt.Queue, func()) {
	q := hunt.NewQueue(rules)
	h := &hunt.Hunter{
		Queue: q, Ground: g, Rules: rules, Log: slog.New(slog.DiscardHandler),
		Throttle: throttle.New(throttle.Limits{AtOnce: 16, Default: limit}, alone),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	return q, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestSeveralServersEachBringAPart, and no more are asked than needed.
func TestSeveralServersEachBringAPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &ground{
			missing: map[string][]string{"x": {"1", "2", "3"}},
			urls:    map[string][]string{"x": {"http://a/x", "http://b/x", "http://c/x", "http://d/x"}},
			has:     map[string][]string{"http://a/x": {"1"}, "http://c/x": {"2", "3"}, "http://d/x": {"1", "2", "3"}},
		}
		q, stop := run(t, g, throttle.Limit{Concurrent: 5, Rate: 30})
		q.Add("x", time.Now(), 500*time.Millisecond)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if want := []string{"x http://a/x", "x http://b/x", "x http://c/x"}; !slices.Equal(g.requests(), want) {
			t.Errorf("asked %v, want %v", g.requests(), want)
		}
		if q.Len() != 0 {
			t.Error("the hunt goes on though nothing is missing")
		}
		stop()
	})
}

// TestBackoffUntilSomebodyHasIt: attempts at 0, 20, 60, 140, 260 s and so on; when the objects turn
// up the hunt ends.
func TestBackoffUntilSomebodyHasIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &ground{missing: map[string][]string{"x": {"1"}}, urls: map[string][]string{"x": {"http://a/x"}}, has: map[string][]string{}}
		q, stop := run(t, g, throttle.Limit{Concurrent: 5, Rate: 30})
		q.Add("x", time.Now(), 0)
		time.Sleep(270 * time.Second)
		if g.count() != 5 {
			t.Errorf("%d attempts in 270 s, want 5", g.count())
		}
		g.mu.Lock()
		g.has["http://a/x"] = []string{"1"}
		g.mu.Unlock()
		time.Sleep(125 * time.Second)
		if q.Len() != 0 || g.count() != 6 {
			t.Errorf("%d in the queue after %d attempts", q.Len(), g.count())
		}
		stop()
	})
}

// TestBusyServersQueueServesEverybody: with one request at once, twenty identifiers of one server
// all come through, none of them by waiting for a back-off.
func TestBusyServersQueueServesEverybody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &ground{missing: map[string][]string{}, urls: map[string][]string{}, has: map[string][]string{}}
		q, stop := run(t, g, throttle.Limit{Concurrent: 1, Rate: 1000})
		for i := range 20 {
			id := fmt.Sprint("id", i)
			url := "http://busy/" + id
			g.mu.Lock()
			g.missing[id], g.urls[id], g.has[url] = []string{"1"}, []string{"http://busy/none", url}, []string{"1"}
			g.mu.Unlock()
			q.Add(id, time.Now(), 0)
		}
		time.Sleep(15 * time.Second)
		for id, missing := range g.left() {
			t.Errorf("%s still misses %v", id, missing)
		}
		asked := g.count()
		time.Sleep(rules.Base + rules.Interval)
		if q.Len() != 0 || g.count() != asked {
			t.Errorf("%d identifiers are left after %d requests", q.Len(), g.count())
		}
		stop()
	})
}

func TestBrokenGroundIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &ground{missing: map[string][]string{"x": {"1"}}, urls: map[string][]string{"x": {"http://a/x"}}, has: map[string][]string{"http://a/x": {"1"}}, broken: true}
		q, stop := run(t, g, throttle.Limit{Concurrent: 1, Rate: 1000})
		q.Add("x", time.Now(), 0)
		time.Sleep(10 * time.Second)
		g.mu.Lock()
		g.broken = false
		g.mu.Unlock()
		time.Sleep(30 * time.Second)
		if q.Len() != 0 {
			t.Error("the hunt was given up")
		}
		stop()
	})
}

// TestEveryRequestIsCounted: what several repositories miss is not asked of one server in one go
// past its limits.
func TestEveryRequestIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &crowd{owners: 20}
		q := hunt.NewQueue(rules)
		h := &hunt.Hunter{
			Queue: q, Ground: g, Rules: rules, Log: slog.New(slog.DiscardHandler),
			Throttle: throttle.New(throttle.Limits{AtOnce: 16, Default: throttle.Limit{Concurrent: 5, Rate: 6}}, alone),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		q.Add("x", time.Now(), 0)
		time.Sleep(59 * time.Second)
		if asked := g.requests(); len(asked) != 6 {
			t.Errorf("%d requests within a minute, want 6: %v", len(asked), asked)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNearURLsFirst: each want's own, before anything that others announce.
func TestNearURLsFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &crowd{owners: 3}
		q := hunt.NewQueue(rules)
		h := &hunt.Hunter{
			Queue: q, Ground: g, Rules: rules, Log: slog.New(slog.DiscardHandler),
			Throttle: throttle.New(throttle.Limits{AtOnce: 16, Default: throttle.Limit{Concurrent: 5, Rate: 1000}}, alone),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		q.Add("x", time.Now(), 0)
		time.Sleep(15 * time.Second)
		want := []string{"o0 http://s/o0", "o1 http://s/o1", "o2 http://s/o2", "o1 http://s/o0", "o2 http://s/o0", "o0 http://s/o1", "o2 http://s/o1", "o0 http://s/o2", "o1 http://s/o2"}
		if asked := g.requests(); !slices.Equal(asked, want) {
			t.Errorf("asked %v, want %v", asked, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestACrowdsRequestsAreBounded: a thousand owners with a thousand URLs are a bounded number of
// requests, and none of them is always the one left out.
func TestACrowdsRequestsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &crowd{owners: 1500}
		q := hunt.NewQueue(rules)
		h := &hunt.Hunter{
			Queue: q, Ground: g, Rules: rules, Log: slog.New(slog.DiscardHandler),
			Throttle: throttle.New(throttle.Limits{AtOnce: 16, Default: throttle.Limit{Concurrent: 5, Rate: 1_000_000}}, alone),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		q.Add("x", time.Now(), 0)
		time.Sleep(2 * time.Minute)
		if asked := g.requests(); len(asked) != 1000 {
			t.Errorf("%d requests in the first attempt, want 1000", len(asked))
		}
		time.Sleep(20 * time.Minute)
		served := map[string]bool{}
		for _, r := range g.requests() {
			served[strings.Fields(r)[0]] = true
		}
		if len(served) < 1400 {
			t.Errorf("only %d of 1500 got a turn", len(served))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestSlowServersDoNotKeepTheirPlace: with room for one hunt and twenty servers that never answer,
// another identifier gets its turn, and one that stands behind those servers is asked in the end.
func TestSlowServersDoNotKeepTheirPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &ground{missing: map[string][]string{"slow": {"1"}, "x": {"1"}}, urls: map[string][]string{"x": {"http://a/x"}}, has: map[string][]string{"http://a/x": {"1"}, "http://z/slow": {"1"}}}
		for i := range 20 {
			g.urls["slow"] = append(g.urls["slow"], fmt.Sprintf("http://s%d/slow", i))
		}
		g.urls["slow"] = append(g.urls["slow"], "http://z/slow")
		g.takes = func(url string) time.Duration {
			if strings.HasPrefix(url, "http://s") {
				return 5 * time.Minute
			}
			return 100 * time.Millisecond
		}
		q := hunt.NewQueue(rules)
		h := &hunt.Hunter{Queue: q, Ground: g, Rules: rules, Log: slog.New(slog.DiscardHandler),
			Throttle: throttle.New(throttle.Limits{AtOnce: 1, Default: throttle.Limit{Concurrent: 5, Rate: 30}}, alone)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		q.Add("slow", time.Now(), 0)
		time.Sleep(2 * time.Second)
		q.Add("x", time.Now(), 0)
		time.Sleep(15 * time.Minute)
		if len(g.left()["x"]) > 0 {
			t.Errorf("still waiting for its turn after %v", g.requests())
		}
		time.Sleep(48 * time.Hour)
		if len(g.left()) > 0 {
			t.Errorf("the server at the end was never asked, in %d requests", g.count())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// crowd is many owners who each miss something that nobody has.
type crowd struct {
	owners int
	mu     sync.Mutex
	asked  []string
}

func (c *crowd) Look(context.Context, string) (p hunt.Prospect, err error) {
	for i := range c.owners {
		url := fmt.Sprintf("http://s/o%d", i)
		owner := fmt.Sprintf("o%d", i)
		p.Sources = append(p.Sources, by(owner, url)...)
		p.Wants = append(p.Wants, dossier.Want{Owner: owner, Objects: []string{"1"}, Near: by(owner, url)})
	}
	return p, nil
}

func (c *crowd) Fetch(_ context.Context, _, url string, want dossier.Want, _ func(netip.Addr) bool) hunt.Outcome {
	time.Sleep(100 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, want.Owner+" "+url)
	return hunt.Failed
}

func (c *crowd) requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}
