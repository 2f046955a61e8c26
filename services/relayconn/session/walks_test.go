package session_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/relayconn/session"
)

// TestOneWalksAtATime: what one connection asks for is left to it by the others, while it gets on
// and when it has come, but not when it failed.
func TestOneWalksAtATime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		does  func(lead *session.Lead)
		busy  bool // the others wait
		taken bool // another may ask for it
	}{
		"it goes on": {func(lead *session.Lead) {
			time.Sleep(10 * time.Second)
			lead.Heard(time.Now())
			time.Sleep(10 * time.Second)
		}, true, false},
		"a relay is silent": {func(*session.Lead) { time.Sleep(15 * time.Second) }, false, true},
		"it has come":       {func(lead *session.Lead) { lead.End(true) }, true, false},
		"and is known": {func(lead *session.Lead) {
			lead.End(true)
			time.Sleep(time.Second)
		}, false, false},
		"it has failed": {func(lead *session.Lead) { lead.End(false) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				of := func(refs ...string) session.Set { return session.Set{Full: refs} }
				w := session.NewWalks()
				lead, mine, rest := w.Take(of("a", "b"), time.Now())
				if !slices.Equal(mine.Full, []string{"a", "b"}) || !rest.Empty() || lead == nil {
					t.Fatalf("took %v, left %v", mine, rest)
				}
				tc.does(lead)
				if got := w.Busy(of("b"), time.Now()); got != tc.busy || w.Quiet(nil, time.Now()) == tc.busy || !w.Quiet(lead, time.Now()) {
					t.Errorf("busy: %v", got)
				}
				want := []string{"c"}
				if tc.taken {
					want = []string{"b", "c"}
				}
				if _, mine, rest = w.Take(of("b", "c"), time.Now()); !slices.Equal(mine.Full, want) || len(mine.Full)+len(rest.Full) != 2 {
					t.Errorf("another takes %v and leaves %v", mine, rest)
				}
			})
		})
	}
}
