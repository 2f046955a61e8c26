package slots_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"tendril.dev/services/purgatory/slots"
)

// take acquires a slot that must be free.
func take(t *testing.T, p *slots.Pool, class slots.Class, client string, n int) (release func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	var err error
	go func() {
		release, err = p.Acquire(ctx, class, client, n)
		close(done)
	}()
	synctest.Wait()
	select {
	case <-done:
	default:
		cancel()
		<-done
	}
	if err != nil {
		return nil
	}
	return release
}

// flood takes as many slots of a class as it can, each for another client.
func flood(t *testing.T, p *slots.Pool, class slots.Class) (releases []func()) {
	t.Helper()
	for {
		release := take(t, p, class, fmt.Sprint("flood", len(releases)), 1)
		if release == nil {
			return releases
		}
		releases = append(releases, release)
	}
}

func TestNoClassStarvesAnother(t *testing.T) {
	t.Parallel()
	for _, total := range []int{1, 5, 6, 8, 32, 100} {
		for _, greedy := range []slots.Class{slots.Work, slots.Look, slots.Fetch, slots.Push} {
			synctest.Test(t, func(t *testing.T) {
				p := slots.New(total)
				taken := flood(t, p, greedy)
				for _, class := range []slots.Class{slots.Work, slots.Look, slots.Fetch, slots.Push} {
					n := 1
					if class == slots.Work {
						n = 2 // a copy between two repositories
					}
					if class == greedy {
						continue
					}
					if take(t, p, class, "user", n) == nil {
						t.Errorf("of %d, class %d has %d and class %d none", total, greedy, len(taken), class)
					}
				}
			})
		}
	}
}

func TestOneClientHoldsAShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := slots.New(32) // fetches can have 16 of them
		n := 0
		for take(t, p, slots.Fetch, "greedy", 1) != nil {
			n++
		}
		if n != 4 {
			t.Errorf("one client has %d slots", n)
		}
		if all := len(flood(t, p, slots.Fetch)); all != 12 {
			t.Errorf("the others have %d", all)
		}
		p = slots.New(32)
		for n = 0; take(t, p, slots.Fetch, "", 1) != nil; n++ {
		}
		if n != 16 {
			t.Errorf("those who are not known have %d", n)
		}
	})
}

// TestClientsTakeTurns: who asks once is not behind all that another asked before.
func TestClientsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := slots.New(5) // one for fetches
		release := take(t, p, slots.Fetch, "holder", 1)
		served := make(chan string, 100)
		ask := func(client string) {
			go func() {
				release, err := p.Acquire(t.Context(), slots.Fetch, client, 1)
				if err != nil {
					t.Error(err)
					return
				}
				served <- client
				release()
			}()
			synctest.Wait()
		}
		for range 10 {
			ask("flood")
		}
		ask("user")
		release()
		synctest.Wait()
		if first, second := <-served, <-served; first != "flood" || second != "user" {
			t.Errorf("served: %s, %s", first, second)
		}
	})
}

func TestLinesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := slots.New(5)
		ctx, cancel := context.WithCancel(t.Context())
		take(t, p, slots.Push, "holder", 1)
		refused := map[error]int{}
		results := make(chan error, 5000)
		ask := func(client string) {
			go func() {
				_, err := p.Acquire(ctx, slots.Push, client, 1)
				results <- err
			}()
			synctest.Wait()
		}
		for range 40 {
			ask("flood")
		}
		for len(results) > 0 {
			refused[<-results]++
		}
		if refused[slots.ErrShare] != 8 {
			t.Errorf("refused: %v", refused)
		}
		for i := range 1000 {
			ask(fmt.Sprint(i))
		}
		for len(results) > 0 {
			refused[<-results]++
		}
		if refused[slots.ErrFull] != 1032-1024 {
			t.Errorf("refused: %v", refused)
		}
		cancel()
		synctest.Wait()
		if n := len(results); n != 1024 {
			t.Errorf("%d have left", n)
		}
		for len(results) > 0 {
			if err := <-results; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// TestWhoLeavesBlocksNobody: neither while it waits nor when it has a slot.
func TestWhoLeavesBlocksNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := slots.New(5) // two for the worker
		first := take(t, p, slots.Work, "", 1)
		ctx, cancel := context.WithCancel(t.Context())
		go p.Acquire(ctx, slots.Work, "", 2)
		synctest.Wait()
		if take(t, p, slots.Work, "", 1) != nil {
			t.Error("overtook one that waits for two")
		}
		cancel()
		synctest.Wait()
		second := take(t, p, slots.Work, "", 1)
		if second == nil {
			t.Fatal("one that left stands in the way")
		}
		first()
		first() // once is enough
		second()
		if take(t, p, slots.Work, "", 2) == nil || p.Used(slots.Work) != 2 {
			t.Errorf("%d in use", p.Used(slots.Work))
		}
	})
}
