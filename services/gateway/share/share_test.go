package share_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/gateway/share"
)

func TestTake(t *testing.T) {
	t.Parallel()
	p := share.NewPool(4, 2)
	must := func(client string, n int64) func() {
		t.Helper()
		back, err := p.Take(client, n)
		if err != nil {
			t.Fatalf("%s: %v", client, err)
		}
		return back
	}
	first := must("a", 1)
	must("a", 1)
	if _, err := p.Take("a", 1); err != share.ErrTooMuch {
		t.Errorf("third of a client: %v", err)
	}
	must("b", 2)
	if _, err := p.Take("c", 1); err != share.ErrFull {
		t.Errorf("fifth in all: %v", err)
	}
	if taken, clients, over := p.Counts(1); taken != 4 || clients != 2 || over != 2 {
		t.Errorf("counts: %d, %d, %d", taken, clients, over)
	}
	if heaviest, more := p.Heaviest("c"); heaviest != "a" && heaviest != "b" || more != 2 {
		t.Errorf("heaviest: %s, %d more", heaviest, more)
	}
	first()
	if heaviest, more := p.Heaviest("a"); heaviest != "b" || more != 1 {
		t.Errorf("heaviest: %s, %d more", heaviest, more)
	}
	first() // twice changes nothing
	if _, err := p.Take("b", 1); err != share.ErrTooMuch {
		t.Errorf("third of another client: %v", err)
	}
	must("c", 1)()
	must("a", 1)
	if taken, clients, over := p.Counts(2); taken != 4 || clients != 2 || over != 0 {
		t.Errorf("counts: %d, %d, %d", taken, clients, over)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := share.NewPool(4, 2)
		if _, err := p.Wait(t.Context(), "a", 3); err != share.ErrTooMuch {
			t.Errorf("more than a share: %v", err)
		}
		back, err := p.Wait(t.Context(), "a", 2)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := p.Wait(t.Context(), "b", 2); err != nil {
			t.Errorf("another client waits for a's share: %v", err)
		} else {
			other()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Wait(ctx, "a", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waited: %v", err)
		}
		got := make(chan error)
		for range 2 {
			go func() {
				_, err := p.Wait(t.Context(), "a", 1)
				got <- err
			}()
		}
		synctest.Wait()
		back()
		for range 2 {
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
		if taken, _, _ := p.Counts(0); taken != 2 {
			t.Errorf("%d taken", taken)
		}
	})
}
