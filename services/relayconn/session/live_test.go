package session_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/wire"
)

// TestDayClosesWhatItReplaces, also while that is being opened.
func TestDayClosesWhatItReplaces(t *testing.T) {
	each(t, map[string]func(p *play){
		"open":    func(*play) {},
		"opening": func(p *play) { p.deafened(true); p.wants(2) },
		"opening again": func(p *play) {
			p.deafened(true)
			p.closed("l3", "error: oops")
			sleep(rules.Cooldown)
		},
	}, func(t *testing.T, p *play, before func(p *play)) {
		p.begin()
		p.wants(1)
		before(p)
		p.deafened(false)
		p.daily <- time.Now()
		synctest.Wait()
		if p.lives(1 + 3); p.status().Days != 1 {
			t.Error("no day has begun")
		}
	})
}

// TestWhatIsMissedWhileClosedComes: all of it, in as many pages as it takes. Until then a next
// start must go back further than this connection.
func TestWhatIsMissedWhileClosedComes(t *testing.T) {
	const missed = 16
	closed := func(p *play) { p.closed("l3", "error: too long") }
	each(t, map[string]func(p *play){
		"opened again": func(p *play) {
			closed(p)
			time.Sleep(rules.Cooldown + time.Second)
		},
		"closed twice": func(p *play) {
			closed(p)
			p.deafened(true)
			time.Sleep(rules.Cooldown + time.Second)
			closed(p)
			p.deafened(false)
			time.Sleep(rules.Cooldown + time.Second)
		},
		"no answer when opened again": func(p *play) {
			closed(p)
			p.deafened(true)
			sleep(rules.Cooldown + time.Second)
			p.deafened(false)
			time.Sleep(rules.Silence + rules.Cooldown + 2*time.Second)
		},
		"consolidated": func(p *play) {
			closed(p)
			for n := 2; n <= 5; n++ {
				p.wants(n)
			}
		},
	}, func(t *testing.T, p *play, happens func(p *play)) {
		p.begin()
		p.wants(1)
		// The margin goes back as far as a quick reconnect; what is older has come.
		p.with(func() { p.stored = issues("30617:aa:000", missed+5) })
		happens(p)
		synctest.Wait()
		if _, offered := p.count(); offered < missed-1 || offered > missed {
			t.Fatalf("%d events came, want the %d since a quarter of an hour", offered, missed)
		}
		if c := p.offer(0); c.Source != proto.SourceReconnect || c.Lane != proto.LaneSyncHistoric {
			t.Errorf("offered as %+v", c)
		}
		var wasBehind bool
		p.with(func() {
			for _, st := range p.statuses[1:] {
				wasBehind = wasBehind || st.Repos == 1 && !st.CaughtUp
			}
		})
		if st := p.status(); !wasBehind || !st.CaughtUp {
			t.Errorf("it was told to be behind: %v; in the end %+v", wasBehind, st)
		}
	})
}

// TestGapInOneRequest: the past of a gap is asked for in as many requests as were open live, because
// what is new waits behind them.
func TestGapInOneRequest(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		p.wants(1)
		sleep(rules.Calm)
		asked := p.asks()
		p.with(func() { p.asksFor = nil })
		p.closed("l3", "error: no")
		sleep(rules.Cooldown - time.Second) // it is not open again yet, and the past is asked for instead
		if n := p.asks() - asked; n != 1 || len(p.asksFor) != 3 {
			t.Errorf("%d requests with %d filters for the past of one subscription", n, len(p.asksFor))
		}
	})
}

// TestConsolidationLeavesNoGap: what is live stays so until what replaces it is open, or until the
// relay has no room for both. Only then is the past asked for.
func TestConsolidationLeavesNoGap(t *testing.T) {
	type relay struct {
		room         int // subscriptions that it says it takes; 0: it does not say
		refuses      bool
		open, missed int
	}
	each(t, map[string]relay{
		"room":                   {open: 2},
		"no room":                {room: 8, open: 1, missed: 1},
		"it refuses what is new": {refuses: true, open: 2, missed: 1},
	}, func(t *testing.T, p *play, relay relay) {
		p.states(wire.Stated{Subscriptions: relay.room})
		p.begin()
		ev := issue(nostr.Now(), "30617:aa:000")
		for n := 1; n <= 5; n++ {
			p.deafened(n == 5)
			p.wants(n)
		}
		if now := p.listens(ev); len(now) != relay.open {
			t.Fatalf("while it is consolidated the repository comes live on %v", now)
		}
		p.with(func() { p.stored = issues("30617:aa:000", 1) })
		if relay.refuses {
			p.closed(p.latest(), "error: too many concurrent REQs")
		}
		p.deafened(false)
		for n := range 30 {
			p.eose(fmt.Sprint("l", n))
		}
		sleep(time.Second)
		p.came(relay.missed)
		if now := p.listens(ev); len(now) != 1 {
			t.Errorf("after it the repository comes live on %v", now)
		}
	})
}

// TestStoredEventsAreNotLive: what comes before EOSE is of the past, though the limit is 0.
func TestStoredEventsAreNotLive(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.deaf = true
		p.begin()
		p.sends("l1", event(30617, 5))
		p.eose("l1")
		synctest.Wait()
		p.sends("l1", event(30617, 6))
		synctest.Wait()
		p.came(2)
		for i, want := range []proto.Lane{proto.LaneSyncHistoric, proto.LaneSyncLive} {
			if lane := p.offer(i).Lane; lane != want {
				t.Errorf("event %d is offered on lane %s, want %s", i, lane, want)
			}
		}
	})
}
