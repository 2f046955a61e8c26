package pace_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/gateway/pace"
)

func TestAllow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pace.New(6, time.Minute, 100)
		for i := range 6 {
			if ok, _ := l.Allow("a"); !ok {
				t.Fatalf("refused after %d", i)
			}
		}
		ok, wait := l.Allow("a")
		if ok || wait != 10*time.Second {
			t.Errorf("seventh: %v, wait %v", ok, wait)
		}
		if ok, _ := l.Allow("b"); !ok {
			t.Error("another client is refused")
		}
		time.Sleep(wait)
		if ok, _ := l.Allow("a"); !ok {
			t.Error("refused after the wait")
		}
		if ok, _ := l.Allow("a"); ok {
			t.Error("one more than has filled up")
		}
		time.Sleep(time.Hour)
		n := 0
		for ok, _ := l.Allow("a"); ok; ok, _ = l.Allow("a") {
			n++
		}
		if n != 6 {
			t.Errorf("%d after an hour", n)
		}
	})
}

func TestSpend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pace.New(1000, time.Hour, 100)
		if !l.Spend("a", 600) || l.Spend("a", 600) {
			t.Error("1,200 of 1,000 are given, or 600 are not")
		}
		ok, wait := l.Left("a")
		if ok || wait != 6*time.Minute {
			t.Errorf("left: %v, wait %v", ok, wait)
		}
		time.Sleep(wait)
		if ok, _ := l.Left("a"); !ok || !l.Spend("a", 100) {
			t.Error("nothing after the wait")
		}
		if ok, _ := l.Left("b"); !ok {
			t.Error("another client has nothing")
		}
	})
}

// TestClientsAreForgotten: a table of clients is bounded however many come, and who is idle goes
// first.
func TestClientsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pace.New(1, time.Minute, 1000)
		l.Allow("busy")
		for i := range 100_000 {
			l.Allow(fmt.Sprint(i))
			if ok, _ := l.Allow("busy"); ok {
				t.Fatalf("who is busy was forgotten after %d others", i)
			}
			if n := l.Clients(); n > 1000 {
				t.Fatalf("%d clients are remembered", n)
			}
		}
		time.Sleep(time.Minute)
		l.Allow("new")
		if n := l.Clients(); n != 1 {
			t.Errorf("%d clients are remembered after they have their allowance again", n)
		}
	})
}
