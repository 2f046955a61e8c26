package turns_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/gateway/turns"
)

// TestClientsTakeTurns: whoever asks once is served after one turn of the one who asks a hundred
// times.
func TestClientsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := turns.New(1)
		first, err := all.Take(t.Context(), "greedy")
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		ask := func(client string, times int) {
			for range times {
				go func() {
					turn, err := all.Take(t.Context(), client)
					if err != nil {
						t.Error(err)
						return
					}
					order = append(order, client) // one at a time
					turn.End()
				}()
				synctest.Wait()
			}
		}
		ask("greedy", 100)
		ask("modest", 1)
		ask("other", 2)
		first.End()
		synctest.Wait()
		if len(order) != 103 || !slices.Equal(order[:5], []string{"greedy", "modest", "other", "greedy", "other"}) {
			t.Errorf("%d turns, the first of them %v", len(order), order[:min(5, len(order))])
		}
	})
}

func TestYield(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := turns.New(1)
		long, err := all.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		served := false
		go func() {
			turn, err := all.Take(t.Context(), "b")
			if err != nil {
				t.Error(err)
				return
			}
			served = true
			turn.End()
		}()
		synctest.Wait()
		if err := long.Yield(t.Context()); err != nil || served {
			t.Errorf("gave way at once: %v, %v", err, served)
		}
		time.Sleep(time.Second)
		if err := long.Yield(t.Context()); err != nil || !served {
			t.Errorf("did not give way: %v, %v", err, served)
		}
		long.End()
		long.End() // twice changes nothing
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := all.Take(ctx, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of its context: %v", err)
		}
	})
}

// TestWhoGoesAwayLosesNothing: of many who give up waiting, none takes a turn with it.
func TestWhoGoesAwayLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := turns.New(2)
		var held []*turns.Turn
		for range 2 {
			turn, err := all.Take(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, turn)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		refused := make(chan error)
		for i := range 10 {
			go func() {
				_, err := all.Take(ctx, string(rune('a'+i%3)))
				refused <- err
			}()
		}
		for range 10 {
			if err := <-refused; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("waited for ever, or had a turn: %v", err)
			}
		}
		for _, turn := range held {
			turn.End()
		}
		for range 2 {
			if _, err := all.Take(t.Context(), "z"); err != nil {
				t.Error(err)
			}
		}
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := all.Take(late, "z"); err == nil {
			t.Error("there are more turns than at the start")
		}
	})
}
