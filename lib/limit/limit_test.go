package limit

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// acquire waits for places.
func acquire(t *testing.T, f *Fair, party string, n int64) (release func()) {
	t.Helper()
	release, err := f.AcquireN(t.Context(), party, n)
	if err != nil {
		t.Error(err)
		return func() {}
	}
	return release
}

// serve gets places in another goroutine and gives them back at once.
func serve(t *testing.T, done *sync.WaitGroup, f *Fair, party string, n int64) {
	done.Go(func() { acquire(t, f, party, n)() })
	synctest.Wait()
}

// nothingHeld checks that all places are free and no party is remembered.
func nothingHeld(t *testing.T, f *Fair) {
	t.Helper()
	if taken, parties, _ := f.Counts(0); taken != 0 || parties != 0 {
		t.Errorf("%d places of %d parties remain", taken, parties)
	}
}

// served runs requests of parties in this order on one Fair and returns the order of service.
func served(t *testing.T, f *Fair, parties ...string) (order []string) {
	var mu sync.Mutex
	var done sync.WaitGroup
	for i, p := range parties {
		done.Go(func() {
			release := acquire(t, f, p, 1)
			mu.Lock()
			order = append(order, p)
			mu.Unlock()
			time.Sleep(time.Second + time.Duration(i)*time.Millisecond)
			release()
			release() // again: without effect
		})
		synctest.Wait()
	}
	done.Wait()
	return order
}

func TestFairOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		places, perParty int64
		ask, want        string
	}{
		"first come first served":             {1, 1, "a b c d", "a b c d"},
		"many requests do not count":          {1, 1, "a a a a b c", "a a b c a a"},
		"who holds nothing is next":           {2, 2, "a a a a b", "a a b a a"},
		"a share leaves the rest to others":   {3, 1, "a a a b c", "a b c a a"},
		"who holds its share keeps none away": {2, 1, "a a a b b c", "a b a b c a"},
	} {
		synctest.Test(t, func(t *testing.T) {
			if got := strings.Join(served(t, NewFair(c.places, c.perParty), strings.Fields(c.ask)...), " "); got != c.want {
				t.Errorf("%s: served %s, want %s", name, got, c.want)
			}
		})
	}
}

func TestFairWeights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(10, 8)
		release := acquire(t, f, "a", 4)
		_, share := f.Try("a", 5)
		_, full := f.Try("b", 7)
		_, ever := f.AcquireN(t.Context(), "b", 9)
		if !errors.Is(share, ErrShare) || !errors.Is(full, ErrFull) || !errors.Is(ever, ErrShare) {
			t.Errorf("more than a share: %v; more than is free: %v; more than a share may ever be: %v", share, full, ever)
		}
		var done sync.WaitGroup
		serve(t, &done, f, "of 8", 8)
		serve(t, &done, f, "of 1", 1) // it fits, but does not pass the large one
		if taken, _, _ := f.Counts(0); taken != 4 {
			t.Errorf("%d places were given before there was room", taken-4)
		}
		release()
		done.Wait()
		nothingHeld(t, f)
	})
}

// TestFairEnds: a request that is given up leaves nothing behind, and those behind it are served.
func TestFairEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(4, 4)
		release := acquire(t, f, "a", 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var done sync.WaitGroup
		done.Go(func() {
			if _, err := f.AcquireN(ctx, "b", 3); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
		synctest.Wait()
		serve(t, &done, f, "c", 2)
		done.Wait() // c is served though a still holds its places
		release()
		nothingHeld(t, f)
	})
}

// TestWaitersAreBounded: one party fills its part of the queue, and others still wait.
func TestWaitersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(1, 1)
		release := acquire(t, f, "holder", 1)
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		for range 4096 {
			done.Go(func() { f.Acquire(ctx, "flood") })
		}
		synctest.Wait()
		if _, err := f.Acquire(ctx, "flood"); !errors.Is(err, ErrFull) {
			t.Errorf("one more waits: %v", err)
		}
		serve(t, &done, f, "other", 1)
		cancel()
		release()
		done.Wait()
	})
}

func TestTurnYields(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := NewFair(1, 1)
		long, err := f.Turn(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		defer long.Pause()
		var done sync.WaitGroup
		served := false
		done.Go(func() {
			acquire(t, f, "b", 1)()
			served = true
		})
		synctest.Wait()
		for _, want := range []bool{false, true} {
			err := long.Yield(t.Context())
			if synctest.Wait(); err != nil || served != want {
				t.Errorf("another was served: %v, %v; want %v", served, err, want)
			}
			time.Sleep(10 * time.Millisecond)
		}
		done.Wait()
	})
}

// TestMakingRoom: who has most gives a place to one that has fewer.
func TestMakingRoom(t *testing.T) {
	t.Parallel()
	f := NewFair(3, 2)
	heavy := acquire(t, f, "heavy", 1)
	acquire(t, f, "heavy", 1)
	acquire(t, f, "light", 1)
	if _, err := f.Try("new", 1); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	if who, more := f.Heaviest("new"); who != "heavy" || more != 2 {
		t.Errorf("%s has %d more", who, more)
	}
	if _, err := f.TryOver("new", 1); err != nil {
		t.Fatal(err)
	}
	heavy()
	if taken, parties, over := f.Counts(1); taken != 3 || parties != 3 || over != 0 {
		t.Errorf("%d taken by %d parties, %d hold more than one", taken, parties, over)
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(3, time.Minute)
		for n := range 4 {
			if ok, _ := r.Allow("a"); ok != (n < 3) {
				t.Errorf("request %d: %v", n, ok)
			}
		}
		if ok, _ := r.Allow("b"); !ok {
			t.Error("one party's rate stops another")
		}
		ok, wait := r.Allow("a")
		if ok || wait <= 0 || wait > 20*time.Second {
			t.Errorf("%v, wait %s", ok, wait)
		}
		time.Sleep(wait)
		if ok, _ := r.Allow("a"); !ok {
			t.Error("refused after the time that was named")
		}
	})
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"192.0.2.1":            "192.0.2.1",
		"::ffff:192.0.2.1":     "192.0.2.1",
		"2001:db8:1:2::1":      "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff::9": "2001:db8:1:2::/64",
		"fe80::1%eth0":         "fe80::/64",
	} {
		if got := Address(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	if got := Address(netip.Addr{}); got != "unknown" {
		t.Errorf("no address: %s", got)
	}
}
