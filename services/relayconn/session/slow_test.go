package session_test

import (
	"fmt"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

// slow is a relay that does late what it is asked, and gets new events at the worst moments: when a
// message has come, just before it is heeded, and just after.
type slow struct {
	*play
	late    func(live, past bool) time.Duration // how long a message waits; neither: a CLOSE
	refuses func(n int) bool                    // whether the nth message, if a REQ, is answered with CLOSED
	out     chan wire.Message
	heard   int // messages
	closes  int // of live subscriptions
	quiet   bool
}

const lateness = 40 * time.Millisecond

var busy = []string{"30617:aa:000", "30617:aa:011"} // issues come for them

// publish takes in one new issue for each busy repository and tells it to who has asked for it.
func (r *slow) publish() {
	if r.quiet {
		return
	}
	for _, repo := range busy {
		ev := event(1621, nostr.Now(), nostr.Tag{"a", repo}, nostr.Tag{"n", fmt.Sprint(len(r.stored))})
		r.stored = append([]*nostr.Event{ev}, r.stored...)
		for sub := range r.asked {
			r.tell(sub, 1, ev)
		}
	}
}

// tell sends what a subscription asks for of some events, at most so many of each filter.
func (r *slow) tell(sub string, most int, events ...*nostr.Event) {
	for _, f := range r.asked[sub] {
		n := 0
		for _, ev := range events {
			if f.Matches(ev) && n < most {
				r.out <- wire.Message{Kind: wire.Event, Sub: sub, Event: ev}
				n++
			}
		}
	}
}

// heed does late what a message asks for.
func (r *slow) heed(wait time.Duration, do func(n int)) {
	n := 0
	r.with(func() { r.heard++; n = r.heard; r.publish() })
	go func() {
		time.Sleep(wait + time.Duration(n)*time.Microsecond)
		r.with(func() { r.publish(); do(n); r.publish() })
	}()
}

func (r *slow) Req(sub string, filters []nostr.Filter) {
	live := filters[0].LimitZero
	r.heed(r.late(live, !live), func(n int) {
		if r.refuses(n) {
			r.out <- wire.Message{Kind: wire.Closed, Sub: sub, Reason: "rate-limited: slow down"}
			return
		}
		if r.asked[sub] = filters; !live {
			r.tell(sub, filters[0].Limit, r.stored...)
		}
		r.out <- wire.Message{Kind: wire.EOSE, Sub: sub}
	})
}

func (r *slow) Unsubscribe(sub string) {
	r.heed(r.late(false, false), func(int) {
		if filters := r.asked[sub]; len(filters) > 0 && filters[0].LimitZero {
			r.closes++
		}
		delete(r.asked, sub)
	})
}

// TestNothingIsLostAtSlowRelays: however late, and in any order, a relay does what it is
// asked, and however often it refuses at first, every event comes while live subscriptions grow and
// are consolidated.
func TestNothingIsLostAtSlowRelays(t *testing.T) {
	same := func(bool, bool) time.Duration { return lateness }
	never := func(int) bool { return false }
	each(t, map[string]slow{
		"late": {late: same, refuses: never},
		"out of order": {refuses: never, late: func(live, past bool) time.Duration {
			switch {
			case live:
				return lateness
			case past:
				return lateness / 4
			}
			return 0
		}},
		"refuses at first":      {late: same, refuses: func(n int) bool { return n <= 6 }},
		"refuses now and again": {late: same, refuses: func(n int) bool { return n%7 == 0 }},
	}, func(t *testing.T, p *play, relay slow) {
		r := relay
		r.play, r.out = p, make(chan wire.Message, 100_000)
		p.session.Asker, p.session.Rules.PageLimit = &r, 5000
		go func() {
			for m := range r.out {
				select {
				case p.messages <- m:
				case <-t.Context().Done():
				}
			}
		}()
		p.begin()
		for n := 1; n <= 12; n++ {
			p.wants(n)
			for wait := 0; n > 2 && p.status().Confirmed.Target != uint64(n) && wait < 100_000; wait++ { // the first ones at once
				sleep(lateness)
			}
		}
		p.with(func() { r.quiet = true })
		sleep(10 * time.Minute)
		if missing := len(p.stored) - len(p.accepted); missing != 0 {
			t.Errorf("%d of %d events are missing", missing, len(p.stored))
		}
		if r.closes < 2 {
			t.Errorf("%d live subscriptions were closed, so nothing was consolidated", r.closes)
		}
		p.stop()
		close(r.out)
	})
}
