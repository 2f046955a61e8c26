package share_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// TestPassTo: what is passed on is never free for others, and counts for whoever has it.
func TestPassTo(t *testing.T) {
	t.Parallel()
	p := share.NewPool(2, 2)
	first, err := p.Part("a", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Take("a", 1); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var thieves sync.WaitGroup
	for range 2 {
		thieves.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := p.Take("thief", 1); err != share.ErrFull {
					t.Errorf("a thief: %v", err)
					return
				}
			}
		})
	}
	for n := range 1000 {
		next, err := first.PassTo(fmt.Sprint("newcomer", n))
		if err != nil {
			t.Fatal(err)
		}
		first.Back() // changes nothing any more
		if _, err := first.PassTo("b"); err != share.ErrFull {
			t.Fatalf("passed on twice: %v", err)
		}
		first = next
	}
	close(stop)
	thieves.Wait()
	last, err := first.PassTo("a")
	if taken, clients, _ := p.Counts(0); err != nil || taken != 2 || clients != 1 {
		t.Errorf("%v, %d taken by %d clients", err, taken, clients)
	}
	if third, err := p.Take("b", 1); err != share.ErrFull {
		t.Errorf("%v %v", third != nil, err)
	}
	last.Back()
	other, err := p.Part("b", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Take("c", 1); err != share.ErrFull {
		t.Error(err)
	}
	if _, err := other.PassTo("a"); err != nil {
		t.Error(err)
	}
	if _, err := share.NewPool(1, 1).Part("a", 2); err != share.ErrTooMuch {
		t.Error(err)
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
