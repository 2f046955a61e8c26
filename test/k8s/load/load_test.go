package load

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
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
		m.Run(t.Context(), stop, []Action{a})
	})
	return m.Tallies()[a.Name]
}

func TestEveryRequestSucceeds(t *testing.T) {
	t.Parallel()
	done := 0
	got := run(t, 10*time.Second, Action{"clone", time.Second, func(context.Context, int) error { done++; return nil }})
	if got.Requests != done || done < 9 || got.Failed != 0 || got.GaveUp != 0 {
		t.Errorf("after %d requests the tally is %+v", done, got)
	}
}

func TestWhatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	calls := 0
	got := run(t, 5*time.Second, Action{"push", time.Second, func(_ context.Context, attempt int) error {
		calls++
		if calls <= 3 {
			if attempt != calls-1 {
				t.Errorf("call %d is attempt %d", calls, attempt)
			}
			return errors.New("503")
		}
		return nil
	}})
	if got.Requests != calls-3 || got.Failed != 1 || got.GaveUp != 0 || got.Errors["503"] != 3 {
		t.Errorf("after %d calls the tally is %+v", calls, got)
	}
	if want := firstPause * 7; got.Slowest != want {
		t.Errorf("the slowest took %v, want %v", got.Slowest, want)
	}
}

func TestWhoNeverSucceedsGivesUp(t *testing.T) {
	t.Parallel()
	calls := 0
	got := run(t, time.Minute, Action{"event", time.Second, func(context.Context, int) error { calls++; return fmt.Errorf("failure %d", calls) }})
	if got.Requests != 1 || got.GaveUp != 1 || got.Failed != 1 {
		t.Errorf("the tally is %+v", got)
	}
	if len(got.Errors) != MaxErrors+1 || got.Errors["others"] != calls-MaxErrors {
		t.Errorf("of %d errors are kept: %v", calls, got.Errors)
	}
}

func TestAGoodbyeIsNoFailure(t *testing.T) {
	t.Parallel()
	calls := 0
	got := run(t, 5*time.Second, Action{"event", time.Second, func(context.Context, int) error {
		if calls++; calls == 1 {
			return fmt.Errorf("read: %w", ErrMoved)
		}
		return nil
	}})
	if got.Moved != 1 || got.Failed != 0 || got.Requests != calls-1 {
		t.Errorf("after %d calls the tally is %+v", calls, got)
	}
}

// A server that says goodbye again and again is no server that moves.
func TestTooManyGoodbyesAreAFailure(t *testing.T) {
	t.Parallel()
	calls := 0
	got := run(t, 100*time.Millisecond, Action{"event", time.Millisecond, func(context.Context, int) error {
		if calls++; calls <= 5 {
			return ErrMoved
		}
		return nil
	}})
	if got.Moved != 3 || got.Failed != 1 || got.Requests != 1 {
		t.Errorf("after %d calls the tally is %+v", calls, got)
	}
}

func TestAnAttemptHasAnEnd(t *testing.T) {
	t.Parallel()
	calls := 0
	got := run(t, 2*time.Second, Action{"clone", time.Millisecond, func(ctx context.Context, _ int) error {
		if calls++; calls == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}})
	if got.Failed != 1 || got.Requests != 1 || got.Slowest != Attempt+firstPause {
		t.Errorf("the tally is %+v", got)
	}
}

func TestSumAndLines(t *testing.T) {
	t.Parallel()
	tallies := map[string]Tally{
		"push":  {Requests: 2, Failed: 1, Slowest: 2 * time.Second, Errors: map[string]int{"503": 3}},
		"clone": {Requests: 5, Moved: 1, GaveUp: 1, Slowest: time.Second, Errors: map[string]int{"503": 1, "reset": 1}},
	}
	want := Tally{Requests: 7, Failed: 1, Moved: 1, GaveUp: 1, Slowest: 2 * time.Second, Errors: map[string]int{"503": 4, "reset": 1}}
	if got := Sum(tallies); !reflect.DeepEqual(got, want) {
		t.Errorf("the sum is %+v, want %+v", got, want)
	}
	lines := Lines(tallies)
	if len(lines) != 5 || !strings.Contains(lines[0], "clone") || !strings.Contains(lines[1], "1 × 503") || !strings.Contains(lines[3], "push") {
		t.Errorf("the lines are\n%s", strings.Join(lines, "\n"))
	}
}
