package writer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/ingest/policy"
)

var began = time.Unix(1_800_000_000, 0)

func idOf(n int) string { return fmt.Sprintf("%064x", n) }

func TestPark(t *testing.T) {
	t.Parallel()
	p := NewPark(2*time.Minute, 3)
	add := func(at time.Time, all ...int) {
		for _, n := range all {
			p.Add(&policy.Candidate{Event: &nostr.Event{ID: idOf(n)}}, at)
		}
	}
	want := func(want ...int) {
		t.Helper()
		var ids, wanted []string
		for n := range 10 {
			ids = append(ids, idOf(n))
		}
		for _, n := range want {
			wanted = append(wanted, idOf(n))
		}
		var got []string
		for _, c := range p.Take(ids) {
			got = append(got, c.Event.ID)
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("taken: %.64q, want %.64q", got, wanted)
		}
	}
	add(began, 2, 1)
	add(began.Add(time.Minute), 2) // it stays as it is
	p.Expire(began.Add(2*time.Minute - 1))
	want(2, 1)
	want()
	add(began, 1)
	p.Expire(began.Add(2 * time.Minute))
	want()
	add(began, 0, 1, 2, 3, 4)
	want(2, 3, 4)
}

// However many wait for one arrival, what it sets off is bounded.
func TestParkGivesSoMany(t *testing.T) {
	t.Parallel()
	p := NewPark(time.Minute, 100_000)
	var ids []string
	for n := range 5000 {
		p.Add(&policy.Candidate{Event: &nostr.Event{ID: idOf(n)}}, began)
		ids = append(ids, idOf(n))
	}
	if got := len(p.Take(ids)); got != 1024 {
		t.Errorf("%d taken, want 1024", got)
	}
}
