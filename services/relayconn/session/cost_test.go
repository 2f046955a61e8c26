package session_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// silent is a relay that has nothing, and an ingest that never decides.
type silent struct {
	messages chan wire.Message
	mute     bool // it does not answer for the past
}

func (s silent) Req(ctx context.Context, sub string, filters []nostr.Filter) error {
	if s.mute && !filters[0].LimitZero {
		return nil
	}
	go func() {
		select {
		case s.messages <- wire.Message{Kind: wire.EOSE, Sub: sub}:
		case <-ctx.Done():
		}
	}()
	return nil
}
func (silent) Unsubscribe(context.Context, string) error              { return nil }
func (silent) Offer(context.Context, candidates.Candidate) error      { return nil }
func (silent) Status(session.Status)                                  {}
func (silent) Judged(*nostr.Event, proto.Source, bool, proto.Verdict) {}

// crowd begins a session that has so many roots, after many small additions. It returns what sends
// a message of no use.
func crowd(tb testing.TB, roots int, waiting bool) (message func()) {
	relay := silent{messages: make(chan wire.Message), mute: waiting}
	r := rules
	r.MaxFilters, r.AtOnce = 70, 16
	in := intake.New(intake.Options{Offerer: relay, Known: func(string) bool { return true }})
	s := session.New(session.Options{
		Relay: "wss://r.example.com", Rules: r, Asker: relay, Intake: in.Open("wss://r.example.com"), Observer: relay,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	wanted, done := make(chan session.Wanted), make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(func() {
		cancel()
		<-done
	})
	go func() { done <- s.Run(ctx, session.Start{}, relay.messages, wanted, nil) }()
	message = func() { relay.messages <- wire.Message{Kind: wire.EOSE, Sub: "nobody's"} }
	list := make([]string, roots)
	for i := range list {
		list[i] = fmt.Sprintf("%064x", i)
	}
	for n := roots - 40; n <= roots; n++ { // enough small additions for consolidation
		wanted <- session.Wanted{Items: history.Set{Roots: list[:n]}, Mark: session.Mark{Target: uint64(n)}}
		for range 20 {
			message()
		}
	}
	return message
}

// TestMessagesWhileConsolidationWaits cost nothing that grows with what is wanted.
func TestMessagesWhileConsolidationWaits(t *testing.T) {
	if allocs := testing.AllocsPerRun(100, crowd(t, 5000, true)); allocs > 10 {
		t.Errorf("%v allocations for each", allocs)
	}
}
