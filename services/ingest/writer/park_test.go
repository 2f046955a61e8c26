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

func waiting(n int) *policy.Candidate { return &policy.Candidate{Event: &nostr.Event{ID: idOf(n)}} }

func take(p *Park, at time.Time, keys ...string) []string {
	var ids []string
	for _, c := range p.Take(keys, at) {
		ids = append(ids, c.Event.ID)
	}
	return ids
}

func TestPark(t *testing.T) {
	t.Parallel()
	p := NewPark(2*time.Minute, 3)
	p.Add(waiting(2), []string{"a", "b"}, began)
	p.Add(waiting(1), []string{"b"}, began.Add(time.Second))
	p.Add(waiting(2), []string{"a", "c"}, began.Add(time.Minute)) // it stays as it is
	if p.count != 2 || take(p, began, "c") != nil {
		t.Fatalf("%d parked", p.count)
	}
	if got := take(p, began, "b", "a", "b"); !slices.Equal(got, []string{idOf(2), idOf(1)}) {
		t.Errorf("taken: %v, want both in the order of coming", got)
	}
	if p.count != 0 || take(p, began, "a", "b") != nil {
		t.Error("taken twice")
	}
	p.Add(waiting(1), []string{"a"}, began)
	if got := take(p, began.Add(2*time.Minute-1), "a"); len(got) != 1 {
		t.Error("gone before its time")
	}
	p.Add(waiting(1), []string{"a"}, began)
	if got := take(p, began.Add(2*time.Minute), "a"); got != nil || p.count != 0 {
		t.Errorf("after its time: %v", got)
	}
	for n := range 5 {
		p.Add(waiting(n), []string{"x"}, began)
	}
	if got := take(p, began, "x"); !slices.Equal(got, []string{idOf(2), idOf(3), idOf(4)}) {
		t.Errorf("a full park kept %v, want the newest", got)
	}
	p.Add(waiting(1), []string{"a"}, began)
	p.Expire(began.Add(time.Hour))
	if p.count != 0 {
		t.Error("expired and still there")
	}
}

// However many wait for one key, what its arrival sets off is bounded.
func TestParkIsBoundedByKey(t *testing.T) {
	t.Parallel()
	p := NewPark(time.Minute, 100_000)
	for n := range 5000 {
		p.Add(waiting(n), []string{"d:busy"}, began)
	}
	if got := len(take(p, began, "d:busy")); got != 1024 {
		t.Errorf("%d taken, want 1024", got)
	}
}
