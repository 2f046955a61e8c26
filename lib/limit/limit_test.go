package limit_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/limit"
)

// served runs requests of parties in this order on one Fair and returns the order of service.
func served(t *testing.T, f *limit.Fair, parties ...string) (order []string) {
	t.Helper()
	var mu sync.Mutex
	var done sync.WaitGroup
	for i, p := range parties {
		done.Go(func() {
			release, err := f.Acquire(t.Context(), p)
			if err != nil {
				t.Error(err)
				return
			}
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				got := strings.Join(served(t, limit.NewFair(c.places, c.perParty), strings.Fields(c.ask)...), " ")
				if got != c.want {
					t.Errorf("served %s, want %s", got, c.want)
				}
			})
		})
	}
}

func TestFairWeights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := limit.NewFair(10, 8)
		small, err := f.Try("a", 4)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Try("a", 5); !errors.Is(err, limit.ErrShare) {
			t.Errorf("more than a share: %v", err)
		}
		if _, err := f.Try("b", 7); !errors.Is(err, limit.ErrFull) {
			t.Errorf("more than is free: %v", err)
		}
		if _, err := f.AcquireN(t.Context(), "b", 9); !errors.Is(err, limit.ErrShare) {
			t.Errorf("more than a share may ever be: %v", err)
		}
		var served atomic.Int64
		var done sync.WaitGroup
		for _, n := range []int64{8, 1} { // the small one fits, but does not pass the large one
			done.Go(func() {
				release, err := f.AcquireN(t.Context(), fmt.Sprint("of ", n), n)
				if err != nil {
					t.Error(err)
					return
				}
				served.Add(n)
				release()
			})
			synctest.Wait()
		}
		if n := served.Load(); n != 0 {
			t.Errorf("%d places were given before there was room", n)
		}
		small()
		done.Wait()
		if taken, parties, _ := f.Counts(0); taken != 0 || parties != 0 {
			t.Errorf("%d places of %d parties remain", taken, parties)
		}
	})
}

// TestFairEnds: a request that is given up leaves nothing behind, and those behind it are served.
func TestFairEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := limit.NewFair(4, 4)
		release, err := f.AcquireN(t.Context(), "a", 2)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var done sync.WaitGroup
		done.Go(func() {
			if _, err := f.AcquireN(ctx, "b", 3); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
		synctest.Wait()
		done.Go(func() {
			release, err := f.AcquireN(t.Context(), "c", 2)
			if err != nil {
				t.Error(err)
				return
			}
			release()
		})
		done.Wait() // c is served though a still holds its places
		release()
		if taken, parties, _ := f.Counts(0); taken != 0 || parties != 0 {
			t.Errorf("%d places of %d parties remain", taken, parties)
		}
	})
}

// TestWaitersAreBounded: one party fills its part of the queue, and others still wait.
func TestWaitersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := limit.NewFair(1, 1)
		release, err := f.Acquire(t.Context(), "holder")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		for range 4096 {
			done.Go(func() { f.Acquire(ctx, "flood") })
		}
		synctest.Wait()
		if _, err := f.Acquire(ctx, "flood"); !errors.Is(err, limit.ErrFull) {
			t.Errorf("one more waits: %v", err)
		}
		done.Go(func() {
			release, err := f.Acquire(t.Context(), "other")
			if err != nil {
				t.Error(err)
				return
			}
			release()
		})
		synctest.Wait()
		cancel()
		release()
		done.Wait()
	})
}

func TestTurnYields(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := limit.NewFair(1, 1)
		long, err := f.Turn(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		defer long.Pause()
		served := make(chan struct{})
		go func() {
			short, err := f.Turn(t.Context(), "b")
			if err != nil {
				t.Error(err)
				return
			}
			close(served)
			short.Pause()
		}()
		synctest.Wait()
		if err := long.Yield(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-served:
			t.Error("the turn was given up at once")
		default:
		}
		time.Sleep(10 * time.Millisecond)
		if err := long.Yield(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-served:
		default:
			t.Error("the turn was kept though another waits")
		}
	})
}

// TestMakingRoom: who has most gives a place to one that has fewer.
func TestMakingRoom(t *testing.T) {
	t.Parallel()
	f := limit.NewFair(3, 2)
	var heavy []func()
	for range 2 {
		release, err := f.Try("heavy", 1)
		if err != nil {
			t.Fatal(err)
		}
		heavy = append(heavy, release)
	}
	if _, err := f.Try("light", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Try("new", 1); !errors.Is(err, limit.ErrFull) {
		t.Fatal(err)
	}
	if who, more := f.Heaviest("new"); who != "heavy" || more != 2 {
		t.Errorf("%s has %d more", who, more)
	}
	if _, err := f.TryOver("new", 1); err != nil {
		t.Fatal(err)
	}
	heavy[0]()
	if taken, parties, over := f.Counts(1); taken != 3 || parties != 3 || over != 0 {
		t.Errorf("%d taken by %d parties, %d hold more than one", taken, parties, over)
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := limit.NewRates(3, time.Minute)
		var got []bool
		for range 4 {
			ok, _ := r.Allow("a")
			got = append(got, ok)
		}
		if !slices.Equal(got, []bool{true, true, true, false}) {
			t.Errorf("%v", got)
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
		if got := limit.Address(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	if got := limit.Address(netip.Addr{}); got != "unknown" {
		t.Errorf("no address: %s", got)
	}
}
