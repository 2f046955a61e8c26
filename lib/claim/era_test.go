package claim_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/bus/bustest"
	"tendril.dev/lib/claim"
	"tendril.dev/proto"
)

// restartable is a NATS server that may be started anew, and one that makes again what it lost.
func restartable(t *testing.T, ttl time.Duration) (*bustest.NATS, server) {
	t.Helper()
	nats := bustest.New(t)
	sizing := proto.DefaultSizing()
	sizing.WorkerTTL = ttl
	b, err := bus.Open(t.Context(), bus.Options{URL: nats.URL, Sizing: sizing, Provisions: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return nats, server{nats.URL, ttl}
}

// counted counts how often work begins.
func counted(begun *atomic.Int64, do func(context.Context, string) error) func(context.Context, string) error {
	return func(ctx context.Context, key string) error {
		begun.Add(1)
		return do(ctx, key)
	}
}

// claims are who has claimed what in the bucket.
func claims(t *testing.T, b *bus.Bus) map[string]string {
	t.Helper()
	kv, err := b.JS.KeyValue(t.Context(), proto.BucketClaims)
	if err != nil {
		return nil // being made
	}
	by := map[string]string{}
	keys, err := kv.Keys(t.Context())
	if err != nil {
		return nil
	}
	for _, key := range keys {
		var c proto.Claim
		entry, err := kv.Get(t.Context(), key)
		if err != nil || json.Unmarshal(entry.Value(), &c) != nil {
			return nil
		}
		_, name, err := proto.ParseClaimKey(key)
		if err != nil {
			t.Fatal(err)
		}
		by[name] = c.Worker
	}
	return by
}

// TestWorkOutlastsARestart: NATS loses the claims and is back before any lease has ended. Nobody's
// work is interrupted, and each claims again what it works on.
func TestWorkOutlastsARestart(t *testing.T) {
	t.Parallel()
	nats, s := restartable(t, long)
	seen := &board{t: t, on: map[string]string{}}
	all := keys(200) // more than are claimed at once
	var begun atomic.Int64
	for _, name := range []string{"a", "b"} {
		s.start(t, s.connect(t), name, all, counted(&begun, seen.work(name)))
	}
	seen.awaitRest(all, "a", "b")
	d, err := claim.Watch(t.Context(), s.connect(t), "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	before, works := seen.owners(), begun.Load()
	nats.Stop()
	nats.Start()
	looker := s.connect(t)
	seen.await("all is claimed again", func(map[string]int) bool { return len(claims(t, looker)) == 200 })
	for key, worker := range claims(t, looker) {
		if before[key] != worker {
			t.Errorf("%s is claimed by %s, and was %s's", key, worker, before[key])
		}
	}
	for key, worker := range before {
		if w, held := d.Holder(key); !held || w.Name != worker {
			t.Errorf("the directory tells %q for %s, want %s", w.Name, key, worker)
		}
	}
	if n := begun.Load(); n != works {
		t.Errorf("work began %d times more", n-works)
	}
}

// TestNothingIsHandedOutWhileALeaseRuns: NATS loses the claims while a worker is cut off and works
// on by its lease. A worker that comes then finds free keys only, and takes none before that has
// ended.
func TestNothingIsHandedOutWhileALeaseRuns(t *testing.T) {
	t.Parallel()
	nats, s := restartable(t, 6*time.Second)
	seen := &board{t: t, on: map[string]string{}}
	all := keys(20)
	cutOff := s.connect(t)
	s.start(t, cutOff, "dying", all, seen.work("dying"))
	seen.await("one alone", func(n map[string]int) bool { return n["dying"] == 20 })
	cutOff.Conn.Close()
	nats.Stop()
	nats.Start()
	s.start(t, s.connectSoon(t), "heir", all, seen.work("heir"))
	seen.await("the heir has it all", func(n map[string]int) bool { return n["heir"] == 20 })
}

// connectSoon connects when the buckets are there again.
func (s server) connectSoon(t *testing.T) *bus.Bus {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.WorkerTTL = s.ttl
	b, err := bus.Open(t.Context(), bus.Options{URL: s.url, Sizing: sizing, Needs: proto.Needs(proto.GroupRelays), Waiting: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// TestLongOutageAndNewWorkers: NATS is away for longer than leases last, comes back without claims,
// and again at once; workers come and go meanwhile. Nobody ever works where another does, and in
// the end everything is worked on.
func TestLongOutageAndNewWorkers(t *testing.T) {
	t.Parallel()
	nats, s := restartable(t, short)
	seen := &board{t: t, on: map[string]string{}}
	all := keys(60)
	for _, name := range []string{"a", "b"} {
		s.start(t, s.connect(t), name, all, seen.work(name))
	}
	everything := func(n map[string]int) bool { return n["a"]+n["b"]+n["c"] == 60 }
	seen.await("shared", everything)
	nats.Stop()
	seen.await("all work has ended", func(n map[string]int) bool { return len(n) == 0 })
	nats.Start()
	s.start(t, s.connectSoon(t), "c", all, seen.work("c"))
	nats.Stop()
	nats.Start()
	seen.await("shared by three", func(n map[string]int) bool { return everything(n) && n["a"] > 0 && n["b"] > 0 && n["c"] > 0 })
}

// TestLostBuckets: only one of the two is lost, and nobody is cut off.
func TestLostBuckets(t *testing.T) {
	t.Parallel()
	for _, bucket := range []string{proto.BucketWorkers, proto.BucketClaims} {
		t.Run(bucket, func(t *testing.T) {
			t.Parallel()
			_, s := restartable(t, 5*time.Second)
			seen := &board{t: t, on: map[string]string{}}
			all := keys(30)
			b := s.connect(t)
			for _, name := range []string{"a", "b"} {
				s.start(t, s.connect(t), name, all, seen.work(name))
			}
			everything := func(n map[string]int) bool { return n["a"]+n["b"]+n["c"] == 30 }
			seen.await("shared", everything)
			before, _, err := b.Era(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := b.JS.DeleteStream(t.Context(), proto.KVStream(bucket)); err != nil {
				t.Fatal(err)
			}
			seen.await("a new era is settled", func(map[string]int) bool {
				era, settled, err := b.Era(t.Context())
				return err == nil && era != before && settled
			})
			s.start(t, s.connect(t), "c", all, seen.work("c"))
			seen.await("shared by three", func(n map[string]int) bool { return everything(n) && n["c"] > 0 })
		})
	}
}
