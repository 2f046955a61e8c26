package history_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/relayconn/history"
)

// TestOneWalksAtATime: what one connection asks for is left to it by the others, while it gets on
// and when it has come, but not when it failed.
func TestOneWalksAtATime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		does  func(w *history.Walks, lead *history.Lead)
		busy  bool // the others wait
		taken bool // another may ask for it
	}{
		"it goes on": {func(_ *history.Walks, lead *history.Lead) {
			time.Sleep(10 * time.Second)
			lead.Heard(time.Now())
			time.Sleep(10 * time.Second)
		}, true, false},
		"a relay is silent": {func(*history.Walks, *history.Lead) { time.Sleep(15 * time.Second) }, false, true},
		"it drips": {func(_ *history.Walks, lead *history.Lead) {
			for range 6 {
				time.Sleep(10 * time.Second)
				lead.Heard(time.Now())
			}
		}, false, true},
		"it has come": {func(_ *history.Walks, lead *history.Lead) { lead.End(true, time.Now()) }, true, false},
		"and was decided": {func(_ *history.Walks, lead *history.Lead) {
			lead.End(true, time.Now())
			time.Sleep(time.Second)
		}, false, false},
		"a part goes on": {func(_ *history.Walks, lead *history.Lead) {
			lead.Part()
			lead.End(true, time.Now())
			time.Sleep(time.Second)
		}, true, false},
		"a part has failed": {func(_ *history.Walks, lead *history.Lead) {
			lead.Part()
			lead.End(false, time.Now())
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := history.NewWalks()
				mine, rest, lead := w.Take([]string{"a", "b"}, time.Now())
				if !slices.Equal(mine, []string{"a", "b"}) || rest != nil || lead == nil {
					t.Fatalf("took %v, left %v", mine, rest)
				}
				tc.does(w, lead)
				if got := w.Busy([]string{"b"}, time.Now()); got != tc.busy || w.Quiet(time.Now()) == tc.busy {
					t.Errorf("busy: %v", got)
				}
				want := []string{"c"}
				if tc.taken {
					want = []string{"b", "c"}
				}
				if mine, rest, _ = w.Take([]string{"b", "c"}, time.Now()); !slices.Equal(mine, want) || len(mine)+len(rest) != 2 {
					t.Errorf("another takes %v and leaves %v", mine, rest)
				}
			})
		})
	}
}
