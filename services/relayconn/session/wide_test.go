package session_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/leads"
	"tendril.dev/services/relayconn/session"
)

// TestWideNotDelivered: when a relay names events as it is asked for everything, and does not
// deliver them, it is asked by filters. REQ is used only for those that ask for what it holds back.
func TestWideNotDelivered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hidden *nostr.Event
		walked bool
	}{
		"asked for":     {event(t, 1111, 50, nostr.Tag{"a", "30617:aa:007"}), true},
		"not asked for": {event(t, 1111, 50, nostr.Tag{"a", "30617:bb:007"}), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := spread(t)
				for _, ev := range events {
					ev.Tags = append(ev.Tags, nostr.Tag{"A", ev.Tags[0][1]}, nostr.Tag{"q", ev.Tags[0][1]})
					if err := ev.Sign(key); err != nil {
						t.Fatal(err)
					}
				}
				r := newReconciling(t, 59, append(events, c.hidden)...)
				r.hidden[c.hidden.ID] = true
				r.run(session.Start{})
				r.want(1, manyRepos(0, 3000))
				time.Sleep(30 * time.Second)
				if st := r.status(); st.Connection != session.Incomplete || st.Repos != 0 {
					t.Errorf("status %+v", st)
				}
				if r.walked() {
					t.Error("asked by REQ at once")
				}
				time.Sleep(4 * time.Minute)
				if st := r.status(); st.Connection != session.Connected || st.Repos != 3000 {
					t.Errorf("status %+v", st)
				}
				if r.walked() != c.walked || r.fetches()[events[59].ID] != 1 {
					t.Errorf("asked by REQ: %v; fetched %d times", r.walked(), r.fetches()[events[59].ID])
				}
				r.stop()
			})
		})
	}
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

// TestWideOneAtATime: while another connection is bringing what this one asks for too, and finds
// out in one go what is missing of it, this one does not do the same, until that was worth while or
// everything has come.
func TestWideOneAtATime(t *testing.T) {
	t.Parallel()
	for name, vain := range map[string]bool{"worth while": false, "in vain": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				board := leads.New()
				r := newReconciling(t, 60, spread(t)...)
				r.session.Negentropy.Leads = board
				r.run(session.Start{})
				r.want(1, manyRepos(0, 1))
				time.Sleep(10 * time.Second)
				all := manyRepos(1, 3000)
				_, _, lead := board.Take(all.Full, time.Now())
				probe := board.Probe(time.Now())
				before, _ := r.askedFor()
				r.want(2, manyRepos(0, 3000))
				time.Sleep(2 * time.Second)
				if n, _ := r.askedFor(); n != before {
					t.Errorf("%d sessions beside the one of another connection", n-before)
				}
				probe.End(vain)
				time.Sleep(2 * time.Second)
				want := 1
				if vain {
					want = 0
				}
				if n, _ := r.askedFor(); n-before != want {
					t.Errorf("%d sessions after it, want %d", n-before, want)
				}
				lead.End(true, true, time.Now())
				time.Sleep(30 * time.Second)
				r.all()
				if n, _ := r.askedFor(); n-before != 1 {
					t.Errorf("%d sessions in all, want one", n-before)
				}
				if st := r.status(); st.Connection != session.Connected || st.Repos != 3000 {
					t.Errorf("status %+v", st)
				}
				r.stop()
			})
		})
	}
}
