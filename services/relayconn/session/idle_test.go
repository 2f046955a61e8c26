package session_test

import (
	"context"
	"fmt"
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

// busyFor has another relay of the worker lead without end, bring nothing but what is known by root
// events, and take its time to say what is missing, whenever it is its turn, until ctx ends.
func busyFor(ctx context.Context, board *leads.Board) {
	again := time.NewTicker(5 * time.Second)
	defer again.Stop()
	for n := 0; ; n++ {
		board.Take([]string{fmt.Sprint("something else", n)}, time.Now())
		board.Brought(10_000, 0)
		board.Probe(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// manyRoots is a repository with so many hundreds of root events, and a comment on one of each
// hundred that does not name the repository.
func manyRoots(t *testing.T, hundreds int, at nostr.Timestamp) (wanted items.Set, comments []*nostr.Event) {
	var roots []target.ID
	for i := range 100 * hundreds {
		root := target.ID{byte(i >> 8), byte(i)}
		roots = append(roots, root)
		if i%100 == 50 {
			tag := []string{"e", "E", "q"}[i/100%3]
			comments = append(comments, event(t, 1111, at-nostr.Timestamp(i), nostr.Tag{tag, root.String()}))
		}
	}
	return items.Of(target.Target{Repos: map[string]target.Repo{repository: {Level: proto.LevelFull, Roots: roots}}}), comments
}

// rootsAsked counts the hundreds of root events that were asked for by REQ.
func (r *reconciling) rootsAsked() int {
	asked := map[string]bool{}
	_, reqs := r.askedFor()
	for _, filters := range reqs {
		for _, f := range filters {
			for _, values := range f.Tags {
				if len(values) > 1 {
					asked[values[0]] = true
				}
			}
		}
	}
	return len(asked)
}

// TestPutOff: what only one relay has of root events that it was not asked for, because another one
// sends known events without end, comes all the same, whatever the relay makes of NIP-77. Before
// that nothing says that all is there.
func TestPutOff(t *testing.T) {
	t.Parallel()
	const hundreds = 40
	for name, c := range map[string]struct {
		set   func(*reconciling)
		first bool // it is known from the start what is wanted
		daily bool
		drop  bool // the connection ends in the middle
		here  int  // so much is known before
		soon  bool // it may be found out at once what is missing, or that NIP-77 is of no use
	}{
		"reconciles":               {},
		"something is known":       {here: 2, soon: true},
		"at a fresh start":         {first: true, soon: true},
		"daily":                    {first: true, daily: true, soon: true},
		"does not reconcile":       {set: func(r *reconciling) { r.unable = "error: not here" }, soon: true},
		"says nothing to it":       {set: func(r *reconciling) { r.silent = true }},
		"reconciles hardly any":    {set: func(r *reconciling) { r.partial = 1 }, soon: true},
		"refuses in the middle":    {set: func(r *reconciling) { r.unableAfter = 5 }},
		"takes sessions of little": {set: func(r *reconciling) { r.unable = "blocked: too many query results" }, soon: true},
		"does not deliver": {set: func(r *reconciling) {
			for _, ev := range r.stored {
				r.hidden[ev.ID] = true
			}
		}},
		"closes requests": {set: func(r *reconciling) { r.closes = 3 }},
		"ends":            {drop: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				board := leads.New()
				go busyFor(ctx, board)
				wanted, comments := manyRoots(t, hundreds, 9000)
				r := newReconciling(t, c.here, comments...)
				r.session.Negentropy.Leads = board
				if c.set != nil {
					c.set(r)
				}
				r.run(session.Start{})
				revision := uint64(2)
				if !c.first {
					r.want(1, repos(repository))
					time.Sleep(10 * time.Second)
				}
				r.want(revision, wanted)
				time.Sleep(5 * time.Second)
				if n := r.rootsAsked(); !c.soon && n > hundreds/2 {
					t.Fatalf("%d of %d groups were asked for; this tests nothing", n, hundreds)
				}
				if c.drop {
					r.stop()
					again := newReconciling(t, 0, comments...)
					again.session.Negentropy.Leads = board
					again.accepted = r.accepted
					since := nostr.Timestamp(time.Now().Add(-15 * time.Minute).Unix())
					again.run(session.Start{Since: &since, Confirmed: r.session.Confirmed(), Revision: 1})
					r = again
					r.want(revision, wanted)
				}
				r.comesWhole(wanted, revision)
				if c.daily {
					_, more := manyRoots(t, hundreds, 19_000)
					r.with(func() { r.stored = append(r.stored, more...) })
					r.daily <- time.Now()
					synctest.Wait()
					r.comesWhole(wanted, revision)
				}
				r.stop()
			})
		})
	}
}

// comesWhole waits for everything that the relay has, and checks that only then anything says so.
func (r *reconciling) comesWhole(wanted items.Set, revision uint64) {
	r.t.Helper()
	for range 600 {
		st, missing := r.status(), 0
		r.with(func() {
			for _, ev := range r.stored {
				if !r.accepted[ev.ID] {
					missing++
				}
			}
		})
		said := st.Connection == session.Connected || st.Roots == len(wanted.Roots) || st.Confirmed == revision
		switch {
		case missing > 0 && said:
			r.t.Fatalf("%d events are missing, and the status is %+v", missing, st)
		case missing == 0 && st.Connection == session.Connected && st.Roots == len(wanted.Roots) && st.Confirmed == revision:
			return
		}
		time.Sleep(time.Second)
	}
	r.t.Errorf("after ten minutes: %+v", r.status())
	r.all()
}
