package session_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// historic returns the filters of each REQ of the past that is open.
func (p *play) historic() [][]nostr.Filter { return slices.Collect(maps.Values(p.pastAsked())) }

// pastAsked returns the REQs of the past that are open, by name.
func (p *play) pastAsked() map[string][]nostr.Filter {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := maps.Clone(p.asked)
	maps.DeleteFunc(asked, func(_ string, filters []nostr.Filter) bool { return filters[0].LimitZero })
	return asked
}

// TestFiltersThatARelayDoesNotTakeTogether are asked for one at a time, and so are those that come
// later.
func TestFiltersThatARelayDoesNotTakeTogether(t *testing.T) {
	each(t, map[string]func(string) []wire.Message{
		"closed": closes("invalid: too many filters"),
		"notice": func(string) []wire.Message {
			return []wire.Message{{Kind: wire.Notice, Reason: "ERROR: bad req: arr too big"}}
		},
	}, func(t *testing.T, p *play, refuse func(string) []wire.Message) {
		p.session.Rules.MaxFilters = 70
		relay := p.caps(100, 1, refuse)
		for i, tag := range []string{"a", "A", "q", "a"} {
			p.stored = append(p.stored, event(1621, nostr.Timestamp(1000-i), nostr.Tag{tag, "30617:aa:000"}))
		}
		p.begin()
		p.wants(1)
		time.Sleep(30 * time.Second) // before anything is silent for too long
		synctest.Wait()
		if p.complete(1); len(p.accepted) != 4 || p.published(t, "30617:aa:000") != 1 {
			t.Errorf("%d events came, and nothing live", len(p.accepted))
		}
		refused := relay.refused
		p.with(func() { p.mute = true })
		p.wants(2)
		if reqs := p.historic(); len(reqs) != 3 || relay.refused > refused {
			t.Errorf("%d REQs of the past for three filters, %d refusals more", len(reqs), relay.refused-refused)
		}
	})
}

// TestNextPageIsAskedBeforeVerdicts: a walk goes on while nothing of the pages before has a
// verdict, and is confirmed only when everything has.
func TestNextPageIsAskedBeforeVerdicts(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		p.with(func() {
			p.hold = true
			for i := range 10 {
				p.stored = append(p.stored, issue(nostr.Timestamp(1000-i), "30617:aa:000"))
			}
		})
		p.wants(1)
		if _, offered := p.count(); offered != 10 || len(p.historic()) != 0 {
			t.Errorf("%d events came without a verdict, %v is still asked for", offered, p.historic())
		}
		if st := p.status(); st.Confirmed.Target != 0 {
			t.Errorf("confirmed without verdicts: %+v", st)
		}
		for i, answer := range slices.Clone(p.held) {
			if answer(); i < 9 && p.status().Confirmed.Target != 0 {
				t.Errorf("confirmed with %d verdicts", i+1)
			}
			synctest.Wait()
		}
		if st := p.status(); st.Confirmed.Target != 1 {
			t.Errorf("with all verdicts: %+v", st)
		}
	})
}

// withoutRoom is one of the first n repositories that is not live, the last one of these; "": all
// are.
func (p *play) withoutRoom(n int) (repo string) {
	p.with(func() {
		for i := n - 1; i >= 0 && repo == ""; i-- {
			ev := &nostr.Event{Kind: 1621, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"a", fmt.Sprintf("30617:aa:%03d", i)}}}
			live := false
			for _, filters := range p.asked {
				live = live || slices.ContainsFunc(filters, func(f nostr.Filter) bool { return f.LimitZero && f.Matches(ev) })
			}
			if !live {
				repo = ev.Tags[0][1]
			}
		}
	})
	return repo
}

// TestRequestsYieldToLive: where a relay has no room for both, requests for the past are taken back
// for what must come live, and are asked again.
func TestRequestsYieldToLive(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 700, 16
		relay := p.caps(8, 100, closes("error: too many subscriptions"))
		document := make(chan wire.Document, 1)
		document <- wire.Document{Limits: wire.Stated{Subscriptions: 8}}
		p.session.Document = document
		p.begin()
		p.with(func() { p.mute = true })
		p.want(1, manyRepos(0, 400))
		before := len(p.historic())
		p.want(2, manyRepos(0, 700))
		if after := len(p.historic()); after >= before {
			t.Errorf("%d requests for the past are open, before there was more to come live %d", after, before)
		}
		if repo := p.withoutRoom(700); repo != "" || relay.refused > 0 {
			t.Errorf("%q is not live, %d refusals", repo, relay.refused)
		}
		p.with(func() { p.mute = false })
		sleep(10 * time.Minute)
		if st := p.status(); st.Confirmed.Target != 2 || st.Connection != session.Connected {
			t.Errorf("%+v", st)
		}
	})
}
