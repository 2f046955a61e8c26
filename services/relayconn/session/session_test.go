package session_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

const key = "0000000000000000000000000000000000000000000000000000000000000001"

// TestFreshStart: layer 1 live before its past, the past in pages, then what is wanted, live and
// historic; connected when nothing was pending for the settling time; everything of a batch needs
// its verdict.
func TestFreshStart(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		for i := range 7 {
			p.stored = append(p.stored, event(30617, nostr.Timestamp(1000-i)))
		}
		p.stored = append(p.stored, issue(900, "30617:aa:x"))
		p.begin()
		p.with(func() {
			if p.log[0] != "l1" || p.log[1] != "h2" {
				t.Errorf("asked in order %v, want live before historic", p.log)
			}
		})
		p.came(7)
		p.holds(true)
		p.want(9, repos("30617:aa:x"))
		sleep(10 * time.Second)
		if st := p.status(); st.Connection != session.Syncing || st.Repos != 0 {
			t.Fatalf("without a verdict: %+v", st)
		}
		p.lives(1 + 3)
		p.came(8)
		p.release(nil)
		synctest.Wait()
		if st := p.status(); st.Connection != session.Syncing || st.Repos != 1 || st.Confirmed.Target != 9 {
			t.Fatalf("with the verdict, not settled: %+v", st)
		}
		sleep(rules.Calm)
		if st := p.status(); st.Connection != session.Connected || !st.Answered {
			t.Fatalf("settled: %+v", st)
		}
		if c := p.offer(7); c.Source != proto.SourceStartup || c.Lane != proto.LaneSyncHistoric || c.Relay != "wss://r.example.com" {
			t.Fatalf("offered as %+v", c)
		}
	})
}

// TestQuickReconnectAsksFromSince by REQ, also where something is known.
func TestQuickReconnectAsksFromSince(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		r := p.reconciles(1, issue(100, "30617:aa:x"), event(30617, 100), event(30617, 300), issue(300, "30617:aa:x"), issue(90, "30617:aa:new"))
		since := nostr.Timestamp(200)
		confirmed := repos("30617:aa:x")
		confirmed.First = true
		p.run(session.Start{Since: &since, Confirmed: confirmed})
		if p.came(2); p.offer(0).Source != proto.SourceReconnect {
			t.Errorf("offered as %+v", p.offer(0))
		}
		p.want(3, repos("30617:aa:x", "30617:aa:new"))
		p.came(3) // with the old issue of the new repository
		p.stop()
		if got := p.session.Confirmed(); len(got.Full) != 2 || r.opened > 0 {
			t.Errorf("confirmed %v, %d sessions of NIP-77", got, r.opened)
		}
	})
}

// TestQuiet: a relay that is rate limiting gets its pause, and then the page again.
func TestQuiet(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.muted(true)
		p.begin()
		p.closed("h2", "rate-limited: slow down")
		if st := p.status(); !st.Limited.Equal(time.Now().Add(rules.Cooldown)) {
			t.Fatalf("%+v", st)
		}
		p.muted(false)
		asked, _ := p.count()
		p.want(1, repos("30617:aa:x"))
		p.daily <- time.Now() // and a day begins only then, with what is live kept until it does
		sleep(rules.Cooldown - time.Second)
		if n, _ := p.count(); n != asked {
			t.Fatalf("%d requests during the pause, want none", n-asked)
		}
		if st := p.status(); st.Days != 0 || len(p.open(true)) != 1 {
			t.Fatalf("%+v, %d live", st, len(p.open(true)))
		}
		sleep(time.Second + rules.Calm)
		if p.complete(1); p.status().Days != 1 {
			t.Error("the day has not begun after the pause")
		}
	})
}

// TestConsolidationWaits for batches, but not for ever.
func TestConsolidationWaits(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		for n := range 3 {
			p.want(1, manyRepos(0, n+1))
		}
		p.with(func() {
			p.hold = true
			p.stored = []*nostr.Event{issue(5, "30617:aa:100")}
		})
		p.want(1, session.Union(manyRepos(0, 3), repos("30617:aa:100")))
		p.want(1, session.Union(manyRepos(0, 3), repos("30617:aa:100", "30617:aa:101")))
		sleep(rules.ConsolidateWait - time.Second)
		p.lives(1 + 12)
		sleep(time.Second)
		p.lives(1 + 3 + 3)
	})
}

// TestHostileRelay: what was not asked for, has another id or a wrong signature is not offered.
func TestHostileRelay(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		unasked := event(1, 5)
		other := event(30617, 5)
		other.Content = "changed"
		forged := event(30617, 6)
		forged.Sig = event(30617, 7).Sig
		for _, ev := range []*nostr.Event{unasked, other, forged} {
			p.sends("l1", ev)
		}
		synctest.Wait()
		p.came(0)
		good := event(30617, 8)
		p.sends("l1", good)
		p.sends("unknown", good)
		synctest.Wait()
		if _, n := p.count(); n != 1 || p.offer(0).Source != proto.SourceLive || p.offer(0).Lane != proto.LaneSyncLive {
			t.Fatalf("%d events offered, want the good one as live", n)
		}
	})
}

// TestWhatWasNotAskedForEndsTheConnection.
func TestWhatWasNotAskedForEndsTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		for n := range 101 {
			if len(p.done) > 0 {
				t.Fatalf("ended with %v after %d", <-p.done, n)
			}
			p.sends("l1", event(1, nostr.Timestamp(n)))
			synctest.Wait()
		}
		if err := <-p.done; netguard.Classify(err) != netguard.CauseProtocol {
			t.Errorf("ended with %v", err)
		}
		p.end = nil
	})
}

// TestForgeriesSlowARelay and do not exclude it: one stranger could hide a whole relay that does
// not verify what it is given.
func TestForgeriesSlowARelay(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.begin()
		begin, good := time.Now(), event(30617, 1)
		for n := range 1000 {
			ev := event(30617, nostr.Timestamp(n+2))
			ev.Sig = fmt.Sprintf("%0128x", n)
			p.sends("l1", ev)
			synctest.Wait() // it is heard that it is forged before the next one is read
		}
		p.sends("l1", good)
		if took := time.Since(begin); took < 5*time.Second {
			t.Errorf("a thousand forged events were read in %v", took)
		}
		sleep(time.Minute)
		p.came(1)
		if p.notTaken["not genuine"] != 1000 || len(p.done) > 0 {
			t.Errorf("not taken: %v", p.notTaken)
		}
	})
}
