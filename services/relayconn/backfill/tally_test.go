package backfill_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/target"
	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/backfill"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
	"tendril.dev/services/relayconn/leads"
	"tendril.dev/services/relayconn/ledger"
)

// named is a relay that notes what it was asked last, and says nothing.
type named struct{ sub string }

func (n *named) Req(_ context.Context, sub string, _ []nostr.Filter) error {
	n.sub = sub
	return nil
}
func (*named) Unsubscribe(context.Context, string) error { return nil }

// TestTallyOnce: what comes once more because a request was taken back in the middle of its answer
// does not count as known. What comes for the first time counts as it is.
func TestTallyOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		times int // that the answer begins
		came  int // in each
		idle  bool
	}{
		"taken back twice":      {3, 600, false},
		"too little":            {1, 999, false},
		"enough, and all known": {1, 1000, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay, board, n := &named{}, leads.New(), 0
			b := backfill.New(backfill.Options{
				Asker: relay, Allowance: allowance.New(time.Second), Ledger: ledger.New(), PageLimit: 5000, AtOnce: 4,
				Live: func() int { return 0 }, Silence: time.Minute, Warn: func(string, string, ...any) {},
				Name:       func(prefix string) string { n++; return fmt.Sprint(prefix, n) },
				Negentropy: &backfill.Negentropy{Leads: board, Seq: func() uint64 { return 0 }},
			}, items.Set{})
			set := items.Set{}
			for i := range 60 {
				set.Roots = append(set.Roots, target.ID{byte(i)})
			}
			b.Want(set)
			b.Add(backfill.Work{Items: set, Filters: layers.TwoAndThree(set), Share: true})
			now := time.Now()
			for range c.times {
				if err := b.Interrupt(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := b.Ask(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				for i := range c.came {
					ev := &nostr.Event{ID: fmt.Sprintf("%064x", i), CreatedAt: nostr.Timestamp(9000 - i), Tags: nostr.Tags{{"e", set.Roots[0].String()}}}
					if _, err := b.Saw(t.Context(), b.Find(relay.sub), ev); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := b.Ended(t.Context(), b.Find(relay.sub)); err != nil {
				t.Fatal(err)
			}
			idle := false
			for i := range 100 {
				idle = idle || board.Idle([]string{fmt.Sprint(i)}, now)
			}
			if idle != c.idle {
				t.Errorf("other root events are put off: %v, want %v", idle, c.idle)
			}
		})
	}
}
