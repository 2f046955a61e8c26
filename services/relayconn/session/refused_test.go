package session_test

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
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
	refuse                 wire.Message
	late                   bool // it answers what it refuses, and refuses it then
	refused                int
}

func (c *capped) Req(sub string, filters []nostr.Filter) {
	over := len(filters) > c.filters
	c.with(func() {
		if _, again := c.asked[sub]; over || !again && len(c.asked) >= c.subscriptions {
			over, c.log, c.refused = true, append(c.log, sub), c.refused+1
		}
	})
	if c.with(func() { c.adds = nil }); !over {
		c.play.Req(sub, filters)
		return
	}
	m := c.refuse
	if c.late {
		c.with(func() { c.adds = []wire.Message{m} })
		defer c.with(func() { delete(c.asked, sub) })
		c.play.Req(sub, filters)
		return
	}
	if m.Kind == wire.Closed {
		m.Sub = sub
	}
	go c.say(c.ctx, m)
}

func (p *play) caps(subscriptions, filters int, refuse wire.Message) *capped {
	c := &capped{play: p, subscriptions: subscriptions, filters: filters, refuse: refuse}
	p.session.Asker = c
	return c
}

func closes(reason string) wire.Message { return wire.Message{Kind: wire.Closed, Reason: reason} }

func notice(text string) wire.Message { return wire.Message{Kind: wire.Notice, Reason: text} }

// states has the information document of the relay say what it takes.
func (p *play) states(limits wire.Stated) {
	document := make(chan wire.Stated, 1)
	document <- limits
	p.session.Document = document
}

// TestMissedLiveIsAGap: what was made before the relay closed a subscription should have come on
// it.
func TestMissedLiveIsAGap(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		p.wants(1)
		time.Sleep(time.Hour)
		p.with(func() {
			p.stored = []*nostr.Event{issue(nostr.Now()+30, "30617:aa:000"), issue(nostr.Now()-60, "30617:aa:000")}
		})
		closed := time.Now()
		p.closed("l3", "error")
		if st := p.status(); st.Subscriptions != 1 || !st.Missing.Equal(closed) {
			t.Errorf("with one of two closed: %+v", st)
		}
		sleep(rules.Cooldown + rules.Calm + time.Second)
		p.complete(1)
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
		p.muted(true)
		p.want(1, manyRepos(0, 200))
		open := slices.Sorted(maps.Keys(p.pastAsked()))
		if len(open) != 2 {
			t.Fatalf("%v are open", open)
		}
		p.notice(notice) // for the first one
		p.muted(false)
		sleep(session.Doubtful + time.Second)
		if st := p.status(); st.Confirmed.Target != 1 {
			t.Errorf("%+v; still open: %v", st, p.pastAsked())
		}
	})
}

// TestOneHang of a relay halves what is asked at once, however much that is and whenever it was
// asked.
func TestOneHang(t *testing.T) {
	each(t, map[string]time.Duration{"a notice": session.Doubtful, "silence": 2 * time.Minute}, func(t *testing.T, p *play, wait time.Duration) {
		p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 7000, 40
		p.begin()
		p.muted(true)
		p.wants(2000)
		time.Sleep(time.Second)
		p.wants(4000)
		if wait == session.Doubtful {
			p.notice("zu viele")
		}
		sleep(wait + 2*time.Second)
		if n := len(p.pastAsked()); n != 10 { // of 40 beside 13 that are live
			t.Errorf("%d are asked for at once", n)
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

// TestRelaysThatRefuse: in all words that a relay has, or none, of subscriptions that are too many
// for it, the past comes, what is live is known to be so, and what is not live comes all the same.
func TestRelaysThatRefuse(t *testing.T) {
	type row struct {
		most   int
		refuse wire.Message
		within time.Duration // for the past
		says   bool          // its information document says what it takes
		late   bool          // it sends EOSE before it refuses
	}
	each(t, map[string]row{
		"strfry":            {20, notice("ERROR: too many concurrent REQs"), 10 * time.Minute, false, false},
		"EOSE, then NOTICE": {20, notice("ERROR: too many concurrent REQs"), 10 * time.Minute, false, true},
		"nostr-rs-relay":    {32, notice("Subscription error: Maximum concurrent subscription count reached"), 10 * time.Minute, false, false},
		"khatru":            {20, closes("rate-limited: there are too many open subscriptions"), 20 * time.Minute, false, false},
		"throttled":         {20, closes("Throttled, come back later"), 20 * time.Minute, false, false},
		"a foreign tongue":  {20, notice("zu viele Abonnements"), 30 * time.Minute, false, false},
		"it says so":        {20, closes("error: too many subscriptions"), 10 * time.Minute, true, false},
		"silence":           {20, wire.Message{}, 30 * time.Minute, false, false},
	}, func(t *testing.T, p *play, tc row) {
		const repositories = 12_000 // more than forty subscriptions
		var log strings.Builder
		p.session.Log = logTo(&log)
		p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 7000, 16
		relay := p.caps(tc.most, 100, tc.refuse)
		relay.late = tc.late
		if tc.says {
			p.states(wire.Stated{Subscriptions: tc.most})
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
		sleep(30 * time.Minute)
		st, live := p.status(), 0
		p.with(func() { live = len(p.asked) })
		if st.Subscriptions != live || st.CaughtUp {
			t.Errorf("the relay has %d open: %+v", live, st)
		}
		without := p.withoutRoom(repositories)
		if without == "" {
			t.Fatal("everything is live; this tests nothing")
		}
		if n := p.published("30617:aa:000"); n == 0 || len(p.listens(&nostr.Event{Kind: 1621, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"a", "30617:aa:11999"}}})) == 0 {
			t.Error("what names a repository directly is not live before the rest")
		}
		new := event(1621, nostr.Now(), nostr.Tag{"q", without})
		p.with(func() { p.stored = append(p.stored, new) })
		sleep(3 * time.Minute) // each at least every minute, in turn
		if !p.accepted[new.ID] {
			t.Error("an event of a repository that is not live did not come")
		}
		if relay.refused > 200 || tc.says && relay.refused > 0 || strings.Count(log.String(), "level=WARN") > 8 {
			t.Errorf("%d refusals, and the log says\n%s", relay.refused, log.String())
		}
	})
}

// TestARelayThatNeverAnswers live: nothing counts as open, and the past is asked for all the same.
func TestARelayThatNeverAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.deaf = true
		p.begin()
		time.Sleep(rules.Silence + time.Second)
		p.wants(1)
		p.with(func() {
			p.stored = append(p.stored, issue(nostr.Now(), "30617:aa:000"))
		})
		sleep(20 * time.Minute)
		if st := p.status(); st.CaughtUp || st.Missing.IsZero() || len(p.accepted) != 1 {
			t.Errorf("%d events, %+v", len(p.accepted), st)
		}
	})
}

// TestFiltersThatARelayDoesNotTakeTogether are asked for one at a time, and so are those that come
// later.
func TestFiltersThatARelayDoesNotTakeTogether(t *testing.T) {
	each(t, map[string]wire.Message{
		"closed": closes("invalid: too many filters"), "notice": notice("ERROR: bad req: arr too big"),
	}, func(t *testing.T, p *play, refuse wire.Message) {
		p.session.Rules.MaxFilters = 70
		relay := p.caps(100, 1, refuse)
		for i, tag := range []string{"a", "A", "q", "a"} {
			p.stored = append(p.stored, event(1621, nostr.Timestamp(1000-i), nostr.Tag{tag, "30617:aa:000"}))
		}
		p.begin()
		p.wants(1)
		sleep(30 * time.Second) // before anything is silent for too long
		if p.complete(1); len(p.accepted) != 4 || p.published("30617:aa:000") != 1 {
			t.Errorf("%d events came, and nothing live", len(p.accepted))
		}
		refused := relay.refused
		p.muted(true)
		p.wants(2)
		if reqs := p.pastAsked(); len(reqs) != 3 || relay.refused > refused {
			t.Errorf("%d REQs of the past for three filters, %d refusals more", len(reqs), relay.refused-refused)
		}
	})
}

// TestLongFilters: no REQ, live or of the past, is longer than the relay says that it takes.
func TestLongFilters(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.states(wire.Stated{Bytes: 30_000})
		p.begin()
		p.muted(true)
		var refs []string
		for n := range 100 {
			refs = append(refs, fmt.Sprintf("30617:aa:%0200d", n))
		}
		p.want(1, repos(refs...))
		p.lives(1 + 3)
		p.with(func() {
			for sub, filters := range p.asked {
				if n := session.Group(filters).Bytes(); n > 30_000 {
					t.Errorf("%s takes %d bytes", sub, n)
				}
			}
		})
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
		p.came(10)
		if st := p.status(); len(p.pastAsked()) != 0 || st.Confirmed.Target != 0 {
			t.Errorf("without verdicts %+v, and %v is still asked for", st, p.pastAsked())
		}
		p.release(nil)
		sleep(rules.Calm)
		p.complete(1)
	})
}

// TestRequestsYieldToLive: where a relay has no room for both, requests for the past are taken back
// for what must come live, and are asked again.
func TestRequestsYieldToLive(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.session.Rules.MaxFilters, p.session.Rules.AtOnce = 700, 16
		relay := p.caps(8, 100, closes("error: too many subscriptions"))
		p.states(wire.Stated{Subscriptions: 8})
		p.begin()
		p.muted(true)
		p.want(1, manyRepos(0, 400))
		before := len(p.pastAsked())
		p.want(2, manyRepos(0, 700))
		if after := len(p.pastAsked()); after >= before {
			t.Errorf("%d requests for the past are open, before there was more to come live %d", after, before)
		}
		if repo := p.withoutRoom(700); repo != "" || relay.refused > 0 {
			t.Errorf("%q is not live, %d refusals", repo, relay.refused)
		}
		p.muted(false)
		sleep(10 * time.Minute)
		if st := p.status(); st.Confirmed.Target != 2 || st.Connection != session.Connected {
			t.Errorf("%+v", st)
		}
	})
}

// TestAuthentication: what a relay refuses for want of authentication is asked again when we have
// answered its challenge, once a connection, whenever that comes. Without a key nothing is said.
func TestAuthentication(t *testing.T) {
	type row struct{ late, keyless, strict bool }
	each(t, map[string]row{"at once": {}, "late": {late: true}, "without a key": {keyless: true}, "a stranger all the same": {strict: true}}, func(t *testing.T, p *play, tc row) {
		p.stored = append(p.stored, issue(1000, "30617:aa:000"))
		relay, answers := p.caps(0, 100, closes("auth-required: members only")), 0
		var told strings.Builder
		p.session.Log = logTo(&told)
		p.session.Authenticate = func(challenge string) error {
			if answers++; tc.keyless {
				return fs.ErrNotExist
			}
			if challenge != "prove it" {
				t.Errorf("answered %q", challenge)
			}
			if !tc.strict {
				p.with(func() { relay.subscriptions = 100 })
			}
			return nil
		}
		p.begin()
		if tc.late {
			time.Sleep(time.Second)
		}
		p.messages <- wire.Message{Kind: wire.Auth, Reason: "prove it"}
		p.wants(1)
		sleep(20 * time.Second)
		if st, in := p.status(), !tc.keyless && !tc.strict; (st.Confirmed.Target == 1 && st.CaughtUp && len(p.accepted) == 1) != in || answers != 1 {
			t.Errorf("%d events, %d answers, %+v", len(p.accepted), answers, st)
		}
		if n := strings.Count(told.String(), "NIP-42"); (n > 0) != (tc.keyless || tc.strict) || n > 1 {
			t.Errorf("told %d times:\n%s", n, told.String())
		}
		if relay.refused > 12 {
			t.Errorf("%d refusals", relay.refused)
		}
	})
}
