package session_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// TestGaps: only what was to come live and did not is a gap, not all that a reconnect or a day
// brings.
func TestGaps(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		at := func(d time.Duration) nostr.Timestamp { return nostr.Timestamp(time.Now().Add(d).Unix()) }
		issue := func(d time.Duration, repo string) *nostr.Event {
			return issue(at(d), "30617:aa:"+repo)
		}
		judged := func() (told []string) {
			synctest.Wait()
			p.with(func() { told, p.judged = p.judged, nil })
			slices.Sort(told)
			return told
		}
		since := at(-25 * time.Minute)
		p.stored = []*nostr.Event{issue(-5*time.Minute, "x"), issue(-20*time.Minute, "x"), issue(-21*time.Minute, "new")}
		p.run(session.Start{Since: &since, Live: time.Now().Add(-10 * time.Minute), Confirmed: repos("30617:aa:x"), Mark: session.Mark{Target: 3}})
		p.want(4, repos("30617:aa:x", "30617:aa:new"))
		if got := judged(); !slices.Equal(got, []string{"reconnect", "reconnect gap", "startup"}) {
			t.Errorf("a reconnect brings %v, want one of the time away, one from before, and the past of the new repository", got)
		}
		time.Sleep(time.Hour)
		p.with(func() {
			p.stored = append([]*nostr.Event{issue(-30*time.Minute, "x"), issue(-31*time.Minute, "later")}, p.stored...)
		})
		p.daily <- time.Now()
		p.want(5, repos("30617:aa:x", "30617:aa:new", "30617:aa:later"))
		if got := judged(); !slices.Equal(got, []string{"daily gap", "startup"}) {
			t.Errorf("a day brings %v, want what did not come live, and the past of the new repository", got)
		}
	})
}

// TestConfirmedRevision is what a successor begins from: kept by a quick reconnect until there is a
// newer, dropped by a fresh start. Layer 1, which had not come, is asked for from the beginning.
func TestConfirmedRevision(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.mute = true
		since := nostr.Timestamp(200)
		p.run(session.Start{Since: &since, Confirmed: repos("30617:aa:gone", "30617:aa:x"), Mark: session.Mark{Target: 3}})
		if st := p.status(); st.Confirmed.Target != 3 || st.CaughtUp || st.Repos != 2 {
			t.Fatalf("at the start %+v", st)
		}
		for _, f := range p.open(false) {
			if layer1 := len(f.Kinds) > 0; layer1 != (f.Since == nil) {
				t.Errorf("asked %v", f)
			}
		}
		p.want(5, repos("30617:aa:x", "30617:aa:y"))
		if st := p.status(); st.Confirmed.Target != 3 || st.Repos != 1 {
			t.Fatalf("while something is pending, and something is not wanted any more, %+v", st)
		}
		p.want(6, repos("30617:aa:x"))
		p.muted(false)
		p.daily <- time.Now()
		synctest.Wait()
		if st := p.status(); st.Confirmed.Target != 6 || st.Days != 1 || !st.CaughtUp {
			t.Fatalf("after the daily start %+v", st)
		}
		var lowest uint64 = 9
		p.with(func() {
			for _, st := range p.statuses {
				lowest = min(lowest, st.Confirmed.Target)
			}
		})
		if lowest != 0 {
			t.Fatal("the daily start took nothing back")
		}
	})
}

// TestSlowLoris: a relay that sends just enough to not be silent, and no EOSE, does not hold up a
// batch for ever. What it sends is taken.
func TestSlowLoris(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.mute = true
		p.begin()
		drip := event(30617, 5)
		began := time.Now()
		for p.status().Connection == session.Syncing && time.Since(began) < 48*time.Hour {
			p.sends("h2", drip)
			sleep(rules.Silence - time.Second)
		}
		if st := p.status(); st.Connection != session.Incomplete || time.Since(began) > 21*rules.Silence || len(p.accepted) != 1 {
			t.Fatalf("after %v: %+v, %d events", time.Since(began), st, len(p.accepted))
		}
	})
}

// TestFloodIsReadSlowly: messages that bring nothing, of any kind, cost us no more than a
// bounded part of our time.
func TestFloodIsReadSlowly(t *testing.T) {
	ev := event(30617, 5)
	each(t, map[string]wire.Message{
		"for subscriptions that are closed": {Kind: wire.Event, Sub: "h2", Event: ev},
		"known events":                      {Kind: wire.Event, Sub: "l1", Event: ev},
		"ends of stored events":             {Kind: wire.EOSE, Sub: "l1"},
		"notices":                           {Kind: wire.Notice, Reason: "hi"},
		"what is none of our business":      {},
	}, func(t *testing.T, p *play, message wire.Message) {
		p.stored = []*nostr.Event{ev}
		p.begin()
		began := time.Now()
		for range 60_000 {
			p.messages <- message
		}
		if took := time.Since(began); took < 5*time.Second || took > time.Minute {
			t.Errorf("60,000 messages were taken in %v", took)
		}
	})
}

// FuzzHear: at nothing that a relay says, in any order, does the session panic or wait for ever.
func FuzzHear(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t)
			p.mute = true
			events := []*nostr.Event{event(30617, 5), issue(6, "30617:aa:000"), event(1, 7), {}}
			p.begin()
			for i, b := range script[:min(len(script), 90)] { // with a hundred odd messages it ends
				sub := fmt.Sprintf("%c%d", "lh"[b>>7], int(b>>3)&7)
				switch b & 7 {
				case 0, 1:
					p.sends(sub, events[i%len(events)])
				case 2:
					p.eose(sub)
				case 3:
					p.closed(sub, "no")
				case 4:
					p.closed(sub, "rate-limited: no")
				case 5:
					p.want(uint64(i), manyRepos(0, i%9))
				case 6:
					p.daily <- time.Now()
				case 7:
					time.Sleep(time.Duration(b) * time.Second)
				}
				synctest.Wait()
			}
			sleep(24 * time.Hour)
			if st := p.status(); st.Connection == session.Syncing {
				t.Errorf("after a day of silence: %+v", st)
			}
			p.stop()
		})
	})
}

// TestCutOffMidPage: a connection that ends while a page comes has confirmed nothing of it.
func TestCutOffMidPage(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.mute = true
		p.begin()
		p.sends("h2", event(30617, 1000))
		synctest.Wait()
		close(p.messages)
		if err := <-p.done; err != nil {
			t.Error(err)
		}
		p.end = nil
		if st := p.status(); len(p.accepted) != 1 || st.Confirmed.Target != 0 || !p.session.Confirmed().Empty() {
			t.Errorf("%d events came; %+v", len(p.accepted), st)
		}
	})
}

// TestTimeWithoutRoomIsNotSilence: while a session waits for room it reads nothing, and what the
// relay said meanwhile waits with it.
func TestTimeWithoutRoomIsNotSilence(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		checks := make(chan struct{}) // each lets one signature be checked
		in := intake.New(intake.Options{Offerer: p, Signed: func(*nostr.Event) bool {
			<-checks
			return true
		}})
		go in.Run(t.Context())
		p.session.Intake = in.Open("wss://r.example.com")
		p.session.Rules.PageLimit = 10_000
		p.mute = true
		p.begin()
		over := make(chan struct{})
		defer close(over)
		go func() {
			for n := range 10_000 {
				ev := &nostr.Event{Kind: 30617, PubKey: fmt.Sprintf("%064x", n), Sig: fmt.Sprintf("%0128x", n), CreatedAt: nostr.Timestamp(1_000_000 - n)}
				ev.ID = ev.GetID()
				select {
				case p.messages <- wire.Message{Kind: wire.Event, Sub: "h2", Event: ev}:
				case <-over:
					return
				}
			}
			t.Error("10,000 events were taken in without any being verified")
		}()
		sleep(25 * rules.Silence)
		for range 20 {
			checks <- struct{}{} // makes a little room: the session looks around
		}
		synctest.Wait()
		if n := len(p.open(false)); n != 1 {
			t.Errorf("%d historic requests are open, want the one that waits", n)
		}
		p.stop()
		close(checks)
	})
}

// TestPausesDouble each time in a row, up to an hour; what comes during one does not lengthen it, and
// after five minutes without one the next is the first again.
func TestPausesDouble(t *testing.T) {
	t.Parallel()
	var p session.Pauses
	now := time.Now()
	for _, want := range []time.Duration{65, 130, 260, 520, 1040, 2080, 3600, 3600} {
		end := p.Begin(now, 65*time.Second)
		if got := end.Sub(now); got != want*time.Second || p.Begin(end.Add(-time.Second), 65*time.Second) != end {
			t.Errorf("a pause of %v, want %v", got, want*time.Second)
		}
		now = end.Add(5*time.Minute - time.Second)
	}
	if now = now.Add(time.Second); p.Begin(now, 65*time.Second).Sub(now) != 65*time.Second {
		t.Error("after a calm time it is not the first again")
	}
}
