package world

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// run does an action for a time of the test's own clock.
func run(t *testing.T, d time.Duration, a Action) Tally {
	t.Helper()
	var m Meter
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		time.AfterFunc(d, func() { close(stop) })
		m.Run(t, stop, []Action{a})
	})
	return m.Tallies()[a.Name]
}

// TestRequests: what fails is tried again until it succeeds, or patience is over. A goodbye is no
// failure, but a server that says goodbye again and again is none that moves. An attempt has an end.
func TestRequests(t *testing.T) {
	t.Parallel()
	broken := errors.New("503")
	for name, c := range map[string]struct {
		time time.Duration
		do   func(ctx context.Context, call int) error // calls count from 1
		want Tally                                     // but for requests
	}{
		"all succeed":   {10 * time.Second, func(context.Context, int) error { return nil }, Tally{}},
		"some fail":     {5 * time.Second, func(_ context.Context, call int) error { return fails(call <= 3, broken) }, Tally{Failed: 1, Slowest: 7 * firstPause}},
		"none succeeds": {time.Minute, func(context.Context, int) error { return broken }, Tally{Failed: 1, GaveUp: 1}},
		"one goodbye":   {5 * time.Second, func(_ context.Context, call int) error { return fails(call == 1, fmt.Errorf("read: %w", ErrMoved)) }, Tally{Moved: 1}},
		"many goodbyes": {2 * time.Second, func(_ context.Context, call int) error { return fails(call <= 5, ErrMoved) }, Tally{Moved: 3, Failed: 1, Slowest: 3 * firstPause}},
		"one never ends": {2 * time.Second, func(ctx context.Context, call int) error {
			if call == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		}, Tally{Failed: 1, Slowest: oneAttempt + firstPause}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			got := run(t, c.time, Action{"x", time.Second, func(t testing.TB, _ int) error { calls++; return c.do(t.Context(), calls) }})
			if got.Requests == 0 || got.Failed != c.want.Failed || got.GaveUp != c.want.GaveUp || got.Moved != c.want.Moved || got.Slowest != c.want.Slowest {
				t.Errorf("after %d calls: %+v, want %+v", calls, got, c.want)
			}
		})
	}
}

func fails(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

// TestErrorsAreBounded: only so many different ones are kept.
func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	calls := 0
	got := run(t, time.Minute, Action{"x", time.Second, func(testing.TB, int) error { calls++; return fmt.Errorf("failure %d", calls) }})
	if len(got.Errors) != maxErrors+1 || got.Errors["others"] != calls-maxErrors {
		t.Errorf("of %d errors are kept: %v", calls, got.Errors)
	}
}
