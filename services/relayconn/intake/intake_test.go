package intake_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

const key = "0000000000000000000000000000000000000000000000000000000000000001"

func event(t testing.TB, content string) *nostr.Event {
	t.Helper()
	ev := &nostr.Event{Kind: 1621, CreatedAt: 1_700_000_000, Content: content, Tags: nostr.Tags{{"a", "30617:aa:x"}}}
	must(t, ev.Sign(key))
	return ev
}

// numbered are so many events, which are signed once: signatures differ from time to time.
func numbered(t testing.TB, events int) (all []*nostr.Event) {
	for n := range events {
		all = append(all, event(t, fmt.Sprint("event ", n)))
	}
	return all
}

// large is an event whose signature is not looked at.
func large(content string) *nostr.Event {
	ev := &nostr.Event{Kind: 1, PubKey: strings.Repeat("a", 64), Sig: strings.Repeat("0", 128), Content: content + strings.Repeat("x", largeBytes)}
	ev.ID = ev.GetID()
	return ev
}

const largeBytes = 100 << 10

// changed is a copy with another text or signature.
func changed(ev *nostr.Event, content, sig string) *nostr.Event {
	again := *ev
	again.Content, again.Sig = content, sig
	return &again
}

// play is an ingest that takes what it is offered and says what is stored, and an eye on what is
// verified. Offers of the past, checks and questions take a value from the channel of theirs first,
// if there is one.
type play struct {
	*intake.Intake
	full, checks, away chan struct{}

	mu        sync.Mutex
	offered   []candidates.Candidate
	checked   map[string]int // by signature
	stored    map[string]bool
	questions int
	ended     map[string][]intake.Result // by relay
}

// newPlay is a play in the bubble of the test. It begins with run.
func newPlay(workers int) *play {
	p := &play{checked: map[string]int{}, stored: map[string]bool{}, ended: map[string][]intake.Result{}}
	p.Intake = intake.New(intake.Options{Offerer: p, Stored: p, Signed: p.check, Workers: workers})
	return p
}

// run lets it work until the test ends.
func (p *play) run(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// pass takes a value from a channel, if there is one.
func pass(ctx context.Context, gate chan struct{}) error {
	if gate == nil {
		return nil
	}
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *play) Has(ctx context.Context, ids [][32]byte) (has []bool, err error) {
	p.mu.Lock()
	p.questions++
	p.mu.Unlock()
	for _, id := range ids {
		has = append(has, p.stored[hex.EncodeToString(id[:])])
	}
	return has, pass(ctx, p.away)
}

func (p *play) check(ev *nostr.Event) bool {
	p.mu.Lock()
	p.checked[ev.Sig]++
	p.mu.Unlock()
	_ = pass(context.Background(), p.checks)
	return len(ev.Content) > largeBytes || nostr.Signed(ev)
}

func (p *play) Offer(ctx context.Context, c candidates.Candidate) error {
	if c.Lane != live {
		if err := pass(ctx, p.full); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered = append(p.offered, c)
	return nil
}

// contents are what was offered and not decided, in order.
func (p *play) contents() (all []string) {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.offered {
		all = append(all, strings.TrimRight(c.Event.Content, "x"))
	}
	return all
}

// accept accepts all that was offered, until nothing more is.
func (p *play) accept() {
	for len(p.contents()) > 0 {
		p.mu.Lock()
		offered := p.offered
		p.offered = nil
		p.mu.Unlock()
		for _, c := range offered {
			c.Done(proto.Verdict{ID: c.Event.ID, Outcome: proto.Accepted}, nil)
		}
	}
}

// arrival is an event of a relay whose end is collected.
func (p *play) arrival(relay string, lane proto.Lane, ev *nostr.Event) intake.Arrival {
	return intake.Arrival{Event: changed(ev, ev.Content, ev.Sig), Lane: lane, Done: func(r intake.Result) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ended[relay] = append(p.ended[relay], r)
	}}
}

const past, live = proto.LaneSyncHistoric, proto.LaneSyncLive

// bring brings events by a connection of its own.
func (p *play) bring(t testing.TB, lane proto.Lane, relay string, events ...*nostr.Event) {
	t.Helper()
	s := p.Open(relay)
	for _, ev := range events {
		if _, err := s.Take(t.Context(), p.arrival(relay, lane, ev)); err != nil {
			t.Fatal(err)
		}
	}
}

// count counts the ends of a relay's events of which something holds.
func (p *play) count(relay string, holds func(intake.Result) bool) (n int) {
	synctest.Wait()
	for _, r := range p.ended[relay] {
		if holds(r) {
			n++
		}
	}
	return n
}

func accepted(r intake.Result) bool {
	return r.Err == nil && r.Verdict.Outcome == proto.Accepted && r.Event.ID == r.Verdict.ID
}
func forged(r intake.Result) bool { return errors.Is(r.Err, intake.ErrForged) }
func known(r intake.Result) bool  { return r.Known }
func failed(r intake.Result) bool { return r.Err != nil }

// TestManyRelays: what they bring at once is asked about, verified and offered once, and all hear
// the verdict, once for each time that they bring it. What is stored is neither verified nor
// offered, and later known at once. What has left the log comes again.
func TestManyRelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const relays, stored = 20, 100
		events := numbered(t, 150)
		p := newPlay(2)
		for _, ev := range events[:stored] {
			p.stored[ev.ID] = true
		}
		for r := range relays {
			p.bring(t, past, fmt.Sprint(r), slices.Concat(events, events)...)
			if n := len(p.ended[fmt.Sprint(r)]); n > 0 {
				t.Fatalf("%d events of the past end before there is a verdict", n)
			}
		}
		p.run(t)
		if n := len(p.contents()); n != len(events)-stored || len(p.checked) != n || p.questions > 2 {
			t.Fatalf("%d offered and %d verified after %d questions, want %d", n, len(p.checked), p.questions, len(events)-stored)
		}
		p.accept()
		for r := range relays {
			copies := 2 * len(events)
			if r == 0 { // which was first
				copies = len(events) + stored
			}
			if n, k := p.count(fmt.Sprint(r), accepted), p.count(fmt.Sprint(r), known); n != 2*(len(events)-stored) || k != copies {
				t.Errorf("relay %d: %d accepted, %d known", r, n, k)
			}
		}
		questions := p.questions
		p.bring(t, past, "late", events...)
		if n := p.count("late", known); n != len(events) || p.questions != questions || !p.Known(events[0].ID) || p.Known(event(t, "another").ID) {
			t.Errorf("later %d are known, after %d questions", n, p.questions-questions)
		}
		for sig, n := range p.checked {
			if n != 1 {
				t.Errorf("signature %.8s was checked %d times", sig, n)
			}
		}
		clear(p.stored)
		time.Sleep(6 * time.Minute)
		p.bring(t, past, "much later", events...)
		if n := len(p.contents()); n != len(events) || p.Known(events[0].ID) {
			t.Errorf("%d of %d events that are not stored any more are offered", n, len(events))
		}
	})
}

// TestForgedCopiesHarmNobody: a copy with the id of a good event and another signature, or another
// text, ends by itself, whichever comes first; all who bring the very same forgery hear of it. So
// does what would not even fit the types that check it.
func TestForgedCopiesHarmNobody(t *testing.T) {
	t.Parallel()
	good, other := event(t, "good"), event(t, "another")
	signature, text, both := changed(good, "good", other.Sig), changed(good, "changed", good.Sig), changed(good, "changed", other.Sig)
	var misshapen []*nostr.Event
	for _, ev := range []nostr.Event{
		{PubKey: good.PubKey + "00", Sig: good.Sig}, {PubKey: good.PubKey[:62], Sig: good.Sig}, {Sig: good.Sig}, {PubKey: "zz" + good.PubKey[2:], Sig: good.Sig},
		{PubKey: "AB" + good.PubKey[2:], Sig: good.Sig}, {PubKey: good.PubKey, Sig: good.Sig + "00"}, {PubKey: good.PubKey},
	} {
		ev.ID = ev.GetID()
		misshapen = append(misshapen, &ev)
	}
	for name, forgeries := range map[string][]*nostr.Event{
		"signature": {signature}, "text": {text}, "both": {both}, "all": {signature, text, both, signature}, "shape": misshapen,
	} {
		for _, first := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(2)
				if !first {
					p.bring(t, past, "one", good)
				}
				for _, ev := range forgeries {
					p.bring(t, past, "liar", ev)
				}
				p.bring(t, past, "two", good)
				p.run(t)
				if got := p.contents(); !slices.Equal(got, []string{"good"}) {
					t.Fatalf("%s: offered %v", name, got)
				}
				p.accept()
				if p.count("two", accepted) != 1 || p.count("one", failed) > 0 || p.count("liar", forged) != len(forgeries) {
					t.Errorf("%s: they hear %+v", name, p.ended)
				}
			})
		}
	}
}

// TestLiveBeforePast: what comes live waits neither for the signatures of the past, nor behind it
// at ingest, nor for its room; not even where the past has brought it before.
func TestLiveBeforePast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := numbered(t, 31)
		p := newPlay(1)
		p.checks, p.full = make(chan struct{}), make(chan struct{})
		p.run(t)
		p.bring(t, past, "slow", events[:30]...)
		synctest.Wait() // the first is being checked
		p.bring(t, live, "quick", events[30], events[29], events[29])
		if p.count("quick", known) != 1 {
			t.Error("a copy that comes live on the same connection is not known")
		}
		for range 3 {
			p.checks <- struct{}{}
		}
		if got := p.contents(); !slices.Equal(got, []string{"event 30", "event 29"}) {
			t.Fatalf("offered %v, want what is live", got)
		}
		p.accept()
		close(p.checks)
		synctest.Wait() // the first of the past waits for room at ingest, and comes live too
		p.bring(t, live, "quick", events[0])
		if got := p.contents(); !slices.Equal(got, []string{"event 0"}) || p.offered[0].Lane != live {
			t.Fatalf("offered %v, want what came live", got)
		}
		p.accept()
		if p.count("quick", accepted) != 3 || p.count("slow", accepted) != 2 {
			t.Fatalf("they hear %+v", p.ended)
		}
		close(p.full)
		p.accept()
		if p.count("slow", accepted) != 30 || p.count("quick", accepted) != 3 {
			t.Errorf("not each has one end: %+v", p.ended)
		}
	})
}

// TestPushBack: when ingest takes nothing, or no answer says what is stored, a connection's events
// wait up to a bound in bytes, all connections' together up to another, and what is live has room
// of its own. Nothing is lost by that.
func TestPushBack(t *testing.T) {
	t.Parallel()
	const relays, each = 9, 12
	for _, what := range []string{"ingest is full", "the store is away"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(2)
				stuck := make(chan struct{})
				if what == "ingest is full" {
					p.full = stuck
				} else {
					p.away = stuck
				}
				p.run(t)
				var taken atomic.Int64
				for r := range relays {
					go func() {
						for n := range each {
							p.bring(t, past, fmt.Sprint(r), large(fmt.Sprint(r, ",", n)))
							taken.Add(1)
						}
					}()
					time.Sleep(time.Minute)
					if n := taken.Load(); n == 0 || n*largeBytes > min(4*int64(r+1), 16)<<20 {
						t.Fatalf("%d events of %d connections wait", n, r+1)
					}
				}
				over, cancel := context.WithCancel(t.Context())
				cancel()
				if _, err := p.Open("late").Take(over, p.arrival("late", past, event(t, "late"))); !errors.Is(err, context.Canceled) {
					t.Fatalf("taken without room: %v", err)
				}
				synctest.Wait()
				questions := p.questions
				p.bring(t, live, "live", large("live"))
				if got := p.contents(); p.questions != questions+1 || p.full != nil && !slices.Equal(got, []string{"live"}) {
					t.Fatalf("%d questions about what is live, offered %v", p.questions-questions, got)
				}
				close(stuck)
				p.accept()
				for r := range relays {
					if n := p.count(fmt.Sprint(r), accepted); n != each {
						t.Errorf("%d events of relay %d were accepted", n, r)
					}
				}
			})
		})
	}
}

// whimsical is an ingest that decides now or later, in any order, this way or that, or never does.
type whimsical struct{ deciding sync.WaitGroup }

func (w *whimsical) Offer(_ context.Context, c candidates.Candidate) error {
	switch rand.IntN(8) {
	case 0:
		return candidates.ErrEnded
	case 1, 2:
		decide(c)
	default:
		w.deciding.Go(func() { decide(c) })
	}
	return nil
}

func decide(c candidates.Candidate) {
	outcome := []proto.Outcome{proto.Accepted, proto.Accepted, proto.Rejected, proto.HeldBack, proto.Duplicate}[rand.IntN(5)]
	var err error
	if rand.IntN(10) == 0 {
		err = candidates.ErrNoVerdict
	}
	c.Done(proto.Verdict{ID: c.Event.ID, Outcome: outcome}, err)
}

// TestEveryArrivalEndsOnce races relays that bring the same events, some of them forged, live and
// of the past, with verdicts, losses and the end. Each arrival ends once, and none of the genuine
// ones is called forged or the other way round.
func TestEveryArrivalEndsOnce(t *testing.T) {
	t.Parallel()
	const relays, events = 12, 150
	originals, ingest := numbered(t, events), &whimsical{}
	in := intake.New(intake.Options{Offerer: ingest})
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	var ended [relays * events]atomic.Int64
	var taken [relays * events]bool
	var bringing sync.WaitGroup
	for r := range relays {
		bringing.Go(func() {
			s := in.Open(fmt.Sprint("wss://r", r))
			for n := range events {
				at, ev, forge := r*events+n, changed(originals[n], originals[n].Content, originals[n].Sig), rand.IntN(6) == 0
				if forge && rand.IntN(2) == 0 {
					ev.Content += " changed"
				} else if forge {
					ev.Sig = originals[(n+1)%events].Sig
				}
				lane := []proto.Lane{past, past, live}[rand.IntN(3)]
				_, err := s.Take(context.Background(), intake.Arrival{Event: ev, Lane: lane, Done: func(res intake.Result) {
					ended[at].Add(1)
					// One that ended with the intake may not have been looked at.
					if res.Err == nil && forge && !in.Known(originals[n].ID) || forged(res) && !forge {
						t.Errorf("an event, forged: %v, ended as %+v", forge, res)
					}
				}})
				if err != nil {
					return // the end
				}
				taken[at] = true
				if r == 0 && n == events*3/4 {
					end()
				}
			}
		})
	}
	bringing.Wait()
	end()
	must(t, <-done)
	if _, err := in.Open("wss://late").Take(t.Context(), intake.Arrival{Event: originals[0]}); !errors.Is(err, intake.ErrEnded) {
		t.Errorf("taken after the end: %v", err)
	}
	ingest.deciding.Wait()
	for at := range taken {
		if n := ended[at].Load(); taken[at] != (n == 1) {
			t.Errorf("arrival %d, taken: %v, ended %d times", at, taken[at], n)
		}
	}
}
