package session_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/nip11"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// TestRequestsYield: when something new needs room to come live, the requests of the past that are
// open have a moment to come to their end, and no more are opened meanwhile. Then as many as need
// be are taken back.
func TestRequestsYield(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]bool{"answered": true, "not answered": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 7000, 16
				document := make(chan nip11.Document, 1)
				document <- nip11.Document{Limits: nip11.Limits{Subscriptions: 8, Filters: 6}}
				p.session.Document = document
				p.run(session.Start{})
				p.with(func() { p.mute = true })
				p.want(1, manyRepos(0, 400))
				before := p.pastAsked()
				if len(before) != 4 {
					t.Fatalf("%d requests are open; this tests nothing", len(before))
				}
				p.want(2, manyRepos(0, 600))
				time.Sleep(time.Second)
				synctest.Wait()
				if now := p.pastAsked(); !maps.EqualFunc(now, before, func(a, b []nostr.Filter) bool { return len(a) == len(b) }) {
					t.Errorf("of %d requests %d are open, or others", len(before), len(now))
				}
				if n := p.published(t, "30617:aa:599"); n != 0 {
					t.Errorf("%d subscriptions to what there is no room for yet", n)
				}
				if answers {
					for sub := range before {
						p.messages <- wire.Message{Kind: wire.EOSE, Sub: sub}
					}
				} else {
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if n := p.published(t, "30617:aa:599"); n != 1 {
					t.Errorf("%d subscriptions to what is new", n)
				}
				kept := 0
				for sub := range p.pastAsked() {
					if before[sub] != nil {
						kept++
					}
				}
				if answers && kept > 0 || !answers && (kept == 0 || kept == len(before)) {
					t.Errorf("%d of %d requests are open still", kept, len(before))
				}
				p.stop()
			})
		})
	}
}

// TestRoomWhileConsolidating: room that was kept free for what is new is there for the past again
// while a consolidation waits for that.
func TestRoomWhileConsolidating(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]struct{ repos, open int }{
		"consolidation waits": {1106, 3},
		"none is needed":      {807, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t)
				p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 45, 16
				document := make(chan nip11.Document, 1)
				document <- nip11.Document{Limits: nip11.Limits{Subscriptions: 10, Filters: 6}}
				p.session.Document = document
				p.run(session.Start{})
				for n := range 6 { // few references in each filter, so that a consolidation helps
					p.want(uint64(n+1), manyRepos(0, n+1))
					time.Sleep(10 * time.Second)
				}
				p.with(func() { p.mute = true })
				p.want(10, manyRepos(0, 606))
				p.want(11, manyRepos(0, 806))
				p.want(12, manyRepos(0, more.repos))
				asked := p.pastAsked()
				if len(asked) != 3 {
					t.Fatalf("%d requests are open; this tests nothing", len(asked))
				}
				for sub := range asked {
					p.messages <- wire.Message{Kind: wire.EOSE, Sub: sub}
					break
				}
				synctest.Wait()
				if n := len(p.pastAsked()); n != more.open {
					t.Errorf("%d requests are open when one was answered, want %d", n, more.open)
				}
				p.stop()
			})
		})
	}
}
