package session_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// TestFailedBatchIsAskedAgain on the same connection, after 1, 2, 4 … 30 min, until it comes. Until
// then the relay is connected with failures, and nothing that failed is taken to be confirmed.
func TestFailedBatchIsAskedAgain(t *testing.T) {
	each(t, map[string]bool{"of items": false, "of layer 1": true}, func(t *testing.T, p *play, layer1 bool) {
		p.mute = layer1
		p.begin()
		if p.muted(true); layer1 {
			p.want(9, repos())
		} else {
			p.want(9, repos("30617:aa:x"))
		}
		for i, wait := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			if p.closeHistoric("error: no") == 0 {
				t.Fatalf("nothing is asked before failure %d", i+1)
			}
			asked := p.asks()
			sleep(wait*time.Minute - time.Second)
			if st := p.status(); p.asks() != asked || st.Connection != session.Incomplete || st.Confirmed.Target != 0 {
				t.Fatalf("before %d min: %d requests, %+v", wait, p.asks()-asked, st)
			}
			sleep(time.Second)
			if p.asks() == asked {
				t.Fatalf("not asked again after %d min", wait)
			}
		}
		p.muted(false)
		p.closeHistoric("error: no")
		sleep(31 * time.Minute)
		p.complete(9)
	})
}

// TestFailedWalkGoesOn where it stood: what the pages before have brought is not asked for again.
func TestFailedWalkGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.mute = true
		p.begin()
		for i := range 3 {
			p.sends("h2", event(30617, nostr.Timestamp(1000-i)))
		}
		p.eose("h2")
		synctest.Wait()
		p.closeHistoric("error: no")
		sleep(time.Minute)
		if got := p.open(false); len(got) != 1 || got[0].Until == nil || *got[0].Until != 998 {
			t.Errorf("asked again: %v", got)
		}
	})
}

// TestWithdrawnFailureIsNotAskedAgain: what is not wanted any more keeps no relay from being
// complete, whether it fails before or after that.
func TestWithdrawnFailureIsNotAskedAgain(t *testing.T) {
	each(t, map[string]bool{"fails before": false, "fails after": true}, func(t *testing.T, p *play, after bool) {
		p.begin()
		p.muted(true)
		p.want(1, repos("30617:aa:x"))
		if after {
			p.want(2, repos())
		}
		p.closeHistoric("error: no")
		p.muted(false)
		p.want(3, repos())
		asked := p.asks()
		sleep(time.Hour)
		if p.complete(3); p.asks() != asked {
			t.Errorf("%d requests", p.asks()-asked)
		}
		p.lives(1) // nor does it come live for ever
	})
}

// TestConsolidationKeepsWalks where they stand, or large pasts at slow relays would never end.
func TestConsolidationKeepsWalks(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.session.Rules.Silence = time.Hour
		p.begin()
		for n := 1; n <= 3; n++ {
			p.wants(n)
		}
		p.muted(true)
		p.wants(4)
		var of string // the walk of the new repository by #a
		p.with(func() {
			for sub, filters := range p.asked {
				if !filters[0].LimitZero && slices.Contains(filters[0].Tags["a"], "30617:aa:003") {
					of = sub
				}
			}
		})
		for i := range 3 {
			p.sends(of, issue(nostr.Timestamp(1000-i), "30617:aa:003"))
		}
		p.eose(of)
		p.wants(5)
		sleep(rules.ConsolidateWait + time.Second)
		p.lives(1 + 3 + 3)
		var untils []nostr.Timestamp
		for _, f := range p.open(false) {
			if slices.Contains(f.Tags["a"], "30617:aa:003") && f.Until != nil {
				untils = append(untils, *f.Until)
			}
		}
		if !slices.Equal(untils, []nostr.Timestamp{998}) {
			t.Errorf("after the consolidation the walk stands at %v, want 998: %v", untils, p.open(false))
		}
	})
}

// TestNoRoomForThePast: where what is live takes all of a relay's subscriptions, the past waits,
// and comes when there is room.
func TestNoRoomForThePast(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		relay := p.caps(1, 100, closes("error: too many subscriptions"))
		p.begin()
		sleep(5 * time.Hour)
		if st := p.status(); st.Connection != session.Incomplete || relay.refused > 60 {
			t.Errorf("%d refusals, %+v", relay.refused, st)
		}
		p.with(func() { relay.subscriptions = 2 })
		sleep(time.Hour)
		p.complete(0)
	})
}

// TestRelayThatIgnores until or limit: events that are beyond until are nothing new, a page that
// does not end is ended, and neither is a reason to end the connection or to call a batch failed.
func TestRelayThatIgnores(t *testing.T) {
	type row struct {
		pages, events int // 60 are too many for pages of three
		known         bool
	}
	each(t, map[string]row{"until": {2, 40, false}, "limit": {1, 60, false}, "limit, and sends nothing new": {1, 60, true}}, func(t *testing.T, p *play, tc row) {
		if p.mute = true; tc.known {
			p.session.Intake = faster{p.session.Intake}
		}
		var told strings.Builder
		p.session.Log = logTo(&told)
		p.begin()
		for range tc.pages {
			sub := p.latest()
			for i := range tc.events {
				p.sends(sub, event(30617, nostr.Timestamp(1000-i)))
			}
			if tc.pages > 1 {
				p.eose(sub)
			}
			sleep(rules.Calm + time.Second)
		}
		p.complete(0)
		if text := told.String(); strings.Count(text, "does not heed since, until or limit") != 1 || strings.Contains(text, "what it should not") {
			t.Errorf("told:\n%s", text)
		}
	})
}

// TestLiveWithoutVerdict: what came live and had no verdict is missing since it came, and is asked
// for again on the same connection until it has one.
func TestLiveWithoutVerdict(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		p.wants(1)
		time.Sleep(time.Hour)
		ev, came := issue(nostr.Now(), "30617:aa:000"), time.Now()
		p.with(func() { p.hold, p.fail, p.stored = true, candidates.ErrNoVerdict, []*nostr.Event{ev} })
		p.sends("l3", ev)
		sleep(time.Second)
		if st := p.status(); !st.CaughtUp {
			t.Errorf("missing before it is late: %+v", st)
		}
		sleep(10 * time.Second)
		if st := p.status(); !st.Missing.Equal(came) || st.CaughtUp {
			t.Errorf("late: %+v, want missing since %v", st, came)
		}
		for range 2 { // ingest stays away: what is asked again has no verdict either
			p.release(candidates.ErrNoVerdict)
			synctest.Wait()
			if st := p.status(); !st.Missing.Equal(came) || st.CaughtUp {
				t.Errorf("lost: %+v, want missing since %v", st, came)
			}
		}
		asked := p.asks()
		sleep(30 * time.Second)
		if st := p.status(); p.asks() != asked || st.Connection != session.Incomplete || !st.Missing.Equal(came) {
			t.Errorf("%d requests while ingest is away, %+v", p.asks()-asked, st)
		}
		p.with(func() { p.hold, p.fail = false, nil })
		sleep(time.Minute)
		p.complete(1)
		p.with(func() {
			if !slices.Equal(p.judged, []string{"reconnect"}) {
				t.Errorf("judged %v", p.judged)
			}
		})
		p.holds(true)
		p.sends("l3", issue(nostr.Now(), "30617:aa:000"))
		sleep(time.Minute)
		p.release(nil)
		synctest.Wait()
		p.complete(1)
	})
}

// TestWhatIngestDoesNotTake is asked for again when it may be taken, and not confirmed before; what
// it will never take, or takes of one author only later, stops no relay.
func TestWhatIngestDoesNotTake(t *testing.T) {
	over := func(whose string) func(*play) {
		return func(p *play) { p.over, p.retry = whose, time.Now().Add(8*time.Hour) }
	}
	type row struct {
		prepare func(p *play)
		after   time.Duration // it is taken
		told    int           // how often the operator is told that it is left out
	}
	each(t, map[string]row{
		"no verdict": {func(p *play) {
			p.fail = candidates.ErrNoVerdict
			time.AfterFunc(time.Second, func() { p.with(func() { p.fail = nil }) })
		}, time.Minute, 0},
		"the relay has brought too much": {over("relay"), 8 * time.Hour, 0},
		"an author has brought too much": {over("author"), 0, 0},
		"it is too large for the bus":    {func(p *play) { p.fail = fmt.Errorf("send candidate: %w", nats.ErrMaxPayload) }, 0, 1},
	}, func(t *testing.T, p *play, tc row) {
		tc.prepare(p)
		var log strings.Builder
		p.session.Log = logTo(&log)
		p.stored = issues("30617:aa:000", 1)
		p.begin()
		p.wants(1)
		want := 1
		if tc.after > 0 {
			sleep(tc.after - time.Second)
			_, offered := p.count()
			if st := p.status(); st.Connection == session.Connected || st.Confirmed.Target != 0 || offered != 1 {
				t.Errorf("offered %d times, %+v", offered, st)
			}
			want = 2
		}
		sleep(2 * time.Minute)
		p.complete(1)
		if _, offered := p.count(); offered != want || strings.Count(log.String(), "left out") != tc.told {
			t.Errorf("offered %d times; %s", offered, log.String())
		}
	})
}
