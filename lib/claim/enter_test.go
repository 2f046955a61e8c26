package claim

import (
	"context"
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

// TestARecordThatComesAndGoes: a worker joins though its record, of an attempt whose answer was
// lost, expires just when it is looked at.
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
	m := &Member{o: o, bus: b, workers: &restless{first.workers, 2}, register: first.register, held: map[string]bool{}, lease: newLease(bus.Era{})}
	m.lease.lapse = time.NewTimer(time.Hour)
	if err := m.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.workers.Get(t.Context(), m.key()); err != nil {
		t.Errorf("its record: %v", err)
	}
}
