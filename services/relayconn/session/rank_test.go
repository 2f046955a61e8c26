package session_test

import (
	"fmt"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// TestWhatIsKeptLive: a relay with little room keeps live what names a repository or a root event
// directly, then states, then what names the root of its thread, then the rest, then layer 4,
// whichever came first.
func TestWhatIsKeptLive(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.session.Rules.MaxFilters = 7000
		p.caps(12, 100, closes("error: too many subscriptions"))
		p.states(wire.Stated{Subscriptions: 12}) // of which 8 for what is live, of some nine filters each
		live := func(tag, value string, kind int) bool {
			return len(p.listens(&nostr.Event{Kind: kind, CreatedAt: nostr.Now(), Tags: nostr.Tags{{tag, value}}})) > 0
		}
		p.begin()
		p.want(1, session.Set{Roots: roots(3000), Replies: named("f%063x", 300)})
		sleep(time.Minute)
		if !live("e", roots(3000)[2999], 1) || live("q", roots(3000)[2999], 1) || live("e", fmt.Sprintf("f%063x", 299), 1) {
			t.Error("root events by e are not kept before the rest")
		}
		p.want(2, session.Set{Full: refs(2400), States: states(2400), Roots: roots(3000), Replies: named("f%063x", 300)})
		sleep(10 * time.Minute)
		if !live("a", refs(2400)[2399], 1) || !live("e", roots(3000)[2999], 1) {
			t.Error("repositories that came later are not live")
		}
		if live("E", roots(3000)[2999], 1) || live("A", refs(2400)[2399], 1) {
			t.Error("the rest was not closed")
		}
	})
}

// TestOrderOfLive: what names a thing directly, states, what names the root of its thread, the rest.
func TestOrderOfLive(t *testing.T) {
	t.Parallel()
	order := ""
	for _, g := range session.Live(session.Set{Full: []string{"30617:aa:x"}, States: []string{"x"}, Roots: []string{"bb"}}) {
		for name := range g[0].Tags {
			order += name
		}
	}
	if order != "aedEAqq" {
		t.Errorf("asked for in order %s", order)
	}
}
