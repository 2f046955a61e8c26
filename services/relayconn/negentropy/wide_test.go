package negentropy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/reconcile"
	"tendril.dev/services/relayconn/negentropy"
	"tendril.dev/services/relayconn/wire"
)

// wide adds a session about everything and has it come to its end.
func (p *play) wide(bounds negentropy.Bounds) *negentropy.Wide {
	p.t.Helper()
	w := p.set.AddWide(bounds, p)
	p.settled = -1
	p.run(0, 5*time.Minute)
	return w
}

// TestWide: everything is reconciled at once where little is missing on either side, and given up
// where that is not so, without a word about the relay.
func TestWide(t *testing.T) {
	t.Parallel()
	enough := negentropy.Bounds{Bytes: 100_000, Missing: 1000, Known: 9000}
	for name, c := range map[string]struct {
		here, there []reconcile.Item
		bounds      negentropy.Bounds
		missing     []reconcile.Item // nil: it is given up
		hopeless    bool
		said        int // messages at most
	}{
		"all is known":              {here: events(0, 9000), there: events(0, 9000), bounds: enough, missing: []reconcile.Item{}, said: 1},
		"little is missing":         {here: events(0, 9000), there: events(0, 9100), bounds: enough, missing: events(9000, 9100), said: 3},
		"it lacks a little":         {here: events(0, 9000), there: events(500, 9050), bounds: enough, missing: events(9000, 9050), said: 3},
		"much is missing":           {here: events(0, 9000), there: events(0, 20_000), bounds: enough, said: 3},
		"more bytes than it may":    {here: events(0, 9000), there: events(0, 9500), bounds: negentropy.Bounds{Bytes: 10_000, Missing: 1000, Known: 9000}, said: 3},
		"it lacks much":             {here: events(0, 9000), there: events(0, 7000), bounds: enough, hopeless: true, said: 3},
		"it has something else":     {here: events(0, 9000), there: events(9000, 9100), bounds: enough, hopeless: true, said: 3},
		"much else is known":        {here: events(0, 9001), there: events(0, 9001), bounds: enough, hopeless: true},
		"it shows nothing":          {here: events(0, 9000), bounds: enough, hopeless: true, said: 3},
		"of which nothing is known": {there: events(0, 100), bounds: enough},
		"of which hardly any is":    {here: events(0, 3), there: events(0, 9000), bounds: enough, said: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, c.here, c.there)
				w := p.wide(c.bounds)
				if c.missing != nil {
					p.found(c.missing)
				}
				if gaveUp := len(p.spans) > 0; gaveUp != (c.missing == nil) || gaveUp && p.spans[0] != (negentropy.Span{}) {
					t.Errorf("asks for %v by REQ", p.spans)
				}
				if c.missing == nil && w.Hopeless() != c.hopeless {
					t.Errorf("hopeless: %v", w.Hopeless())
				}
				if n := p.says("NEG-OPEN") + p.says("NEG-MSG"); n > c.said {
					t.Errorf("%d messages, want %d at most", n, c.said)
				}
				if !p.set.Able() || len(p.warned) > 0 {
					t.Errorf("able %v, warned of %v", p.set.Able(), p.warned)
				}
			})
		})
	}
}

// TestWideRefused: a relay that does not take a session about everything is asked in others.
func TestWideRefused(t *testing.T) {
	t.Parallel()
	answer := func(m wire.Message) func(string) []wire.Message {
		return func(sub string) []wire.Message {
			if m.Kind != wire.Notice {
				m.Sub = sub
			}
			return []wire.Message{m}
		}
	}
	for name, refusal := range map[string]func(sub string) []wire.Message{
		"too many":  answer(wire.Message{Kind: wire.NegErr, Reason: "blocked: too many query results"}),
		"no filter": answer(wire.Message{Kind: wire.NegErr, Reason: "error: a filter must have kinds"}),
		"closed":    answer(wire.Message{Kind: wire.Closed, Reason: "restricted: too broad"}),
		"NOTICE":    answer(wire.Message{Kind: wire.Notice, Reason: "ERROR: bad msg: negentropy filter too broad"}),
		"too large": answer(wire.Message{Kind: wire.NegMsg, TooLarge: true}),
		"silent":    func(string) []wire.Message { return nil },
		"never ends": func(sub string) []wire.Message {
			return []wire.Message{{Kind: wire.NegErr, Sub: sub, Reason: "closed: unknown subscription handle"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(t, events(0, 100), events(0, 120))
				p.relay = func(sub string, _ nostr.Filter, _ []byte) []wire.Message { return refusal(sub) }
				w := p.wide(negentropy.Bounds{Bytes: 100_000, Missing: 1000, Known: 9000})
				if !w.Hopeless() {
					t.Error("it is to be tried again")
				}
				if len(p.spans) != 1 || !p.set.Able() || len(p.warned) > 0 {
					t.Fatalf("asks for %v by REQ, able %v, warned of %v", p.spans, p.set.Able(), p.warned)
				}
				p.relay, p.spans, p.settled = nil, nil, 0
				p.run(3, time.Minute)
				p.found(events(100, 120))
				if len(p.spans) > 0 {
					t.Errorf("asks for %v by REQ", p.spans)
				}
			})
		})
	}
}
