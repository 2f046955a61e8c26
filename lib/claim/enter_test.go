package claim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// restless is a bucket in which the record of a worker comes and goes between two looks at it, as
// often as it says.
type restless struct {
	jetstream.KeyValue
	times int
}

func (r *restless) Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (uint64, error) {
	if r.times > 0 {
		r.times--
		return 0, jetstream.ErrKeyExists
	}
	return r.KeyValue.Create(ctx, key, value, opts...)
}

func (r *restless) Delete(ctx context.Context, key string, opts ...jetstream.KVDeleteOpt) error {
	if r.times > 0 {
		r.times--
		return jetstream.ErrKeyExists
	}
	return r.KeyValue.Delete(ctx, key, opts...)
}

// TestARecordThatComesAndGoes: a worker joins though its record, of an attempt whose answer was
// lost, expires just when it is looked at; and it leaves though that is so again.
func TestARecordThatComesAndGoes(t *testing.T) {
	t.Parallel()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly, sizing.WorkerTTL = true, 5*time.Minute
	b, err := bus.Open(t.Context(), bus.Options{Sizing: sizing})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	first, err := Join(t.Context(), b, Options{Group: "test", Worker: "a", Incarnation: "a-1", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Leave(context.Background())
	o := Options{Group: "test", Worker: "b", Incarnation: "b-1", TTL: 3 * time.Second}.withDefaults()
	record := &restless{first.workers, 2}
	m := &Member{
		o: o, bus: b, workers: record, roster: first.roster, held: map[string]bool{}, lease: newLease(), stop: func() {},
	}
	m.lease.lapse = time.NewTimer(time.Hour)
	if err := m.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.workers.Get(t.Context(), m.key()); err != nil {
		t.Errorf("its record: %v", err)
	}
	record.times = 2
	if err := m.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := first.workers.Get(t.Context(), m.key()); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("its record when it has left: %v", err)
	}
}
