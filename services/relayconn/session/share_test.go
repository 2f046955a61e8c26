package session_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// twoRelays are two connections of one worker, with relays that have the same events.
func twoRelays(t *testing.T, stored ...*nostr.Event) (first, second *reconciling) {
	board := session.NewWalks()
	first, second = newReconciling(t, 0, stored...), newReconciling(t, 0, stored...)
	for _, r := range []*reconciling{first, second} {
		r.session.Negentropy.Walks = board
	}
	return first, second
}

// walked is whether a relay was asked for references by REQ.
func (r *reconciling) walked() bool {
	_, reqs := r.askedFor()
	for _, filters := range reqs {
		for _, f := range filters {
			if len(f.Tags) > 0 {
				return true
			}
		}
	}
	return false
}

func (r *reconciling) inSync(what string) {
	r.t.Helper()
	r.all()
	if st := r.status(); st.Connection != session.Connected || st.Repos != 1 || !st.CaughtUp {
		r.t.Errorf("%s: status %+v", what, st)
	}
	r.stop()
}

// TestShared: what one relay has brought is not fetched from another that has it too, and what only
// that one has is.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := tagged(t, 100)
		first, second := twoRelays(t, events[:99]...)
		second.stored = events
		first.run(session.Start{})
		second.run(session.Start{})
		first.want(1, repos(repository))
		second.want(1, repos(repository))
		time.Sleep(100 * time.Millisecond)
		first.all()
		if second.walked() {
			t.Fatal("both relays were asked for the same")
		}
		accepted := map[string]bool{}
		first.with(func() { maps.Copy(accepted, first.accepted) })
		second.with(func() { maps.Copy(second.accepted, accepted) })
		time.Sleep(time.Minute)
		first.inSync("the first")
		second.inSync("the second")
		if len(second.fetched) != 1 || second.fetched[events[99].ID] != 1 {
			t.Errorf("%d events were fetched from the second relay", len(second.fetched))
		}
	})
}

// TestLeaderSilent: a relay that says nothing holds nobody up for long.
func TestLeaderSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := twoRelays(t, tagged(t, 20)...)
		first.with(func() { first.mute = true })
		first.run(session.Start{})
		first.want(1, repos(repository))
		second.run(session.Start{})
		second.want(1, repos(repository))
		time.Sleep(10 * time.Second)
		if second.walked() {
			t.Fatal("nobody waits for the first")
		}
		time.Sleep(20 * time.Second)
		second.inSync("the second")
		first.stop()
	})
}

// TestLeaderGone: what a connection was asking for when it ended is asked for on another at once.
func TestLeaderGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := twoRelays(t, tagged(t, 20)...)
		first.with(func() { first.mute = true })
		first.run(session.Start{})
		first.want(1, repos(repository))
		second.run(session.Start{})
		second.want(1, repos(repository))
		time.Sleep(2 * time.Second)
		first.stop()
		time.Sleep(2 * time.Second)
		if !second.walked() {
			t.Error("nothing was asked for")
		}
		time.Sleep(20 * time.Second)
		second.inSync("the second")
	})
}

// TestNotShared: a relay that does not reconcile is asked for everything by REQ, whatever others
// bring. One that has shown nothing of an item does not keep others from bringing it.
func TestNotShared(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(first, second *reconciling){
		"does not reconcile": func(_, second *reconciling) { second.unable = "error: not here" },
		"shows nothing":      func(first, _ *reconciling) { first.stored = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := twoRelays(t, tagged(t, 20)...)
				prepare(first, second)
				first.run(session.Start{})
				first.want(1, repos(repository))
				second.run(session.Start{})
				second.want(1, repos(repository))
				time.Sleep(12 * time.Second) // less than a silent relay would be waited for
				second.inSync("the second")
				first.stop()
			})
		})
	}
}
