package writer

import (
	"fmt"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/ingest/policy"
)

var began = time.Unix(1_800_000_000, 0)

// TestPark: a park gives back what came, in that order, until its time is over; when it is full the
// oldest goes; and what one arrival sets off is bounded.
func TestPark(t *testing.T) {
	t.Parallel()
	p := newPark(2*time.Minute, 3)
	add := func(p *park, at time.Time, ids ...string) {
		for _, id := range ids {
			p.add(&policy.Candidate{Event: &nostr.Event{ID: id}}, at)
		}
	}
	want := func(want string) {
		t.Helper()
		got := ""
		for _, c := range p.take([]string{"0", "1", "2", "3", "4"}) {
			got += c.Event.ID
		}
		if got != want {
			t.Errorf("taken: %q, want %q", got, want)
		}
	}
	add(p, began, "2", "1")
	add(p, began.Add(time.Minute), "2") // it stays as it is
	p.expire(began.Add(2*time.Minute - 1))
	want("21")
	want("")
	add(p, began, "1")
	p.expire(began.Add(2 * time.Minute))
	want("")
	add(p, began, "0", "1", "2", "3", "4")
	want("234")

	large := newPark(time.Minute, 100_000)
	var ids []string
	for n := range 5000 {
		ids = append(ids, fmt.Sprint(n))
	}
	add(large, began, ids...)
	if got := len(large.take(ids)); got != 1024 {
		t.Errorf("%d taken, want 1024", got)
	}
}
