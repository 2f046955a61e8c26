package negentropy_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/query"
	"tendril.dev/lib/reconcile"
	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/negentropy"
	"tendril.dev/services/relayconn/wire"
)

// start is the time of the first event, in seconds.
const start = 1_700_000_000

// events are so many items, one a minute.
func events(from, to int) (items []reconcile.Item) {
	for i := from; i < to; i++ {
		items = append(items, reconcile.Item{
			CreatedAt: nostr.Timestamp(start + 60*i),
			ID:        sha256.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(i))),
		})
	}
	return items
}

// within is what a filter finds, which is by time alone.
func within(items []reconcile.Item, f nostr.Filter) (found reconcile.Packed) {
	for _, i := range items {
		if (f.Since == nil || i.CreatedAt >= *f.Since) && (f.Until == nil || i.CreatedAt <= *f.Until) {
			found = append(found, i)
		}
	}
	return reconcile.Pack(found)
}

// ingest answers for what is known here.
type ingest struct {
	mu    sync.Mutex
	known []reconcile.Item
	away  int // so many questions more are not answered
	asked int
}

func (i *ingest) answer() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked++
	if i.away > 0 {
		i.away--
		return errors.New("nobody answers")
	}
	return nil
}

func (i *ingest) set(f nostr.Filter) reconcile.Packed {
	i.mu.Lock()
	defer i.mu.Unlock()
	return within(i.known, f)
}

func (i *ingest) Begin(ctx context.Context, s query.Reconciliation) ([]byte, uint64, error) {
	if err := i.answer(); err != nil {
		return nil, 0, err
	}
	set := i.set(s.Filter)
	first, err := reconcile.Start(ctx, set, reconcile.DefaultLimits)
	return first, uint64(len(set)), err
}

func (i *ingest) Continue(ctx context.Context, s query.Reconciliation, answer []byte) (step query.Step, err error) {
	if err := i.answer(); err != nil {
		return query.Step{}, err
	}
	set := i.set(s.Filter)
	have := map[[32]byte]bool{}
	for _, item := range set {
		have[item.ID] = true
	}
	var listed, told uint64
	step.Message, listed, err = reconcile.Continue(ctx, set, answer, reconcile.DefaultLimits, func(id [32]byte) error {
		if told++; !have[id] {
			step.Missing = append(step.Missing, id)
		}
		return nil
	})
	step.Alone = listed - (told - uint64(len(step.Missing)))
	if errors.Is(err, reconcile.ErrMessage) {
		err = fmt.Errorf("%w: %w", query.ErrRefused, err)
	}
	return step, err
}

// play is a relay, an ingest and an owner, as one set of sessions sees them.
type play struct {
	t         *testing.T
	set       *negentropy.Set
	allowance *allowance.Allowance
	ingest    *ingest
	stored    []reconcile.Item
	messages  chan wire.Message
	// relay says what the relay answers in place of what it should; nil: that.
	relay func(sub string, f nostr.Filter, frame []byte) []wire.Message

	filters map[string]nostr.Filter // of the sessions that are open
	most    int                     // sessions open at once
	said    []string
	room    int // for ids; 0: for all
	full    bool
	missing map[[32]byte]bool
	spans   []negentropy.Span
	settled int
	warned  []string
}

func newPlay(t *testing.T, here, there []reconcile.Item) *play {
	p := &play{
		t: t, allowance: allowance.New(time.Minute), ingest: &ingest{known: here}, stored: there,
		messages: make(chan wire.Message, 1000), filters: map[string]nostr.Filter{}, missing: map[[32]byte]bool{},
	}
	names := 0
	p.set = negentropy.New(negentropy.Options{
		Relay: p, Service: p.ingest, Allowance: p.allowance, Room: negentropy.NewRoom(),
		Seq: func() uint64 { return 1 }, Full: func() bool { return p.full },
		Name: func(prefix string) string { names++; return fmt.Sprint(prefix, names) },
		Warn: func(cause, _ string, args ...any) {
			p.warned = append(p.warned, cause)
			t.Log(cause, args)
		},
	})
	return p
}

func (p *play) NegOpen(_ context.Context, sub string, f nostr.Filter, frame []byte) error {
	p.filters[sub] = f
	p.most = max(p.most, len(p.filters))
	p.hear("NEG-OPEN", sub, frame)
	return nil
}

func (p *play) NegMsg(_ context.Context, sub string, frame []byte) error {
	if _, open := p.filters[sub]; !open {
		p.t.Errorf("NEG-MSG for session %s, which is not open", sub)
	}
	p.hear("NEG-MSG", sub, frame)
	return nil
}

func (p *play) NegClose(_ context.Context, sub string) error {
	delete(p.filters, sub)
	p.said = append(p.said, "NEG-CLOSE")
	return nil
}

func (p *play) hear(verb, sub string, frame []byte) {
	p.said = append(p.said, verb)
	if p.relay == nil {
		p.send(p.honest(sub, p.filters[sub], frame)...)
		return
	}
	p.send(p.relay(sub, p.filters[sub], frame)...)
}

func (p *play) send(messages ...wire.Message) {
	for _, m := range messages {
		if m.Kind == wire.NegErr || m.Kind == wire.Closed {
			delete(p.filters, m.Sub)
		}
		p.messages <- m
	}
}

// honest is what a relay should answer.
func (p *play) honest(sub string, f nostr.Filter, frame []byte) []wire.Message {
	out, err := reconcile.Respond(p.t.Context(), within(p.stored, f), frame, reconcile.DefaultLimits)
	if err != nil {
		p.t.Errorf("the relay does not understand: %v", err)
		return nil
	}
	return []wire.Message{{Kind: wire.NegMsg, Sub: sub, Frame: out}}
}

func (p *play) says(verb string) (n int) {
	for _, v := range p.said {
		if v == verb {
			n++
		}
	}
	return n
}

func (p *play) Missing(ids [][32]byte) (fresh, dropped int) {
	for _, id := range ids {
		switch {
		case p.missing[id]:
		case p.room > 0 && fresh >= p.room:
			dropped++
		default:
			p.missing[id] = true
			fresh++
		}
	}
	return fresh, dropped
}

func (p *play) Ask(span negentropy.Span) {
	p.spans = append(p.spans, span)
}
func (p *play) Settled() { p.settled++ }

// questions is how often ingest was asked.
func (i *ingest) questions() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// leave has ingest not answer so many times.
func (i *ingest) leave(times int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.away = times
}

// fetch makes what is missing known.
func (p *play) fetch() {
	p.ingest.mu.Lock()
	defer p.ingest.mu.Unlock()
	for _, i := range p.stored {
		if p.missing[i.ID] {
			p.ingest.known = append(p.ingest.known, i)
		}
	}
	clear(p.missing)
}

// run goes on until all searches have settled or so much time has passed.
func (p *play) run(searches int, most time.Duration) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	for range searches {
		p.set.Add(nostr.Filter{}, p)
	}
	end := time.Now().Add(most)
	for p.settled < searches {
		now := time.Now()
		if now.After(end) {
			p.t.Fatalf("after %v %d of %d have settled; said %d messages, missing %d", most, p.settled, searches, len(p.said), len(p.missing))
		}
		if err := p.set.Due(ctx, now); err != nil {
			p.t.Fatal(err)
		}
		if !p.allowance.Quiet(now) {
			if err := p.set.Ask(ctx, now); err != nil {
				p.t.Fatal(err)
			}
		}
		p.await(ctx, now)
	}
	if !p.set.Idle() || p.set.Count() != 0 || len(p.filters) != 0 {
		p.t.Errorf("all has settled, but %d sessions are open, and %d at the relay", p.set.Count(), len(p.filters))
	}
}

// await hears what comes next.
func (p *play) await(ctx context.Context, now time.Time) {
	wait := time.Hour
	for _, next := range []time.Time{p.set.Next(now), p.allowance.Until()} {
		if next.After(now) {
			wait = min(wait, next.Sub(now))
		}
	}
	var err error
	select {
	case m := <-p.messages:
		now = time.Now()
		switch m.Kind {
		case wire.Notice:
			_, err = p.set.Notice(ctx, m.Reason, now)
		default:
			_, err = p.set.Hear(ctx, m, now)
		}
	case r := <-p.set.Results():
		err = p.set.Answered(ctx, r, time.Now())
	case <-time.After(wait):
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
