package throttle_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/purgatory/throttle"
)

func alone() (place, workers int) { return 0, 1 }

func newThrottle(concurrent, rate int) *throttle.Throttle {
	return throttle.New(throttle.Limits{AtOnce: 1000, Default: throttle.Limit{Concurrent: concurrent, Rate: rate}}, alone)
}

func TestConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(2, 100)
		defer th.Close()
		a, ok1 := th.Try("h", throttle.Who{})
		_, ok2 := th.Try("h", throttle.Who{})
		if _, ok3 := th.Try("h", throttle.Who{}); !ok1 || !ok2 || ok3 {
			t.Fatalf("%v %v %v", ok1, ok2, ok3)
		}
		if _, ok := th.Try("other", throttle.Who{}); !ok {
			t.Fatal("another server is not concerned")
		}
		a.End()
		a.End() // twice is once
		if _, ok := th.Try("h", throttle.Who{}); !ok {
			t.Fatal("a released place is free")
		}
		if _, ok := th.Try("h", throttle.Who{}); ok {
			t.Fatal("releasing twice freed two places")
		}
	})
}

// TestRateInAnyMinute: whenever one looks, the last 60 seconds have no more requests than the
// limit.
func TestRateInAnyMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(100, 30)
		defer th.Close()
		var admitted []time.Time
		for range 400 {
			if turn, ok := th.Try("h", throttle.Who{}); ok {
				admitted = append(admitted, time.Now())
				turn.End()
			}
			time.Sleep(700 * time.Millisecond)
		}
		for i := 30; i < len(admitted); i++ {
			if gap := admitted[i].Sub(admitted[i-30]); gap < time.Minute {
				t.Fatalf("31 requests within %v", gap)
			}
		}
		if len(admitted) < 120 {
			t.Fatalf("only %d requests in 280 s", len(admitted))
		}
	})
}

// TestQueueIsRoundRobin: an identifier that joins again stands behind the others, and the queue
// moves by itself.
func TestQueueIsRoundRobin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(1, 4)
		defer th.Close()
		busy, _ := th.Try("h", throttle.Who{})
		var mu sync.Mutex
		var order []string
		var join func(id string, times int)
		join = func(id string, times int) {
			th.Join("h", id, throttle.Who{}, func(turn *throttle.Turn) {
				mu.Lock()
				order = append(order, id)
				mu.Unlock()
				time.Sleep(time.Second)
				if times > 1 {
					join(id, times-1)
				}
				turn.End()
			})
		}
		join("a", 3)
		join("b", 2)
		join("c", 1)
		join("c", 1) // queued already
		if _, ok := th.Try("h", throttle.Who{}); ok {
			t.Fatal("a request went before those that wait")
		}
		busy.End()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		mu.Lock()
		if !slices.Equal(order, []string{"a", "b", "c"}) {
			t.Errorf("served %v: three and the first make four in a minute", order)
		}
		mu.Unlock()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(order, []string{"a", "b", "c", "a", "b", "a"}) {
			t.Errorf("served %v", order)
		}
	})
}

func TestLimitsAreSharedAmongWorkers(t *testing.T) {
	t.Parallel()
	th := throttle.New(throttle.Limits{AtOnce: 1000, Default: throttle.Limit{Concurrent: 6, Rate: 30}}, func() (int, int) { return 1, 3 })
	defer th.Close()
	n := 0
	for range 10 {
		if _, ok := th.Try("h", throttle.Who{}); ok {
			n++
		}
	}
	if n != 2 {
		t.Fatalf("%d of 6 places for one of three workers", n)
	}
}

// TestMoreWorkersThanRequests: eight workers and a server that is asked at most twice at once:
// never more, and every worker gets its turn.
func TestMoreWorkersThanRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const workers, limit = 8, 2
		var mu sync.Mutex
		served, inFlight, most := map[int]int{}, 0, 0
		for place := range workers {
			th := throttle.New(throttle.Limits{AtOnce: 1000, Default: throttle.Limit{Concurrent: limit, Rate: 1000}}, func() (int, int) { return place, workers })
			defer th.Close()
			for _, identifier := range []string{"a", "b", "c"} {
				th.Join("h", identifier, throttle.Who{}, func(turn *throttle.Turn) {
					defer turn.End()
					mu.Lock()
					served[place]++
					inFlight++
					most = max(most, inFlight)
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					inFlight--
					mu.Unlock()
				})
			}
		}
		time.Sleep(8 * time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if most != limit {
			t.Errorf("%d requests at once, want %d", most, limit)
		}
		for place := range workers {
			if served[place] != 3 {
				t.Errorf("worker %d got %d of 3 turns", place, served[place])
			}
		}
	})
}

func TestDomain(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://Git.Example.org:8443/x.git": "git.example.org",
		"https://git.example.org./x.git":     "git.example.org",
		"http://127.0.0.1:8080/x":            "127.0.0.1",
		"http://[2001:DB8::1]:8080/x":        "2001:db8::1",
		"http://github.com/a/b":              "github.com",
		"http://[::1/x":                      "",
	} {
		if got := throttle.Domain(url); got != want {
			t.Errorf("domain of %s: %q, want %q", url, got, want)
		}
	}
}
