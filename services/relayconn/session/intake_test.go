package session_test

import (
	"fmt"
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
	in := intake.New(intake.Options{Offerer: p, Signed: func(ev *nostr.Event) bool {
		<-checks
		return nostr.Signed(ev)
	}})
	go in.Run(t.Context())
	p.session.Intake = in.Open("wss://r.example.com")
	return p, checks
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
		p.end = nil
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
