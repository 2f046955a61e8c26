package relayconn

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
)

// TestStateIsFenced: a worker that has lost the claim cannot write over its successor, but a worker
// finds back into its own entry. The successor may have been told an older entry than the last.
func TestStateIsFenced(t *testing.T) {
	t.Parallel()
	kv := bucket(t)
	a, lost := open(t, kv), open(t, kv)
	write := func(s *stateKeeper, worker string, repos int, fenced bool) {
		t.Helper()
		if err := put(t, s, worker, repos); bus.IsConflict(err) != fenced || !fenced && err != nil {
			t.Fatalf("%s writes %d: %v", worker, repos, err)
		}
	}
	write(a, "a", 1, false)
	write(lost, "a", 2, false) // the answer to this was lost
	write(a, "a", 3, false)
	if err := kv.Delete(t.Context(), "r.example.com"); err != nil {
		t.Fatal(err)
	}
	write(a, "a", 4, false)
	b := open(t, kv)
	if b.value.Repos != 4 {
		t.Fatalf("the successor reads %+v", b.value)
	}
	write(a, "a", 5, false) // which b was not told of
	write(b, "b", 6, false)
	write(b, "b", 7, false)
	write(a, "a", 8, true)
	if s := open(t, kv); s.value.Repos != 7 || s.value.Worker != "b" {
		t.Fatalf("the entry is %+v", s.value)
	}
}

// TestAStateGoesByItself when it was not written for its time, whether it was new or an update.
func TestAStateGoesByItself(t *testing.T) {
	t.Parallel()
	kv := bucket(t)
	for updates := range 2 {
		s := open(t, kv)
		s.kept = time.Second
		for n := range updates + 1 {
			if err := put(t, s, "a", n); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "it has gone", func() bool {
			_, err := kv.Get(t.Context(), "r.example.com")
			return errors.Is(err, jetstream.ErrKeyNotFound)
		})
		if err := put(t, s, "a", 9); err != nil {
			t.Errorf("after it has gone: %v", err)
		}
		if err := kv.Purge(t.Context(), "r.example.com"); err != nil {
			t.Fatal(err)
		}
	}
}
