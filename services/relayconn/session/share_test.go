package session_test

import (
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/leads"
	"tendril.dev/services/relayconn/session"
)

var errNoVerdict = errors.New("no verdict")

// twoRelays are two connections of one worker, with relays that have the same events.
func twoRelays(t *testing.T, stored ...*nostr.Event) (first, second *reconciling) {
	board := leads.New()
	first, second = newReconciling(t, 0, stored...), newReconciling(t, 0, stored...)
	for _, r := range []*reconciling{first, second} {
		r.session.Negentropy.Leads = board
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

// TestSharedLater: what becomes wanted when a connection has stood for a while is shared as well.
func TestSharedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := twoRelays(t, tagged(t, 20)...)
		for _, r := range []*reconciling{first, second} {
			r.run(session.Start{})
			r.want(1, repos("30617:aa:other"))
		}
		time.Sleep(time.Minute)
		if !first.walked() || !second.walked() { // nobody knows anything of the other one
			t.Fatal("something was not asked for")
		}
		first.want(2, repos("30617:aa:other", repository))
		second.mu.Lock()
		second.reqs = nil
		second.mu.Unlock()
		second.want(2, repos("30617:aa:other", repository))
		time.Sleep(100 * time.Millisecond)
		first.all()
		if second.walked() {
			t.Error("both relays were asked for the same")
		}
		time.Sleep(time.Minute)
		second.all()
		if st := second.status(); st.Connection != session.Connected || st.Repos != 2 {
			t.Errorf("status %+v", st)
		}
		first.stop()
		second.stop()
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

// TestLeaderReturns: relays that ask for the same one after the other and bring nothing, or one
// that ends its connection and comes back at once, hold nobody up for ever.
func TestLeaderReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, second := twoRelays(t, tagged(t, 20)...)
		board := second.session.Negentropy.Leads
		_, _, lead := board.Take([]string{repository}, time.Now())
		second.run(session.Start{})
		second.want(1, repos(repository))
		for range 13 {
			time.Sleep(10 * time.Second)
			lead.End(false, false, time.Now())
			if _, _, lead = board.Take([]string{repository}, time.Now()); lead == nil {
				break
			}
		}
		second.inSync("after two minutes")
	})
}

// TestOnlyBlockedWait: of many filters only those wait that ask for what is asked for elsewhere.
func TestOnlyBlockedWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReconciling(t, 59, spread(t)...)
		r.partial = 30
		r.session.Negentropy.Leads = leads.New()
		r.session.Negentropy.Leads.Take([]string{"30617:aa:000"}, time.Now())
		r.run(session.Start{})
		r.want(1, manyRepos(0, 3000))
		time.Sleep(100 * time.Millisecond)
		if sessions, _ := r.askedFor(); sessions != 3 { // about everything, and two of three thousand
			t.Errorf("%d sessions at first, want 3", sessions)
		}
		time.Sleep(time.Minute)
		if sessions, _ := r.askedFor(); sessions != 4 {
			t.Errorf("%d sessions, want 4", sessions)
		}
		r.all()
		r.stop()
	})
}

// TestSharedLost: where what came got no verdict, what was left to others is found out once each
// time, not once more with each time.
func TestSharedLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, r := twoRelays(t, tagged(t, 20)...)
		_, _, lead := r.session.Negentropy.Leads.Take([]string{repository}, time.Now())
		lead.End(true, false, time.Now())
		r.with(func() { r.fail = errNoVerdict })
		r.run(session.Start{})
		r.want(1, repos(repository))
		walks := func() (n int) {
			_, reqs := r.askedFor()
			for _, filters := range reqs {
				if len(filters[0].Tags) > 0 {
					n++
				}
			}
			return n
		}
		time.Sleep(30 * time.Second)
		once := walks()
		for n, wait := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
			time.Sleep(wait)
			if got := walks(); once == 0 || got != (n+2)*once {
				t.Errorf("%d REQs in %d tries, of which the first took %d", got, n+2, once)
			}
		}
		r.with(func() { r.fail = nil })
		time.Sleep(8 * time.Minute)
		r.inSync("it")
	})
}

// TestNotShared: a relay that does not reconcile is asked for everything by REQ, whatever others
// bring, and so is one that may have little of what is known here. One that has shown nothing of an
// item does not keep others from bringing it.
func TestNotShared(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(first, second *reconciling){
		"does not reconcile": func(_, second *reconciling) { second.unable = "error: not here" },
		"may have little of what is known": func(first, second *reconciling) {
			for _, r := range []*reconciling{first, second} {
				r.session.Negentropy.Seq = func() uint64 { return 9 }
			}
			first.mute = true
		},
		"shows nothing": func(first, _ *reconciling) { first.stored = nil },
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

// TestRootsThatBringNothingNew: while much comes, and nearly all that root events bring is known
// already, most of them are not asked for one by one. What the relay has of those that is not known
// comes all the same. Where what they bring is new they all are.
func TestRootsThatBringNothingNew(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"known": true, "new": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const groups = 40
				wanted := target.Target{Repos: map[string]target.Repo{}}
				var roots []target.ID
				var stored []*nostr.Event
				for i := range 100 * groups {
					root := target.ID{byte(i >> 8), byte(i)}
					roots = append(roots, root)
					tag := nostr.Tag{"e", root.String()}
					switch {
					case known && i < 100*groups-1: // nobody looks whether those are genuine
						ev := &nostr.Event{Kind: 1111, CreatedAt: nostr.Timestamp(9000 - i), Tags: nostr.Tags{tag}}
						ev.ID = ev.GetID()
						stored = append(stored, ev)
					case known || i%3 == 0:
						stored = append(stored, event(t, 1111, nostr.Timestamp(9000-i), tag))
					}
				}
				here := 0
				if known {
					here = len(stored) - 1 // the last is of the last group
				}
				r := newReconciling(t, here, stored...)
				r.session.Rules.PageLimit = 500
				board := leads.New()
				r.session.Negentropy.Leads = board
				_, _, lead := board.Take([]string{"something else"}, time.Now())
				r.run(session.Start{})
				r.want(1, repos(repository))
				time.Sleep(2 * time.Second)
				wanted.Repos[repository] = target.Repo{Level: proto.LevelFull, Roots: roots}
				r.want(2, items.Of(wanted))
				time.Sleep(10 * time.Second)
				asked := map[string]bool{}
				_, reqs := r.askedFor()
				for _, filters := range reqs {
					if ids := filters[0].Tags["e"]; len(ids) > 0 {
						asked[ids[0]] = true
					}
				}
				if known && (len(asked) < 10 || len(asked) > groups*3/4) || !known && len(asked) != groups {
					t.Errorf("%d of %d groups were asked for one by one", len(asked), groups)
				}
				lead.End(true, true, time.Now())
				time.Sleep(30 * time.Second)
				r.all()
				if st := r.status(); st.Connection != session.Connected || st.Roots != len(roots) {
					t.Errorf("status %+v", st)
				}
				r.stop()
			})
		})
	}
}
