package session_test

import (
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// TestWideNotDelivered: when a relay names events as it is asked for everything, and does not
// deliver them, REQ brings what it does deliver.
func TestWideNotDelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hidden := event(t, 1111, 50, nostr.Tag{"a", "30617:aa:007"})
		r := newReconciling(t, 59, append(spread(t), hidden)...)
		r.hidden[hidden.ID] = true
		r.run(session.Start{})
		r.want(1, manyRepos(0, 3000))
		time.Sleep(30 * time.Second)
		if st := r.status(); st.Connection != session.Incomplete || st.Repos != 0 || r.walked() {
			t.Errorf("asked by REQ: %v, status %+v", r.walked(), st)
		}
		time.Sleep(4 * time.Minute)
		if st := r.status(); st.Connection != session.Connected || st.Repos != 3000 || !r.walked() {
			t.Errorf("asked by REQ: %v, status %+v", r.walked(), st)
		}
		r.stop()
	})
}

// TestWideLost: where what was fetched got no verdict, what is missing is found out by filters.
func TestWideLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReconciling(t, 59, spread(t)...)
		r.with(func() { r.fail = errNoVerdict })
		r.run(session.Start{})
		r.want(1, manyRepos(0, 3000))
		time.Sleep(30 * time.Second)
		if st := r.status(); st.Connection != session.Incomplete {
			t.Errorf("status %+v", st)
		}
		r.with(func() { r.fail = nil })
		time.Sleep(2 * time.Minute)
		r.all()
		if st := r.status(); st.Connection != session.Connected || st.Repos != 3000 {
			t.Errorf("status %+v", st)
		}
		r.stop()
	})
}

// TestWideGaps: what a daily sync finds because it asks for everything should have come live only
// if a filter asks for it.
func TestWideGaps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ev   *nostr.Event
		want string
	}{
		"asked for":     {event(t, 1111, 50, nostr.Tag{"A", "30617:aa:007"}), "daily gap"},
		"not asked for": {event(t, 1111, 50, nostr.Tag{"A", "30617:bb:007"}), "daily"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReconciling(t, 60, spread(t)...)
				r.run(session.Start{})
				r.want(1, manyRepos(0, 3000))
				time.Sleep(time.Minute)
				r.with(func() { r.stored = append(r.stored, c.ev) })
				r.daily <- time.Now()
				time.Sleep(time.Minute)
				r.all()
				if len(r.judged) != 1 || r.judged[0] != c.want {
					t.Errorf("judged %v, want %q", r.judged, c.want)
				}
				r.stop()
			})
		})
	}
}
