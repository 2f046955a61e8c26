package intake_test

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"testing"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
)

const key = "0000000000000000000000000000000000000000000000000000000000000001"

func event(t testing.TB, content string) *nostr.Event {
	t.Helper()
	ev := &nostr.Event{Kind: 1621, CreatedAt: 1_700_000_000, Content: content, Tags: nostr.Tags{{"a", "30617:aa:x"}}}
	if err := ev.Sign(key); err != nil {
		t.Fatal(err)
	}
	return ev
}

func copyOf(ev *nostr.Event) *nostr.Event {
	again := *ev
	again.Tags = nil
	for _, tag := range ev.Tags {
		again.Tags = append(again.Tags, slices.Clone(tag))
	}
	return &again
}

// play is an ingest that takes what it is offered, and an eye on what is verified.
type play struct {
	*intake.Intake

	mu      sync.Mutex
	offered []candidates.Candidate
	checked map[string]int // by signature
	order   []string       // contents, as they were checked
	stored  map[string]bool
	full    chan struct{} // nil: there is room; else an offer of the past takes one value from it
	checks  chan struct{} // nil: checks take no time; else each takes one value from it
}

// newPlay begins an intake in the bubble of the test. change may alter its options.
func newPlay(t testing.TB, change func(*intake.Options)) *play {
	p := &play{checked: map[string]int{}, stored: map[string]bool{}}
	o := intake.Options{Offerer: p, Stored: p, Signed: p.check, Workers: 2}
	if change != nil {
		change(&o)
	}
	p.Intake = intake.New(o)
	return p
}

// run lets it work until the test ends.
func (p *play) run(t testing.TB) {
	done := make(chan error, 1)
	ctx, end := context.WithCancel(context.Background())
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Has implements intake.Store.
func (p *play) Has(_ context.Context, ids [][32]byte) (has []bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		has = append(has, p.stored[hex.EncodeToString(id[:])])
	}
	return has, nil
}

func (p *play) check(ev *nostr.Event) bool {
	p.mu.Lock()
	p.checked[ev.Sig]++
	p.order = append(p.order, ev.Content)
	checks := p.checks
	p.mu.Unlock()
	if checks != nil {
		<-checks
	}
	return nostr.Signed(ev)
}

func (p *play) Offer(ctx context.Context, c candidates.Candidate) error {
	p.mu.Lock()
	full := p.full
	p.mu.Unlock()
	if full != nil && c.Lane != proto.LaneSyncLive {
		select {
		case <-full:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered = append(p.offered, c)
	return nil
}

// contents are what was offered, in order.
func (p *play) contents() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.offered {
		all = append(all, c.Event.Content)
	}
	return all
}

// decide answers all that was offered.
func (p *play) decide(outcome proto.Outcome, err error) {
	p.mu.Lock()
	offered := p.offered
	p.offered = nil
	p.mu.Unlock()
	for _, c := range offered {
		c.Done(proto.Verdict{ID: c.Event.ID, Outcome: outcome}, err)
	}
}

// ends collects how events ended.
type ends struct {
	mu  sync.Mutex
	all []intake.Result
}

func (e *ends) done(r intake.Result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, r)
}

func (e *ends) count(holds func(intake.Result) bool) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.all {
		if holds(r) {
			n++
		}
	}
	return n
}

func accepted(r intake.Result) bool {
	return r.Err == nil && r.Verdict.Outcome == proto.Accepted
}
func forged(r intake.Result) bool { return errors.Is(r.Err, intake.ErrForged) }
func copied(r intake.Result) bool { return r.Copy }
func any(intake.Result) bool      { return true }

func historic(ev *nostr.Event, done func(intake.Result)) intake.Arrival {
	return intake.Arrival{Event: ev, Lane: proto.LaneSyncHistoric, Source: proto.SourceStartup, Done: done}
}

func alive(ev *nostr.Event, done func(intake.Result)) intake.Arrival {
	return intake.Arrival{Event: ev, Lane: proto.LaneSyncLive, Source: proto.SourceLive, Done: done}
}

func take(t testing.TB, s *intake.Stream, a intake.Arrival) {
	t.Helper()
	if _, err := s.Take(t.Context(), a); err != nil {
		t.Fatal(err)
	}
}
