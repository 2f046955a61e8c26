package relayconn

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// TestStateIsFenced: who has lost the claim cannot write over its successor, but a worker finds
// back into its own entry.
func TestStateIsFenced(t *testing.T) {
	t.Parallel()
	kv := bucket(t)
	a := open(t, kv)
	if err := put(t, a, "a", 1); err != nil {
		t.Fatal(err)
	}
	// The answer to a write of ours was lost.
	lost := open(t, kv)
	if err := put(t, lost, "a", 2); err != nil {
		t.Fatal(err)
	}
	if err := put(t, a, "a", 3); err != nil {
		t.Fatalf("after a write whose answer was lost: %v", err)
	}
	// Somebody deletes it.
	if err := kv.Delete(t.Context(), "r.example.com"); err != nil {
		t.Fatal(err)
	}
	if err := put(t, a, "a", 4); err != nil {
		t.Fatalf("after it was deleted: %v", err)
	}
	b := open(t, kv)
	if b.value.Repos != 4 {
		t.Fatalf("the successor reads %+v", b.value)
	}
	if err := put(t, b, "b", 5); err != nil {
		t.Fatal(err)
	}
	if err := put(t, a, "a", 6); !bus.IsConflict(err) {
		t.Fatalf("who lost the claim writes on: %v", err)
	}
	if s := open(t, kv); s.value.Repos != 5 || s.value.Worker != "b" {
		t.Fatalf("the entry is %+v", s.value)
	}
}

// TestStateReadTooEarly: a worker that was told an older entry than the last of the worker before
// writes all the same.
func TestStateReadTooEarly(t *testing.T) {
	t.Parallel()
	kv := bucket(t)
	before := open(t, kv)
	if err := put(t, before, "before", 1); err != nil {
		t.Fatal(err)
	}
	s := open(t, kv)
	if err := put(t, before, "before", 2); err != nil {
		t.Fatal(err)
	}
	for repos := range 2 {
		if err := put(t, s, "after", repos+3); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(t, before, "before", 5); !bus.IsConflict(err) {
		t.Errorf("the worker before writes on: %v", err)
	}
}

// TestAStateGoesByItself when nobody has written it for its time, whether it was new or an update.
func TestAStateGoesByItself(t *testing.T) {
	t.Parallel()
	kv := bucket(t)
	stream, err := kv.js.Stream(t.Context(), proto.KVStream(proto.BucketRelays))
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, kv)
	for repos := range 2 {
		if err := put(t, s, "a", repos+1); err != nil {
			t.Fatal(err)
		}
		msg, err := stream.GetMsg(t.Context(), s.revision)
		if err != nil {
			t.Fatal(err)
		}
		if ttl, err := time.ParseDuration(msg.Header.Get(jetstream.MsgTTLHeader)); err != nil || ttl != 26*time.Hour {
			t.Errorf("write %d goes after %v, %v", repos+1, ttl, err)
		}
	}
	s.kept = time.Second
	if err := put(t, s, "a", 0); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := kv.Get(t.Context(), "r.example.com"); errors.Is(err, jetstream.ErrKeyNotFound) {
			break
		} else if err != nil || time.Now().After(end) {
			t.Fatalf("its time is over and it is there: %v", err)
		}
	}
	if err := put(t, s, "a", 3); err != nil {
		t.Errorf("after it has gone: %v", err)
	}
}
