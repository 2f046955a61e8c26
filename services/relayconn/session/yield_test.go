package session_test

import (
	"testing"
	"testing/synctest"

	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// TestRequestsYield: when something new needs room to come live, the requests of the past that were
// asked last are taken back, and asked again when there is room.
func TestRequestsYield(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 7000, 16
		document := make(chan wire.Document, 1)
		document <- wire.Document{Limits: wire.Stated{Subscriptions: 8, Filters: 6}}
		p.session.Document = document
		p.run(session.Start{})
		p.with(func() { p.mute = true })
		p.want(1, manyRepos(0, 400))
		before := p.pastAsked()
		if len(before) != 4 {
			t.Fatalf("%d requests are open; this tests nothing", len(before))
		}
		p.want(2, manyRepos(0, 600))
		if n := p.published(t, "30617:aa:599"); n != 1 {
			t.Errorf("%d subscriptions to what is new", n)
		}
		if n := len(p.pastAsked()); n == 0 || n >= len(before) {
			t.Errorf("%d of %d requests are open still", n, len(before))
		}
		p.with(func() { p.mute = false })
		for sub := range p.pastAsked() {
			p.messages <- wire.Message{Kind: wire.EOSE, Sub: sub}
		}
		synctest.Wait()
		if st := p.status(); st.Confirmed != 2 {
			t.Errorf("%+v", st)
		}
		p.stop()
	})
}
