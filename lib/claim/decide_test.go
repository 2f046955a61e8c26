package claim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/proto"
)

func alive(names ...string) map[string]proto.Worker {
	workers := map[string]proto.Worker{}
	for _, n := range names {
		workers[n] = proto.Worker{Name: n, Incarnation: "1"}
	}
	return workers
}

// keyFor gives a key that prefers a worker among others.
func keyFor(t *testing.T, want string, workers ...string) string {
	t.Helper()
	for i := range 10_000 {
		if k := fmt.Sprint("key", i); preferred(k, workers) == want {
			return k
		}
	}
	t.Fatalf("no key prefers %s", want)
	return ""
}

func TestDecide(t *testing.T) {
	t.Parallel()
	a := keyFor(t, "a", "a", "b")
	b := keyFor(t, "b", "a", "b")
	now := time.Unix(1000, 0)
	set := func(keys ...string) map[string]bool {
		m := map[string]bool{}
		for _, k := range keys {
			m[k] = true
		}
		return m
	}
	free := func(at time.Time, keys ...string) map[string]time.Time {
		m := map[string]time.Time{}
		for _, k := range keys {
			m[k] = at
		}
		return m
	}
	by := func(worker, incarnation string) proto.Claim {
		return proto.Claim{Worker: worker, Incarnation: incarnation}
	}
	yields := func(key string) bool { return strings.Contains(key, "yield") }
	for _, tc := range []struct {
		name        string
		s           situation
		take, leave []string
		again       time.Time
	}{
		{name: "alone it takes everything", s: situation{workers: alive("a"), wanted: set(a, b)}, take: sorted(a, b)},
		{name: "it takes its own and gives the other time", s: situation{workers: alive("a", "b"), wanted: set(a, b), freeSince: free(now, a, b)},
			take: []string{a}, again: now.Add(10 * time.Second)},
		{name: "what nobody took for the grace time is taken", s: situation{workers: alive("a", "b"), wanted: set(b), freeSince: free(now.Add(-10*time.Second), b)},
			take: []string{b}},
		{name: "what another holds is his", s: situation{workers: alive("a", "b"), wanted: set(a), claims: map[string]proto.Claim{a: by("b", "1")}}},
		{name: "a dead worker's claim is free", s: situation{workers: alive("a"), wanted: set(a), claims: map[string]proto.Claim{a: by("b", "1")}}, take: []string{a}},
		{name: "an earlier incarnation's claim is free", s: situation{workers: alive("a", "b"), wanted: set(a), claims: map[string]proto.Claim{a: by("b", "0")}}, take: []string{a}},
		{name: "its own claim that it does not work on is taken up", s: situation{workers: alive("a", "b"), wanted: set(a), claims: map[string]proto.Claim{a: by("a", "1")}}, take: []string{a}},
		{name: "also one that another should have, after a time", s: situation{workers: alive("a", "b"), wanted: set(b), claims: map[string]proto.Claim{b: by("a", "1")},
			freeSince: free(now.Add(-10*time.Second), b)}, take: []string{b}},
		{name: "a key that prefers a newcomer is left", s: situation{workers: alive("a", "b"), wanted: set(a, b), mine: set(a, b)}, leave: []string{b}},
		{name: "but not one that he let lie", s: situation{workers: alive("a", "b"), wanted: set(b), mine: set(b), passedOver: map[string]proto.Claim{b: by("b", "1")}}},
		{name: "unless he came again", s: situation{workers: alive("a", "b"), wanted: set(b), mine: set(b), passedOver: map[string]proto.Claim{b: by("b", "0")}}, leave: []string{b}},
		{name: "what nobody wants is left", s: situation{workers: alive("a"), wanted: set(a), mine: set(a, b)}, leave: []string{b}},
		{name: "a full worker takes no more", s: situation{workers: alive("a"), wanted: set(a, b), max: 1}, take: sorted(a, b)[:1]},
		{name: "a full worker leaves what yields for what does not", s: situation{workers: alive("a"), wanted: set("x", "yield1", "yield2"), mine: set("yield1", "yield2"), max: 2}, leave: []string{"yield2"}},
		{name: "and decides the same while it is leaving", s: situation{workers: alive("a"), wanted: set("x", "w", "yield1", "yield2", "yield3"), mine: set("w", "yield1", "yield2"), max: 3}, leave: []string{"yield2"}},
		{name: "what yields is taken last", s: situation{workers: alive("a"), wanted: set("x", "a-yield", "b-yield"), max: 2}, take: []string{"x", "a-yield"}},
		{name: "and does not displace its like", s: situation{workers: alive("a"), wanted: set("a-yield", "b-yield"), mine: set("b-yield"), max: 1}},
		{name: "what another should have has its time before anything yields", s: situation{workers: alive("a", "b"), wanted: set(a+"yield", b), mine: set(a + "yield"), passedOver: map[string]proto.Claim{a + "yield": by("b", "1")}, freeSince: free(now, b), max: 1}, again: now.Add(10 * time.Second)},
	} {
		tc.s.self, tc.s.grace, tc.s.yields = "a", 10*time.Second, yields
		d := decide(tc.s, now)
		if !slices.Equal(d.take, tc.take) || !slices.Equal(d.leave, tc.leave) || !d.again.Equal(tc.again) {
			t.Errorf("%s: %+v, want take %v, leave %v, again %v", tc.name, d, tc.take, tc.leave, tc.again)
		}
	}
}

func sorted(keys ...string) []string {
	slices.Sort(keys)
	return keys
}

// TestRendezvousIsEvenAndMovesLittle: keys spread over workers, and only those of a worker that goes find a new one.
func TestRendezvousIsEvenAndMovesLittle(t *testing.T) {
	t.Parallel()
	workers := []string{"pod-0", "pod-1", "pod-2", "pod-3"}
	count := map[string]int{}
	for i := range 4000 {
		key := fmt.Sprintf("relay%d.example.com", i)
		with := preferred(key, workers)
		count[with]++
		if without := preferred(key, workers[:3]); with != "pod-3" && without != with {
			t.Fatalf("%s moved from %s to %s when pod-3 went", key, with, without)
		}
	}
	for w, n := range count {
		if n < 850 || n > 1150 {
			t.Errorf("%s has %d of 4000 keys", w, n)
		}
	}
	for shard := range proto.Shards {
		count[preferred(proto.ShardName(shard), workers)+" shards"]++
	}
	for _, w := range workers {
		if n := count[w+" shards"]; n < 6 || n > 28 {
			t.Errorf("%s has %d of 64 shards", w, n)
		}
	}
}
