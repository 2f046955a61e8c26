package session_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

// TestRelaysThatRefuse: whatever a relay says, or does not say, of subscriptions that are too many
// for it, the past comes, what is live is known to be so, and what is not live comes all the same.
func TestRelaysThatRefuse(t *testing.T) {
	notice := func(text string) func(string) []wire.Message {
		return func(string) []wire.Message { return []wire.Message{{Kind: wire.Notice, Reason: text}} }
	}
	type row struct {
		most   int
		refuse func(sub string) []wire.Message
		within time.Duration // for the past
		says   bool          // its information document says what it takes
	}
	each(t, map[string]row{
		"strfry":           {20, notice("ERROR: too many concurrent REQs"), 10 * time.Minute, false},
		"nostr-rs-relay":   {32, notice("Subscription error: Maximum concurrent subscription count reached"), 10 * time.Minute, false},
		"khatru":           {20, closes("rate-limited: there are too many open subscriptions"), 20 * time.Minute, false},
		"throttled":        {20, closes("Throttled, come back later"), 20 * time.Minute, false},
		"a foreign tongue": {20, notice("zu viele Abonnements"), 30 * time.Minute, false},
		"it says so":       {20, closes("error: too many subscriptions"), 10 * time.Minute, true},
		"silence":          {20, func(string) []wire.Message { return nil }, 30 * time.Minute, false},
	}, func(t *testing.T, p *play, tc row) {
		const repositories = 12_000 // more than forty subscriptions
		var log strings.Builder
		p.session.Log = slog.New(slog.NewTextHandler(&log, nil))
		p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 7000, 16
		relay := p.caps(tc.most, 100, tc.refuse)
		if tc.says {
			document := make(chan wire.Document, 1)
			document <- wire.Document{Limits: wire.Stated{Subscriptions: tc.most}}
			p.session.Document = document
		}
		for i := range repositories / 100 {
			p.stored = append(p.stored, issue(nostr.Timestamp(1000+i), fmt.Sprintf("30617:aa:%03d", 100*i)))
		}
		p.begin()
		p.want(1, manyRepos(0, repositories))
		sleep(tc.within)
		if st := p.status(); st.Confirmed.Target != 1 || len(p.accepted) != len(p.stored) {
			t.Errorf("the past: %d of %d events, %+v", len(p.accepted), len(p.stored), st)
		}
		sleep(time.Hour)
		st, live := p.status(), 0
		p.with(func() { live = len(p.asked) })
		if st.Subscriptions != live || st.CaughtUp {
			t.Errorf("the relay has %d open: %+v", live, st)
		}
		without := p.withoutRoom(repositories)
		if without == "" {
			t.Fatal("everything is live; this tests nothing")
		}
		new := issue(nostr.Timestamp(time.Now().Unix()), without)
		p.with(func() { p.stored = append(p.stored, new) })
		sleep(25 * time.Minute)
		if !p.accepted[new.ID] {
			t.Error("an event of a repository that is not live did not come")
		}
		if relay.refused > 200 || tc.says && relay.refused > 0 || strings.Count(log.String(), "level=WARN") > 8 {
			t.Errorf("%d refusals, and the log says\n%s", relay.refused, log.String())
		}
	})
}

// TestARelayThatNeverAnswers live: nothing counts as open, the past is asked for all the same, and
// an event that comes on a subscription is an answer too.
func TestARelayThatNeverAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.deaf = true
		p.begin()
		time.Sleep(rules.Silence + time.Second)
		p.wants(1)
		p.with(func() {
			p.stored = append(p.stored, issue(nostr.Timestamp(time.Now().Unix()), "30617:aa:000"))
		})
		sleep(20 * time.Minute)
		if st := p.status(); st.CaughtUp || st.Missing.IsZero() || len(p.accepted) != 1 {
			t.Errorf("%d events, %+v", len(p.accepted), st)
		}
		for range 20 {
			if p.published(t, "30617:aa:000"); p.status().Missing.IsZero() {
				break
			}
			p.eose("l1")
			sleep(rules.Cooldown)
		}
		if st := p.status(); !st.Missing.IsZero() {
			t.Errorf("with events that come live: %+v", st)
		}
	})
}
