package session_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// picky is a relay that refuses some REQs, for a reason.
type picky struct {
	*play
	refuses func(filters []nostr.Filter) bool
	reason  string
	refused int
}

func (r *picky) Req(sub string, filters []nostr.Filter) {
	refuses := false
	r.with(func() {
		if refuses = r.refuses(filters); refuses {
			r.refused, r.log = r.refused+1, append(r.log, sub)
		}
	})
	if !refuses {
		r.play.Req(sub, filters)
		return
	}
	go r.say(r.ctx, wire.Message{Kind: wire.Closed, Sub: sub, Reason: r.reason})
}

// TestOneItemThatIsRefused by itself rests for a day; all others come and are confirmed, and the
// connection stays.
func TestOneItemThatIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		relay := &picky{play: p, reason: "invalid: filter too large", refuses: func(filters []nostr.Filter) bool {
			return slices.ContainsFunc(filters, func(f nostr.Filter) bool {
				return slices.Contains(f.Tags["a"], "30617:aa:007") && !f.LimitZero
			})
		}}
		p.session.Asker = relay
		for i, repo := range manyRepos(0, 20).Full {
			p.stored = append(p.stored, issue(nostr.Timestamp(1000-i), repo))
		}
		p.begin()
		p.wants(20)
		sleep(20 * time.Minute)
		st := p.status()
		if len(p.accepted) != 19 || st.Repos != 19 || st.Connection != session.Connected || st.Refused.IsZero() {
			t.Errorf("%d events, %+v", len(p.accepted), st)
		}
		if relay.refused > 60 {
			t.Errorf("refused %d times", relay.refused)
		}
		refused := relay.refused
		sleep(23 * time.Hour)
		if relay.refused != refused {
			t.Errorf("refused %d times more within the day", relay.refused-refused)
		}
		p.with(func() { relay.refuses = func([]nostr.Filter) bool { return false } })
		sleep(2 * time.Hour)
		if p.complete(20); len(p.accepted) != 20 {
			t.Errorf("a day later %d events", len(p.accepted))
		}
	})
}

// TestFewFiltersAndSubscriptions: a relay that takes three filters in each of four subscriptions is
// not asked for more over and over.
func TestFewFiltersAndSubscriptions(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		relay := &picky{play: p, reason: "ERROR: bad req: arr too big"}
		relay.refuses = func(filters []nostr.Filter) bool {
			if relay.reason = "ERROR: bad req: arr too big"; len(p.asked) >= 4 {
				relay.reason = "ERROR: too many concurrent REQs"
			}
			return len(filters) > 3 || len(p.asked) >= 4
		}
		p.session.Asker, p.session.Rules.MaxFilters = relay, 70
		repos := manyRepos(0, 100)
		for i, repo := range repos.Full {
			p.stored = append(p.stored, issue(nostr.Timestamp(1000-i), repo))
		}
		for i := range 500 {
			repos.Roots = append(repos.Roots, fmt.Sprintf("%064x", i))
		}
		p.begin()
		p.want(1, repos)
		sleep(20 * time.Minute)
		if len(p.accepted) != 100 {
			t.Errorf("%d of 100 events", len(p.accepted))
		}
		lives := 0
		for _, sub := range p.log {
			if strings.HasPrefix(sub, "l") {
				lives++
			}
		}
		if lives > 100 {
			t.Errorf("live subscriptions were asked for %d times", lives)
		}
	})
}

// TestRefusedForGood: a request that is refused by policy rests; all others, and the connection,
// stay.
func TestRefusedForGood(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		relay := &picky{play: p, reason: "restricted: no comments here", refuses: func(filters []nostr.Filter) bool {
			return len(filters[0].Tags["e"]) > 0
		}}
		p.session.Asker = relay
		p.stored = []*nostr.Event{issue(1000, "30617:aa:000")}
		p.begin()
		all := manyRepos(0, 1)
		all.Roots = []string{strings.Repeat("ab", 32)}
		p.want(1, all)
		sleep(23 * time.Hour)
		if st := p.status(); relay.refused != 1 || len(p.accepted) != 1 || st.Refused.IsZero() || st.Connection != session.Connected {
			t.Errorf("refused %d times; %+v", relay.refused, st)
		}
		if p.refusals["restricted"] != 1 || len(p.refusals) != 1 {
			t.Errorf("counted by category: %v", p.refusals)
		}
	})
}

// TestSilentSubscription: a live subscription that has fallen silent is found out within an hour or
// so, and what it did not bring counts as a gap.
func TestSilentSubscription(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.session.Rules.SilentLook = time.Hour
		p.begin()
		p.wants(1)
		sleep(30 * time.Minute)
		p.with(func() { p.stored = []*nostr.Event{issue(nostr.Now(), "30617:aa:000")} }) // and does not tell it
		sleep(time.Hour)
		p.came(1)
		p.with(func() {
			if !slices.Equal(p.judged, []string{"reconnect gap"}) {
				t.Errorf("judged %v", p.judged)
			}
		})
		p.complete(1)
		if n := p.published("30617:aa:000"); n != 1 || len(p.listens(issue(nostr.Now(), "30617:aa:000"))) != 1 {
			t.Errorf("it is open %d times", n)
		}
		p.came(2)
		var opened int
		p.with(func() {
			for _, f := range p.asksFor {
				if f.LimitZero && len(f.Tags["a"]) > 0 {
					opened++
				}
			}
		})
		if opened != 2 {
			t.Errorf("it was opened %d times, want once more than at first", opened)
		}
		asked := p.asks()
		sleep(3 * time.Hour)
		if n := p.asks() - asked; n == 0 || n > 16 {
			t.Errorf("%d requests in three hours", n)
		}
	})
}

// TestLateWhereNothingIsLive: what the relay does not take live is asked for again and again, and from
// time to time further back: it may have been published long after it was made.
func TestLateWhereNothingIsLive(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.session.Rules.SilentLook = time.Hour
		p.session.Asker = &picky{play: p, reason: "invalid: limit must be positive", refuses: func(filters []nostr.Filter) bool {
			return filters[0].LimitZero
		}}
		p.begin()
		p.wants(1)
		sleep(3 * time.Hour)
		p.with(func() { p.stored = []*nostr.Event{issue(nostr.Now()-40*60, "30617:aa:000")} })
		sleep(time.Hour + time.Minute)
		p.came(1)
	})
}

// TestShortTimes: how long a time the relay takes is learned once. What is older than Nostr is not
// asked for in so many pieces.
func TestShortTimes(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		time.Sleep(27 * 365 * 24 * time.Hour) // to the days of Nostr
		const month = 30 * 86400
		relay := &picky{play: p, reason: "restricted: time range exceeds 30 days", refuses: func(filters []nostr.Filter) bool {
			f, until := filters[0], nostr.Now()
			if f.Until != nil {
				until = *f.Until
			}
			return !f.LimitZero && f.IDs == nil && (f.Since == nil || until-*f.Since > month)
		}}
		p.session.Asker = relay
		for n := range 5 {
			p.stored = append(p.stored, issue(nostr.Now()-nostr.Timestamp(n)*200*86400, "30617:aa:000"))
		}
		p.begin()
		p.wants(1)
		sleep(time.Hour)
		if p.complete(1); len(p.accepted) != 5 || relay.refused > 20 || p.asks() > 600 {
			t.Errorf("%d events came, with %d requests, of which %d were refused", len(p.accepted), p.asks(), relay.refused)
		}
	})
}

// TestRefusedOfOld: what a relay refuses for another reason than its time has not come, however old it
// is.
func TestRefusedOfOld(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		time.Sleep(27 * 365 * 24 * time.Hour) // to the days of Nostr
		relay := &picky{play: p, reason: "invalid: filter too large", refuses: func(filters []nostr.Filter) bool {
			f := filters[0]
			return len(f.Tags["a"]) > 0 && f.Until != nil && *f.Until < 1_600_000_000
		}}
		p.session.Asker = relay
		for n := range 5 {
			p.stored = append(p.stored, issue(nostr.Timestamp(1_500_000_000-1000*n), "30617:aa:000"))
		}
		p.begin()
		p.wants(1)
		sleep(20 * time.Minute)
		if st := p.status(); st.Repos != 0 || st.Refused.IsZero() {
			t.Errorf("%d of its repositories are confirmed: %+v", st.Repos, st)
		}
	})
}

// TestApart: walks through the past begin apart from one another.
func TestApart(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.session.Rules.Apart, p.session.Rules.AtOnce, p.session.Rules.MaxFilters = 250*time.Millisecond, 40, 7000
		p.begin()
		p.muted(true)
		p.wants(1000)
		synctest.Wait()
		before := p.asks()
		sleep(time.Second)
		if n := p.asks() - before; n < 3 || n > 4 {
			t.Errorf("%d walks began within a second", n)
		}
	})
}
