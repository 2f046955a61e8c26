package session_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// capped is a relay that takes no more than so many subscriptions, or no more than so many filters
// in one.
type capped struct {
	*play
	subscriptions, filters int
	refuse                 func(sub string) []wire.Message
	refused                int
}

func (c *capped) Req(ctx context.Context, sub string, filters []nostr.Filter) error {
	over := len(filters) > c.filters
	c.with(func() {
		_, again := c.asked[sub]
		over = over || !again && len(c.asked) >= c.subscriptions
	})
	if !over {
		return c.play.Req(ctx, sub, filters)
	}
	c.with(func() { c.log, c.refused = append(c.log, "REQ "+sub), c.refused+1 })
	go c.say(ctx, c.refuse(sub)...)
	return nil
}

func (p *play) caps(subscriptions, filters int, refuse func(sub string) []wire.Message) *capped {
	c := &capped{play: p, subscriptions: subscriptions, filters: filters, refuse: refuse}
	p.session.Asker = c
	return c
}

// closes is a relay that says CLOSED.
func closes(reason string) func(string) []wire.Message {
	return func(sub string) []wire.Message { return []wire.Message{{Kind: wire.Closed, Sub: sub, Reason: reason}} }
}

// published tells how many subscriptions are open to a live issue of a repository; it is sent on
// them.
func (p *play) published(t *testing.T, repo string) (open int) {
	t.Helper()
	ev := issue(nostr.Timestamp(time.Now().Unix()), repo)
	var subs []string
	p.with(func() {
		for sub, filters := range p.asked {
			if slices.ContainsFunc(filters, func(f nostr.Filter) bool { return f.LimitZero && f.Matches(ev) }) {
				subs = append(subs, sub)
			}
		}
	})
	for _, sub := range subs {
		p.sends(sub, ev)
	}
	synctest.Wait()
	return len(subs)
}

// TestMissedLiveIsAGap: what was made before the relay closed a subscription should have come on
// it.
func TestMissedLiveIsAGap(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		p.wants(1)
		time.Sleep(time.Hour)
		made := nostr.Timestamp(time.Now().Unix())
		p.with(func() {
			p.stored = []*nostr.Event{
				issue(made+30, "30617:aa:000"), issue(made-60, "30617:aa:000"),
			}
		})
		closed := time.Now()
		p.closed("l3", "error")
		if st := p.status(); st.Subscriptions != 1 || !st.Missing.Equal(closed) {
			t.Errorf("with one of two closed: %+v", st)
		}
		p.with(func() { p.hold = true })
		sleep(rules.Cooldown + time.Second)
		if st := p.status(); st.Subscriptions != 2 || !st.Missing.Equal(closed) {
			t.Errorf("without the verdicts: %+v", st)
		}
		p.with(func() { p.hold = false })
		for _, answer := range p.held {
			answer()
		}
		synctest.Wait()
		if st := p.status(); !st.Missing.IsZero() {
			t.Errorf("in the end: %+v", st)
		}
		p.with(func() {
			if !slices.Equal(slices.Sorted(slices.Values(p.judged)), []string{"reconnect", "reconnect gap"}) {
				t.Errorf("judged %v", p.judged)
			}
		})
	})
}

// TestWrongRequestIsBlamed: a NOTICE does not say which REQ it is for, and the one that is taken
// for it is another. That the relay has not answered the right one is found out soon all the same.
func TestWrongRequestIsBlamed(t *testing.T) {
	each(t, map[string]string{
		"too many":  "ERROR: too many concurrent REQs",
		"too large": "ERROR: bad req: too many filters",
	}, func(t *testing.T, p *play, notice string) {
		p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 700, 2
		p.begin()
		p.with(func() { p.mute = true })
		p.want(1, manyRepos(0, 200))
		open := slices.Sorted(maps.Keys(p.pastAsked()))
		if len(open) != 2 {
			t.Fatalf("%v are open", open)
		}
		p.notice(notice) // for the first one
		p.with(func() { p.mute = false })
		sleep(session.Doubtful + time.Second)
		if st := p.status(); st.Confirmed.Target != 1 {
			t.Errorf("%+v; still open: %v", st, p.pastAsked())
		}
	})
}

// TestOneWarningForEachCause, however often it happens, and on however many connections.
func TestOneWarningForEachCause(t *testing.T) {
	var log strings.Builder
	warned := map[string]bool{}
	bubble(t, func(t *testing.T, _ *play) {
		for range 3 { // connections
			p := newPlay(t)
			p.session.Warned, p.session.Log, p.mute = warned, logTo(&log), true
			p.begin()
			for i := range 20 {
				p.want(uint64(i+1), manyRepos(i, i+1))
				time.Sleep(rules.Silence + time.Second)
				p.sends("l1", event(1, 5))
				p.notice("rate-limited")
				sleep(rules.Cooldown + time.Second)
			}
			p.stop()
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 4 {
			t.Errorf("%d warnings, want one for incomplete sync, one for quiet, one for what was not asked, one for the room", n)
		}
	})
}
