package session_test

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// verifying makes a play in which signatures are checked only when something comes on the channel
// that it gives, or it is closed.
func verifying(t *testing.T) (p *play, checks chan struct{}) {
	p, checks = newPlay(t), make(chan struct{})
	in := intake.New(intake.Options{Offerer: p, CheckSignature: func(ev *nostr.Event) error {
		<-checks
		return intake.CheckSignature(ev)
	}})
	go in.Run(t.Context())
	p.session.Intake = in.Open("wss://r.example.com")
	return p, checks
}

// TestNextPageBeforeVerification: what was asked for comes page after page while nothing has been
// verified; the batch is confirmed only when everything is.
func TestNextPageBeforeVerification(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, checks := verifying(t)
		for i := range 20 {
			p.stored = append(p.stored, event(t, 1621, nostr.Timestamp(1000-i), nostr.Tag{"a", "30617:aa:x"}))
		}
		p.run(session.Start{})
		p.want(9, repos("30617:aa:x"))
		time.Sleep(rules.Settle)
		synctest.Wait()
		if n := len(p.open(false)); n != 0 {
			t.Errorf("%d historic requests are still open", n)
		}
		// 3 events a page, of which the first was the last of the page before.
		if asked, offered := p.count(); asked < 10 || offered != 0 {
			t.Errorf("%d requests and %d offers before anything was verified", asked, offered)
		}
		if st := p.status(); st.Connection != session.Syncing || st.Repos != 0 || st.Confirmed != 0 {
			t.Errorf("before verification %+v", st)
		}
		for range 19 {
			checks <- struct{}{}
		}
		synctest.Wait()
		if st := p.status(); st.Repos != 0 {
			t.Errorf("with one left to verify %+v", st)
		}
		close(checks)
		time.Sleep(rules.Settle)
		synctest.Wait()
		if st := p.status(); st.Connection != session.Connected || st.Repos != 1 || st.Confirmed != 9 {
			t.Errorf("after verification %+v", st)
		}
		if _, offered := p.count(); offered != 20 {
			t.Errorf("%d were offered", offered)
		}
		p.stop()
	})
}

// TestForgeriesEndTheConnection: wrong signatures are found long after they came, and count all the
// same; a batch does not wait for what is of no use.
func TestForgeriesEndTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, checks := verifying(t)
		p.run(session.Start{})
		for n := range 101 {
			ev := event(t, 30617, nostr.Timestamp(n))
			ev.Sig = fmt.Sprintf("%0128x", n)
			p.messages <- wire.Message{Kind: wire.Event, Sub: "l1", Event: ev}
		}
		synctest.Wait()
		for range 100 {
			checks <- struct{}{}
		}
		synctest.Wait()
		if len(p.done) != 0 {
			t.Fatalf("ended with %v after a hundred", <-p.done)
		}
		close(checks)
		if err := <-p.done; netguard.Classify(err) != netguard.CauseProtocol {
			t.Errorf("ended with %v", err)
		}
		p.end()
	})
}

// TestTimeWithoutRoomIsNotSilence: while a session waits for room it reads nothing, and what the
// relay said meanwhile waits with it.
func TestTimeWithoutRoomIsNotSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, checks := verifying(t)
		p.session.Rules.PageLimit = 10_000
		p.mute = true
		p.run(session.Start{})
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
		time.Sleep(25 * rules.Silence)
		synctest.Wait()
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

// TestTheSameFromManyRelays: sessions that share an intake cost one verification and one offer for
// each event, and are all told when it is decided.
func TestTheSameFromManyRelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const relays, events = 20, 30
		ingest := newPlay(t)
		ingest.hold = true
		var mu sync.Mutex
		verified := map[string]int{}
		in := intake.New(intake.Options{Offerer: ingest, CheckSignature: func(ev *nostr.Event) error {
			mu.Lock()
			defer mu.Unlock()
			verified[ev.ID]++
			return intake.CheckSignature(ev)
		}})
		go in.Run(t.Context())
		var stored []*nostr.Event
		for i := range events {
			stored = append(stored, event(t, 30617, nostr.Timestamp(1000-i)))
		}
		var plays []*play
		for n := range relays {
			p := newPlay(t)
			url := fmt.Sprintf("wss://r%d.example.com", n)
			p.stored = stored
			p.session = session.New(session.Options{Relay: url, Rules: rules, Asker: p, Intake: in.Open(url), Observer: p, Log: slog.New(slog.DiscardHandler)})
			p.run(session.Start{})
			plays = append(plays, p)
		}
		synctest.Wait()
		if _, offered := ingest.count(); offered != events || len(verified) != events {
			t.Errorf("%d offers and %d verified, want %d", offered, len(verified), events)
		}
		for id, n := range verified {
			if n != 1 {
				t.Errorf("%.8s was verified %d times", id, n)
			}
		}
		time.Sleep(rules.Settle)
		synctest.Wait()
		for n, p := range plays {
			if st := p.status(); st.CaughtUp {
				t.Errorf("relay %d is caught up without a verdict: %+v", n, st)
			}
		}
		for _, answer := range ingest.held {
			answer()
		}
		time.Sleep(rules.Settle)
		synctest.Wait()
		judged := 0
		for n, p := range plays {
			if st := p.status(); st.Connection != session.Connected || !st.CaughtUp {
				t.Errorf("relay %d after the verdicts: %+v", n, st)
			}
			judged += len(p.judged)
			p.stop()
		}
		if judged != events {
			t.Errorf("%d events are counted as new, want %d", judged, events)
		}
	})
}
