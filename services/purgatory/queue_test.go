package purgatory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// played is a queue that writes down its tasks. Each takes a second.
type played struct {
	*queue
	mu    sync.Mutex
	began time.Time
	got   []string
	fails map[string]bool // identifiers whose tasks fail
}

// playQueue runs a queue until stop is called.
func playQueue(t *testing.T, fails ...string) (p *played, run func() (stop func())) {
	p = &played{began: time.Now(), fails: map[string]bool{}}
	for _, identifier := range fails {
		p.fails[identifier] = true
	}
	p.queue = newQueue(3, 20*time.Second, 10*time.Minute, func(_ context.Context, work task) error {
		var places []string
		for place, reach := range work.places {
			places = append(places, fmt.Sprint(place.PubKey, reach))
		}
		slices.Sort(places)
		if work.identifierOnly {
			places = append(places, "itself")
		}
		p.mu.Lock()
		p.got = append(p.got, fmt.Sprint(work.identifier, " ", strings.Join(places, ","), work.pulls, " ", time.Since(p.began)))
		failed := p.fails[work.identifier]
		p.mu.Unlock()
		time.Sleep(time.Second)
		if failed {
			return errors.New("it fails")
		}
		return nil
	})
	return p, func() func() {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.keys.Run(ctx) }()
		return func() {
			cancel()
			<-ended
		}
	}
}

func (p *played) is(t *testing.T, want ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.got, want) {
		t.Errorf("got %q, want %q", p.got, want)
	}
	if len(p.causes) != 0 || p.keys.Len() != 0 {
		t.Errorf("%d identifiers and %d keys are left", len(p.causes), p.keys.Len())
	}
}

// TestQueue: a repository comes when its time has come, once however often it was added, each
// identifier to one worker at a time, and again if it was added while it was worked on. What was
// dropped does not come. Pull requests come with the repository for which they were added.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, run := playQueue(t)
		began := q.began
		for range 3 {
			q.addRepository(placeOf("a", "x"), began, maintainerGroup, "p")
			q.addRepository(placeOf("b", "x"), began, repoOnly, "o")
		}
		q.addRepository(placeOf("a", "x"), began.Add(time.Minute), maintainerGroup) // the earlier time counts
		q.addRepository(placeOf("c", "x"), began.Add(time.Minute), repoOnly, "late")
		q.addIdentifier("x", began.Add(2*time.Minute), "latest")
		q.addRepository(placeOf("a", "y"), began.Add(10*time.Second), maintainerGroup)
		q.addRepository(placeOf("a", "y"), began.Add(5*time.Second), maintainerGroup)
		q.addRepository(placeOf("a", "z"), began.Add(time.Hour), maintainerGroup)
		q.addIdentifier("z", began)
		q.drop(func(identifier string) bool { return identifier == "z" })
		stop := run()
		time.Sleep(500 * time.Millisecond)
		q.addRepository(placeOf("a", "x"), time.Now(), maintainerGroup) // while it is worked on
		time.Sleep(2 * time.Hour)
		stop()
		q.is(t, "x a1,b0[o p] 0s", "x a1[] 1s", "y a1[] 5s", "x c0[late] 1m0s", "x itself[latest] 2m0s")
	})
}

// TestALookDueInAWeekCostsNothingBefore: nothing is reconciled while nothing is due.
func TestALookDueInAWeekCostsNothingBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, run := playQueue(t)
		stop := run()
		q.addRepository(placeOf("a", "x"), q.began.Add(7*24*time.Hour), repoOnly)
		q.addRepository(placeOf("b", "x"), q.began.Add(time.Hour), repoOnly)
		time.Sleep(8 * 24 * time.Hour)
		stop()
		q.is(t, "x b0[] 1h0m0s", "x a0[] 168h0m0s")
	})
}

// TestExpirationsAreAwaitedBesideOtherLooks: an earlier look at the same repository does not take
// the place of one at which an event ends, and the same expiration is awaited once.
func TestExpirationsAreAwaitedBesideOtherLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, run := playQueue(t)
		stop := run()
		for range 2 {
			q.addExpiration(placeOf("a", "x"), q.began.Add(time.Hour), "")
			q.addExpiration(placeOf("a", "x"), q.began.Add(2*time.Hour), "")
		}
		q.addRepository(placeOf("a", "x"), q.began.Add(time.Minute), repoOnly)
		time.Sleep(3 * time.Hour)
		stop()
		q.is(t, "x a0[] 1m0s", "x a1[] 1h0m0s", "x a1[] 2h0m0s")
	})
}

// TestAFailingIdentifierBacksOff: it comes again later each time, with what was added for it, and
// what is new for it does not wait. Others do not wait either.
func TestAFailingIdentifierBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, run := playQueue(t, "x")
		stop := run()
		q.addRepository(placeOf("a", "x"), q.began, maintainerGroup, "p")
		time.Sleep(100 * time.Second)
		q.addRepository(placeOf("b", "x"), time.Now(), repoOnly)
		q.addRepository(placeOf("a", "y"), time.Now(), repoOnly)
		time.Sleep(50 * time.Second)
		q.mu.Lock()
		q.fails["x"] = false
		q.mu.Unlock()
		time.Sleep(24 * time.Hour)
		q.addRepository(placeOf("a", "x"), time.Now(), repoOnly)
		time.Sleep(time.Hour)
		stop()
		q.is(t, "x a1[p] 0s", "x a1,itself[p] 21s", "x a1,itself[p] 1m2s", "x a1,b0,itself[p] 1m40s", "y a0[] 1m40s",
			"x a1,b0,itself[p] 2m23s", "x a1,b0,itself[p] 7m44s", "x a0[] 24h2m30s")
	})
}
