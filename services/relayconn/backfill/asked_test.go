package backfill_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/target"
	"tendril.dev/services/relayconn/allowance"
	"tendril.dev/services/relayconn/backfill"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
	"tendril.dev/services/relayconn/ledger"
)

// deaf is a relay that is asked and says nothing.
type deaf struct{}

func (deaf) Req(context.Context, string, []nostr.Filter) error { return nil }
func (deaf) Unsubscribe(context.Context, string) error         { return nil }

// TestAsked: what was asked for is all of it, also after more was, costs nothing to be asked for
// again, and is nothing after a restart. It counts allocations, so it runs alone.
func TestAsked(t *testing.T) {
	b := backfill.New(backfill.Options{
		Asker: deaf{}, Allowance: allowance.New(time.Second), Ledger: ledger.New(), PageLimit: 500, AtOnce: 4,
		Live: func() int { return 0 }, Silence: time.Minute, Name: func(prefix string) string { return prefix },
	}, items.Set{})
	if !b.Asked().Empty() {
		t.Error("something was asked for already")
	}
	var want []target.ID
	for i := range 3 {
		some := []target.ID{{byte(2 * i)}, {byte(2*i + 1)}}
		want = append(want, some...)
		set := items.Set{Roots: some}
		b.Add(backfill.Work{Items: set, Filters: layers.TwoAndThree(set)})
		if got := b.Asked().Roots; !slices.Equal(got, want) {
			t.Errorf("%v was asked for, want %v", got, want)
		}
	}
	if allocs := testing.AllocsPerRun(100, func() { b.Asked() }); allocs > 0 {
		t.Errorf("%v allocations to tell what was asked for", allocs)
	}
	if err := b.Restart(t.Context()); err != nil || !b.Asked().Empty() {
		t.Errorf("after a restart %v was asked for, %v", b.Asked(), err)
	}
}
