package intake_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
)

// TestManyRelaysOneEvent: what twenty relays bring at once is verified once and offered once, and
// all of them hear the verdict. What one brings later is known.
func TestManyRelaysOneEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, nil)
		const relays, events = 20, 50
		var e ends
		for r := range relays {
			s := p.Open(fmt.Sprint("wss://r", r))
			for n := range events {
				take(t, s, historic(event20(t, n), e.done))
			}
		}
		p.run(t)
		synctest.Wait()
		if n := len(p.contents()); n != events {
			t.Fatalf("%d were offered, want each of %d once", n, events)
		}
		p.decide(proto.Accepted, nil)
		synctest.Wait()
		if n := e.count(accepted); n != relays*events {
			t.Errorf("%d verdicts, want %d", n, relays*events)
		}
		for _, r := range e.all {
			if r.Event == nil || r.Event.ID != r.Verdict.ID {
				t.Errorf("the verdict on %s comes with event %v", r.Verdict.ID, r.Event)
			}
		}
		if n := e.count(copied); n != (relays-1)*events {
			t.Errorf("%d were copies", n)
		}
		if len(p.checked) != events {
			t.Errorf("%d signatures were checked, want %d", len(p.checked), events)
		}
		for sig, n := range p.checked {
			if n != 1 {
				t.Errorf("signature %.8s was checked %d times", sig, n)
			}
		}
		if !p.Known(event20(t, 3).ID) || p.Known(event(t, "another").ID) {
			t.Error("known is not what was accepted")
		}
	})
}

var signed sync.Map

// event20 returns a copy of a numbered event, which is signed once: signatures differ from time to
// time.
func event20(t testing.TB, n int) *nostr.Event {
	ev, ok := signed.Load(n)
	if !ok {
		ev, _ = signed.LoadOrStore(n, event(t, fmt.Sprint("event ", n)))
	}
	return copyOf(ev.(*nostr.Event))
}

// TestForgedCopiesHarmNobody: a copy with the id of a good event and another signature, or another
// text, ends by itself, whichever comes first; all who bring the very same forgery hear of it.
func TestForgedCopiesHarmNobody(t *testing.T) {
	t.Parallel()
	good := event(t, "good")
	signature, text, both := copyOf(good), copyOf(good), copyOf(good)
	signature.Sig = event(t, "another").Sig
	text.Content = "changed"
	both.Sig, both.Content = signature.Sig, "changed"
	for name, forgeries := range map[string][]*nostr.Event{
		"signature": {signature}, "text": {text}, "both": {both}, "all": {signature, text, both, signature},
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprint(name, first), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					p := newPlay(t, nil)
					var honest, liars ends
					bring := func() {
						for n, ev := range forgeries {
							take(t, p.Open(fmt.Sprint("wss://liar", n)), historic(copyOf(ev), liars.done))
						}
					}
					if first {
						bring()
					}
					take(t, p.Open("wss://one"), historic(copyOf(good), honest.done))
					take(t, p.Open("wss://two"), historic(copyOf(good), honest.done))
					if !first {
						bring()
					}
					p.run(t)
					synctest.Wait()
					if got := p.contents(); !slices.Equal(got, []string{"good"}) {
						t.Fatalf("offered %v", got)
					}
					p.decide(proto.Accepted, nil)
					synctest.Wait()
					if honest.count(accepted) != 2 || liars.count(forged) != len(forgeries) {
						t.Errorf("the honest heard %+v, the liars %+v", honest.all, liars.all)
					}
				})
			})
		}
	}
}

// TestMisshapenEventsAreForged: what would not even fit the types that check it.
func TestMisshapenEventsAreForged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, nil)
		p.run(t)
		s := p.Open("wss://r")
		var e ends
		good := event(t, "good")
		for name, change := range map[string]func(ev *nostr.Event){
			"a longer public key":  func(ev *nostr.Event) { ev.PubKey += "00" },
			"a shorter public key": func(ev *nostr.Event) { ev.PubKey = ev.PubKey[:62] },
			"no public key":        func(ev *nostr.Event) { ev.PubKey = "" },
			"a key that is no hex": func(ev *nostr.Event) { ev.PubKey = "zz" + ev.PubKey[2:] },
			"a longer signature":   func(ev *nostr.Event) { ev.Sig += "00" },
			"no signature":         func(ev *nostr.Event) { ev.Sig = "" },
			"capitals":             func(ev *nostr.Event) { ev.PubKey = "AB" + ev.PubKey[2:] },
		} {
			ev := copyOf(good)
			change(ev)
			ev.ID = ev.GetID()
			before := e.count(forged)
			take(t, s, historic(ev, e.done))
			synctest.Wait()
			if e.count(forged) != before+1 {
				t.Errorf("%s is taken", name)
			}
		}
		if n := len(p.contents()); n != 0 {
			t.Errorf("%d were offered", n)
		}
	})
}

// TestLiveBeforePast: what comes live waits neither for the signatures of the past, nor behind it
// at ingest, nor for its room; not even where the past has brought it before.
func TestLiveBeforePast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, func(o *intake.Options) { o.Workers = 1 })
		p.checks, p.full = make(chan struct{}), make(chan struct{})
		p.run(t)
		var e, first ends
		slow, quick := p.Open("wss://slow"), p.Open("wss://quick")
		for n := range 30 {
			take(t, slow, historic(event20(t, n), e.done))
		}
		synctest.Wait() // the first is being checked
		take(t, quick, alive(event20(t, 200), first.done))
		take(t, quick, alive(event20(t, 29), first.done)) // the last of the past
		for range 3 {
			p.checks <- struct{}{}
		}
		synctest.Wait()
		if got := p.contents(); !slices.Equal(got, []string{"event 200", "event 29"}) {
			t.Fatalf("offered %v, want what is live", got)
		}
		p.decide(proto.Accepted, nil)
		// All of the past is verified now, and waits for room at ingest. The first of it comes live
		// too.
		close(p.checks)
		synctest.Wait()
		take(t, quick, alive(event20(t, 0), first.done))
		synctest.Wait()
		if got := p.contents(); !slices.Equal(got, []string{"event 0"}) || p.offered[0].Lane != proto.LaneSyncLive {
			t.Fatalf("offered %v, want what came live", got)
		}
		p.decide(proto.Accepted, nil)
		if first.count(accepted) != 3 || e.count(accepted) != 2 {
			t.Fatalf("live heard %+v, the past %+v", first.all, e.all)
		}
		close(p.full)
		synctest.Wait()
		p.decide(proto.Accepted, nil)
		synctest.Wait()
		if e.count(any) != 30 || first.count(any) != 3 {
			t.Errorf("%d and %d ends, want one each", e.count(any), first.count(any))
		}
	})
}

// TestEnd: whatever is on its way ends, whether it waits to be verified or for room, or was
// offered.
func TestEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, func(o *intake.Options) { o.Workers = 1 })
		p.full = make(chan struct{})
		p.checks = make(chan struct{})
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		var e ends
		s, other := p.Open("wss://r"), p.Open("wss://other")
		for n := range 5 {
			take(t, s, historic(event20(t, n), e.done))
			take(t, other, historic(event20(t, n), e.done))
		}
		lone := event20(t, 4)
		lone.Content = "changed"
		take(t, other, historic(lone, e.done))
		p.checks <- struct{}{}
		synctest.Wait() // one waits for room, the next is being checked
		end()
		close(p.checks)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := e.count(func(r intake.Result) bool { return r.Err != nil }); n != 11 {
			t.Errorf("%d of 11 have an end: %+v", n, e.all)
		}
		if _, err := s.Take(t.Context(), historic(event20(t, 9), e.done)); !errors.Is(err, intake.ErrEnded) {
			t.Errorf("taken after the end: %v", err)
		}
	})
}
