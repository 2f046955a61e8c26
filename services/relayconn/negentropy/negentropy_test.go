package negentropy_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/reconcile"
	"tendril.dev/services/relayconn/negentropy"
	"tendril.dev/services/relayconn/wire"
)

// found reports what the relay has and is not known here.
func (p *play) found(want []reconcile.Item) {
	p.t.Helper()
	for _, i := range want {
		if !p.missing[i.ID] {
			p.t.Fatalf("the event of %d was not found; %d were", i.CreatedAt, len(p.missing))
		}
	}
	if len(p.missing) != len(want) {
		p.t.Errorf("%d events are missing, want %d", len(p.missing), len(want))
	}
}

func TestFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		here, there, missing []reconcile.Item
	}{
		"all is known":        {events(0, 3000), events(0, 3000), nil},
		"the newest":          {events(0, 2900), events(0, 3000), events(2900, 3000)},
		"the oldest":          {events(100, 3000), events(0, 3000), events(0, 100)},
		"the relay has less":  {events(0, 3000), events(1000, 1500), nil},
		"nothing in common":   {events(0, 500), events(500, 1000), events(500, 1000)},
		"few":                 {events(0, 1), events(0, 2), events(1, 2)},
		"the relay has none":  {events(0, 10), nil, nil},
		"more than one frame": {events(0, 10), events(0, 9000), events(10, 9000)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, c.here, c.there)
				p.run(1, time.Minute)
				p.found(c.missing)
				if len(p.spans) != 0 || len(p.warned) != 0 {
					t.Errorf("asked for %v by REQ, warned of %v", p.spans, p.warned)
				}
			})
		})
	}
}

// TestNothingKnown asks by REQ for what nothing is known of, without a word to the relay.
func TestNothingKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, nil, events(0, 100))
		p.run(20, time.Minute)
		if len(p.said) != 0 || len(p.spans) != 20 || p.spans[0] != (negentropy.Span{}) {
			t.Errorf("said %v, asks for %v", p.said, p.spans)
		}
		if !p.set.Able() {
			t.Error("the relay is taken not to reconcile")
		}
	})
}

// TestAtOnce keeps so many sessions open and no more.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, events(0, 200), events(0, 300))
		p.run(50, time.Minute)
		p.found(events(200, 300))
		if p.most > negentropy.AtOnce || p.most < 2 {
			t.Errorf("%d sessions at once, want %d at most", p.most, negentropy.AtOnce)
		}
	})
}

// TestFallsBack uses REQ for what is left, and says once why, when the relay does not reconcile.
func TestFallsBack(t *testing.T) {
	t.Parallel()
	err := func(reason string) func(*play) []wire.Message {
		return func(*play) []wire.Message { return []wire.Message{{Kind: wire.NegErr, Reason: reason}} }
	}
	one := func(m wire.Message) func(*play) []wire.Message {
		return func(*play) []wire.Message { return []wire.Message{m} }
	}
	for name, c := range map[string]struct {
		answer func(*play) []wire.Message // the session's name is put in
		most   time.Duration
	}{
		"NEG-ERR":                  {err("error: not here"), time.Second},
		"asks for authentication":  {err("auth-required: who are you?"), time.Second},
		"forgets every session":    {err("closed: unknown subscription handle"), time.Second},
		"closes the subscription":  {one(wire.Message{Kind: wire.Closed, Reason: "unsupported: what is this?"}), time.Second},
		"notice of khatru":         {one(wire.Message{Kind: wire.Notice, Reason: "failed to parse envelope: unknown envelope label"}), time.Second},
		"notice of strfry":         {one(wire.Message{Kind: wire.Notice, Reason: "ERROR: bad msg: negentropy disabled"}), time.Second},
		"notice of others":         {one(wire.Message{Kind: wire.Notice, Reason: "could not parse command"}), time.Second},
		"is silent":                {func(*play) []wire.Message { return nil }, negentropy.Silence + time.Second},
		"of another session":       {one(wire.Message{Kind: wire.NegMsg, Sub: "x", Frame: []byte{0x61}}), negentropy.Silence + time.Second},
		"speaks of something else": {one(wire.Message{Kind: wire.Notice, Reason: "welcome"}), negentropy.Silence + time.Second},
		"no hex digits":            {one(wire.Message{Kind: wire.NegMsg}), time.Second},
		"another version":          {one(wire.Message{Kind: wire.NegMsg, Frame: []byte{0x62}}), time.Second},
		"no protocol":              {one(wire.Message{Kind: wire.NegMsg, Frame: []byte{0x61, 0xff, 0xff}}), time.Second},
		"refuses every time":       {err("blocked: too many query results"), time.Second},
		"refuses every session":    {err("blocked: too many sessions"), 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, events(0, 100), events(0, 200))
				p.relay = func(sub string, _ nostr.Filter, _ []byte) (out []wire.Message) {
					for _, m := range c.answer(p) {
						if m.Sub == "" && m.Kind != wire.Notice {
							m.Sub = sub
						}
						out = append(out, m)
					}
					return out
				}
				p.run(30, c.most)
				if len(p.spans) < 30 || len(p.missing) != 0 {
					t.Errorf("%d spans are asked for by REQ, want all 30 filters; %d events found", len(p.spans), len(p.missing))
				}
				for _, span := range p.spans {
					if span != (negentropy.Span{}) {
						t.Fatalf("asked for %v, want all", span)
					}
				}
				if p.set.Able() || len(p.warned) != 1 {
					t.Errorf("able %v, warned %d times", p.set.Able(), len(p.warned))
				}
				if n := p.says("NEG-OPEN"); n > 20 {
					t.Errorf("opened %d sessions", n)
				}
			})
		})
	}
}

// TestTooManyResults reconciles in pieces of time what is too much at once.
func TestTooManyResults(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]wire.Message{
		"NEG-ERR":             {Kind: wire.NegErr, Reason: "blocked: too many query results"},
		"a message too large": {Kind: wire.NegMsg, TooLarge: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(start*time.Second + 5000*time.Minute - time.Duration(time.Now().UnixNano()))
				there := events(0, 4000)
				here := slices.DeleteFunc(slices.Clone(there), func(i reconcile.Item) bool { return i.CreatedAt%7 == 0 })
				p := newPlay(t, here, there)
				refused := 0
				p.relay = func(sub string, f nostr.Filter, frame []byte) []wire.Message {
					if len(within(there, f)) > 1200 {
						refused++
						refuse.Sub = sub
						return []wire.Message{refuse}
					}
					return p.honest(sub, f, frame)
				}
				p.run(3, time.Minute)
				p.found(slices.DeleteFunc(slices.Clone(there), func(i reconcile.Item) bool { return i.CreatedAt%7 != 0 }))
				if refused == 0 || refused > 3*40 || !p.set.Able() {
					t.Errorf("refused %d times, able %v", refused, p.set.Able())
				}
				for _, s := range p.spans { // of which nothing is known
					f := nostr.Filter{Since: s.Since, Until: s.Until}
					if len(within(here, f)) > 0 {
						t.Errorf("asked for %v by REQ", s)
					}
				}
			})
		})
	}
}

// TestOneSecond asks by REQ for a time that is too full to reconcile.
func TestOneSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, events(0, 10), events(0, 1000))
		p.relay = func(sub string, f nostr.Filter, frame []byte) []wire.Message {
			at := nostr.Timestamp(start + 60*5)
			if (f.Since == nil || *f.Since <= at) && (f.Until == nil || *f.Until >= at) {
				return []wire.Message{{Kind: wire.NegErr, Sub: sub, Reason: "blocked: too many query results"}}
			}
			return p.honest(sub, f, frame)
		}
		p.run(1, time.Minute)
		asked := map[nostr.Timestamp]bool{}
		for _, s := range p.spans {
			for _, i := range within(p.stored, nostr.Filter{Since: s.Since, Until: s.Until}) {
				asked[i.CreatedAt] = true
			}
		}
		for _, i := range p.stored[10:] {
			if !p.missing[i.ID] && !asked[i.CreatedAt] {
				t.Fatalf("the event of %d was neither found nor asked for", i.CreatedAt)
			}
		}
	})
}

// TestForgotten opens a session again that the relay has forgotten, and goes on with what was said
// last.
func TestForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, events(0, 5000), append(events(0, 2000), events(2001, 5001)...))
		n := 0
		p.relay = func(sub string, f nostr.Filter, frame []byte) []wire.Message {
			if n++; n%2 == 0 {
				return []wire.Message{{Kind: wire.NegErr, Sub: sub, Reason: "CLOSED"}}
			}
			return p.honest(sub, f, frame)
		}
		p.run(1, time.Minute)
		p.found(events(5000, 5001))
		if !p.set.Able() {
			t.Error("the relay is taken not to reconcile")
		}
	})
}

// TestFewerSessions opens no more sessions than the relay takes.
func TestFewerSessions(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]wire.Message{
		"strfry":  {Kind: wire.Notice, Reason: "ERROR: too many concurrent NEG requests"},
		"Tendril": {Kind: wire.NegErr, Reason: "blocked: too many sessions; at most 3 on one connection, close some"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, events(0, 100), events(0, 101))
				refused := 0
				p.relay = func(sub string, f nostr.Filter, frame []byte) []wire.Message {
					if len(p.filters) > 3 {
						refused++
						delete(p.filters, sub)
						m := refuse
						if m.Kind == wire.NegErr {
							m.Sub = sub
						}
						return []wire.Message{m}
					}
					go func() { // so that others are open meanwhile
						time.Sleep(time.Millisecond)
						p.messages <- p.honest(sub, f, frame)[0]
					}()
					return nil
				}
				p.run(40, time.Minute)
				p.found(events(100, 101))
				if len(p.spans) != 0 || !p.set.Able() || refused == 0 || refused > negentropy.AtOnce {
					t.Errorf("asked for %d by REQ, able %v, refused %d times", len(p.spans), p.set.Able(), refused)
				}
			})
		})
	}
}

// TestQuiet says the same again when the relay may be asked again.
func TestQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, events(0, 100), events(0, 101))
		quiet := true
		p.relay = func(sub string, f nostr.Filter, frame []byte) []wire.Message {
			if quiet {
				quiet = false
				p.allowance.Quieten(time.Now())
				return []wire.Message{{Kind: wire.NegErr, Sub: sub, Reason: "rate-limited: slow down"}}
			}
			return p.honest(sub, f, frame)
		}
		began := time.Now()
		p.run(1, 2*time.Minute)
		p.found(events(100, 101))
		if d := time.Since(began); d < time.Minute || !p.set.Able() {
			t.Errorf("it took %v, able %v", d, p.set.Able())
		}
	})
}

// TestEndless gives up a relay that goes on for ever.
func TestEndless(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(p *play, n byte) []byte{
		// Other fingerprints every time, of all there is.
		"fingerprints": func(_ *play, n byte) []byte { return append([]byte{0x61, 0, 0, 1, n}, make([]byte, 15)...) },
		// One event that is named for ever, and fingerprints.
		"one id": func(_ *play, n byte) []byte {
			b := append([]byte{0x61, 1, 0, 2, 1}, make([]byte, 32)...)
			return append(append(b, 0, 0, 1, n), make([]byte, 15)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, events(0, 100), nil)
				n := byte(0)
				p.relay = func(sub string, _ nostr.Filter, _ []byte) []wire.Message {
					n++
					return []wire.Message{{Kind: wire.NegMsg, Sub: sub, Frame: answer(p, n)}}
				}
				p.run(2, time.Minute)
				if p.set.Able() || len(p.spans) != 2 || len(p.said) > 2000 {
					t.Errorf("able %v, asked for %v, said %d messages", p.set.Able(), p.spans, len(p.said))
				}
			})
		})
	}
}

// TestDrip gives up a relay that answers always just in time.
func TestDrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, events(0, 100), nil)
		n := byte(0)
		p.relay = func(sub string, _ nostr.Filter, _ []byte) []wire.Message {
			n++
			frame := append([]byte{0x61, 0, 0, 1, n}, make([]byte, 15)...)
			go func() {
				time.Sleep(negentropy.Silence - time.Second)
				p.messages <- wire.Message{Kind: wire.NegMsg, Sub: sub, Frame: frame}
			}()
			return nil
		}
		p.run(1, time.Hour)
		if p.set.Able() || len(p.spans) != 1 {
			t.Errorf("able %v, asked for %v", p.set.Able(), p.spans)
		}
	})
}

// TestIngestAway waits for ingest, and does not blame the relay.
func TestIngestAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after, away, spans int
	}{
		"at first":      {0, 20, 0},
		"in the middle": {15, 3, 0}, // so few are forgiven though they fail one after the other
		"for long":      {3, 1 << 30, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, events(0, 100), events(0, 101))
				if c.after == 0 {
					p.ingest.leave(c.away)
				}
				p.relay = func(sub string, f nostr.Filter, frame []byte) []wire.Message {
					if c.after > 0 && p.ingest.questions() >= c.after {
						p.ingest.leave(c.away)
						c.after = 0
					}
					return p.honest(sub, f, frame)
				}
				p.run(10, 10*time.Minute)
				if !p.set.Able() || c.spans == 0 && len(p.spans) != 0 || len(p.spans) > c.spans {
					t.Errorf("able %v, asked for %d by REQ", p.set.Able(), len(p.spans))
				}
				if len(p.spans) == 0 {
					p.found(events(100, 101))
				}
				if p.ingest.asked > 100 {
					t.Errorf("ingest was asked %d times", p.ingest.asked)
				}
			})
		})
	}
}

// TestNoRoomForIDs finds what there was no room for by another session.
func TestNoRoomForIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, events(0, 100), events(0, 5000))
		p.room = 300
		p.relay = func(sub string, f nostr.Filter, frame []byte) []wire.Message {
			p.fetch()
			return p.honest(sub, f, frame)
		}
		p.run(1, time.Minute)
		p.fetch()
		if len(p.ingest.known) != 5000 || !p.set.Able() {
			t.Errorf("%d events are known, want 5000", len(p.ingest.known))
		}
	})
}

// TestLacks does not ask a relay that says of itself that it does not reconcile, unless it has
// reconciled before.
func TestLacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, events(0, 100), events(0, 200))
		p.run(1, time.Minute)
		if err := p.set.Lacks(t.Context()); err != nil || !p.set.Able() {
			t.Error("what the relay says counts for more than what it does", err)
		}
		p = newPlay(t, events(0, 100), events(0, 200))
		p.set.Add(nostr.Filter{}, p)
		if err := p.set.Lacks(t.Context()); err != nil || p.set.Able() || p.settled != 1 || len(p.spans) != 1 || len(p.said) != 0 {
			t.Errorf("able %v, asked for %v, said %v, %v", p.set.Able(), p.spans, p.said, err)
		}
	})
}

// TestRestart forgets what is under way; what still comes of it is passed over.
func TestRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, events(0, 100), events(0, 200))
		ctx := t.Context()
		p.set.Add(nostr.Filter{}, p)
		if err := p.set.Ask(ctx, time.Now()); err != nil {
			t.Fatal(err)
		}
		p.await(ctx, time.Now()) // ingest's answer
		if err := p.set.Ask(ctx, time.Now()); err != nil || p.set.Count() != 1 {
			t.Fatal(err, p.set.Count())
		}
		if err := p.set.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		if len(p.filters) != 0 || !p.set.Idle() {
			t.Errorf("%d sessions are open", len(p.filters))
		}
		p.await(ctx, time.Now()) // the relay's answer
		p.run(1, time.Minute)
		p.found(events(100, 200))
	})
}

// FuzzHear has a relay answer with whatever it likes, in any order. Whatever it says, the searches
// settle, and what it is said is bounded.
func FuzzHear(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{1, 0x61, 0, 0, 2, 0, 255, 0, 2, 7, 3, 0, 4, 5, 6})
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(t, events(0, 40), events(20, 60))
			next := func() (b byte) {
				if len(script) > 0 {
					b, script = script[0], script[1:]
				}
				return b
			}
			reasons := []string{
				"blocked: too many query results", "closed: gone", "blocked: too many sessions", "error", "",
				"ERROR: too many concurrent NEG requests", "ERROR: bad msg: negentropy disabled", "hello",
			}
			p.relay = func(sub string, f nostr.Filter, frame []byte) []wire.Message {
				switch next() % 8 {
				case 1: // bytes
					n := int(next())
					n = min(n, len(script))
					m := wire.Message{Kind: wire.NegMsg, Sub: sub, Frame: script[:n]}
					script = script[n:]
					return []wire.Message{m}
				case 2:
					return []wire.Message{{Kind: wire.NegErr, Sub: sub, Reason: reasons[int(next())%len(reasons)]}}
				case 3:
					return []wire.Message{{Kind: wire.Notice, Reason: reasons[int(next())%len(reasons)]}}
				case 4:
					return []wire.Message{{Kind: wire.NegMsg, Sub: sub, TooLarge: true}}
				case 5:
					p.allowance.Quieten(time.Now())
				case 6: // twice
					return append(p.honest(sub, f, frame), p.honest(sub, f, frame)...)
				case 7:
					return nil
				}
				return p.honest(sub, f, frame)
			}
			p.run(3, 24*time.Hour)
			if len(p.said) > 5000 {
				t.Errorf("said %d messages", len(p.said))
			}
		})
	})
}
