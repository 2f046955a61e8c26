package intake_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
)

// whimsical is an ingest that decides now or later, in any order, this way or that, or never does.
type whimsical struct {
	deciding sync.WaitGroup
}

func (w *whimsical) Offer(_ context.Context, c candidates.Candidate) error {
	switch rand.IntN(8) {
	case 0:
		return candidates.ErrEnded
	case 1, 2:
		w.decide(c)
	default:
		w.deciding.Go(func() { w.decide(c) })
	}
	return nil
}

func (w *whimsical) decide(c candidates.Candidate) {
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
	var originals []*nostr.Event
	for n := range events {
		ev := &nostr.Event{Kind: 1621, CreatedAt: nostr.Timestamp(n), Content: fmt.Sprint(n)}
		if err := ev.Sign(key); err != nil {
			t.Fatal(err)
		}
		originals = append(originals, ev)
	}
	ingest := &whimsical{}
	in := intake.New(intake.Options{Offerer: ingest})
	ctx, end := context.WithCancel(context.Background())
	defer end()
	done := make(chan error, 1)
	go func() { done <- in.Run(ctx) }()
	var ended [relays * events]atomic.Int64
	var taken [relays * events]bool
	var bringing sync.WaitGroup
	for r := range relays {
		bringing.Go(func() {
			s := in.Open(fmt.Sprint("wss://r", r))
			for n := range events {
				at, ev, forge := r*events+n, copyOf(originals[n]), rand.IntN(6) == 0
				if forge && rand.IntN(2) == 0 {
					ev.Content += " changed"
				} else if forge {
					ev.Sig = originals[(n+1)%events].Sig
				}
				lane := proto.LaneSyncHistoric
				if rand.IntN(5) == 0 {
					lane = proto.LaneSyncLive
				}
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
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ingest.deciding.Wait()
	for at := range taken {
		if n := ended[at].Load(); taken[at] != (n == 1) {
			t.Errorf("arrival %d, taken: %v, ended %d times", at, taken[at], n)
		}
	}
}
