package claim

import (
	"fmt"
	"maps"
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

// leaving are these workers, of which one is leaving.
func leaving(name string, names ...string) map[string]proto.Worker {
	workers := alive(names...)
	w := workers[name]
	w.Leaving = true
	workers[name] = w
	return workers
}

// keyFor returns a key that prefers a worker among others.
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
		clear       []string
		again       time.Time
	}{
		{name: "a claim that nobody needs is removed after a time", s: situation{workers: alive("a", "b"), deadSince: free(now.Add(-10*time.Second), a)}, clear: []string{a}},
		{name: "but not at once", s: situation{workers: alive("a", "b"), deadSince: free(now, a)}},
		{name: "and by one of the workers only", s: situation{workers: alive("a", "b"), deadSince: free(now.Add(-10*time.Second), b)}},
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
		{name: "what prefers a worker that is leaving is taken at once", s: situation{workers: leaving("b", "a", "b"), wanted: set(a, b), freeSince: free(now, a, b)}, take: sorted(a, b)},
		{name: "what that worker still holds is his", s: situation{workers: leaving("b", "a", "b"), wanted: set(b), claims: map[string]proto.Claim{b: by("b", "1")}}},
		{name: "and nothing is left for him", s: situation{workers: leaving("b", "a", "b"), wanted: set(b), mine: set(b)}},
		{name: "what nobody wants is left", s: situation{workers: alive("a"), wanted: set(a), mine: set(a, b)}, leave: []string{b}},
		{name: "a full worker takes no more", s: situation{workers: alive("a"), wanted: set(a, b), max: 1}, take: sorted(a, b)[:1]},
		{name: "a full worker leaves what yields for what does not", s: situation{workers: alive("a"), wanted: set("x", "yield1", "yield2"), mine: set("yield1", "yield2"), max: 2}, leave: []string{"yield2"}},
		{name: "and decides the same while it is leaving", s: situation{workers: alive("a"), wanted: set("x", "w", "yield1", "yield2", "yield3"), mine: set("w", "yield1", "yield2"), max: 3}, leave: []string{"yield2"}},
		{name: "what yields is taken last", s: situation{workers: alive("a"), wanted: set("x", "a-yield", "b-yield"), max: 2}, take: []string{"x", "a-yield"}},
		{name: "and does not displace its like", s: situation{workers: alive("a"), wanted: set("a-yield", "b-yield"), mine: set("b-yield"), max: 1}},
		{name: "what another should have has its time before anything yields", s: situation{workers: alive("a", "b"), wanted: set(a+"yield", b), mine: set(a + "yield"), passedOver: map[string]proto.Claim{a + "yield": by("b", "1")}, freeSince: free(now, b), max: 1}, again: now.Add(10 * time.Second)},
	} {
		tc.s.self, tc.s.grace, tc.s.yields = "a", 10*time.Second, yields
		tc.s.owners = map[string]string{}
		for key := range tc.s.wanted {
			tc.s.owners[key] = preferred(key, staying(tc.s.workers))
		}
		d := decide(tc.s, now)
		if !slices.Equal(d.take, tc.take) || !slices.Equal(d.leave, tc.leave) || !slices.Equal(d.clear, tc.clear) || !d.again.Equal(tc.again) {
			t.Errorf("%s: %+v, want take %v, leave %v, clear %v, again %v", tc.name, d, tc.take, tc.leave, tc.clear, tc.again)
		}
	}
}

// TestWhoWasSlowGetsHisShare: a worker has all keys, because the other did not take its own in
// time. It keeps them for a while, and then leaves as many as it has too many, unless the other is
// full.
func TestWhoWasSlowGetsHisShare(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	workers := alive("a", "b")
	s := situation{
		self: "a", workers: workers, wanted: map[string]bool{}, claims: map[string]proto.Claim{}, mine: map[string]bool{}, passedOver: map[string]proto.Claim{},
		grace: 10 * time.Second, yields: func(string) bool { return false },
	}
	for i := range 80 {
		key := fmt.Sprint("key", i)
		s.wanted[key], s.mine[key] = true, true
	}
	s.owners = assign(s.wanted, staying(workers))
	passed := 0
	for key, to := range s.owners {
		if to == "b" {
			s.passedOver[key] = proto.Claim{Worker: "b", Incarnation: "1", Since: now}
			passed++
		}
	}
	if d := decide(s, now.Add(9*time.Second)); len(d.leave) != 0 {
		t.Errorf("%d keys are left at once", len(d.leave))
	}
	d := decide(s, now.Add(10*time.Second))
	if want := 80 - bound(80, 2); len(d.leave) != want || want > passed {
		t.Errorf("%d keys of %d are left, want %d", len(d.leave), passed, want)
	}
	for _, key := range d.leave {
		if s.owners[key] != "b" {
			t.Errorf("%s is left and prefers a", key)
		}
	}
	s.max = 80
	for i := range 80 {
		s.claims[fmt.Sprint("other", i)] = proto.Claim{Worker: "b", Incarnation: "1"}
	}
	if d := decide(s, now.Add(time.Minute)); len(d.leave) != 0 {
		t.Errorf("%d keys are left to a worker that is full", len(d.leave))
	}
}

func sorted(keys ...string) []string {
	slices.Sort(keys)
	return keys
}

// TestRendezvousIsEvenAndMovesLittle: keys spread over workers, and only those of a worker that
// goes find a new one.
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

// TestLoadIsBounded: nobody has more than 25% over the mean, or than it takes to share all out,
// however many workers and keys there are; and where nobody would, keys are where they prefer to
// be.
func TestLoadIsBounded(t *testing.T) {
	t.Parallel()
	over := 0
	for workers := 1; workers <= 9; workers++ {
		for _, n := range []int{0, 1, 2, 7, 40, 64, 200, 1000} {
			names, wanted := some("worker", workers), map[string]bool{}
			for _, key := range some("relay", n) {
				wanted[key] = true
			}
			load, unbounded := map[string]int{}, map[string]int{}
			for key, to := range assign(wanted, names) {
				load[to]++
				unbounded[preferred(key, names)]++
			}
			most, sum := max(n*5/(workers*4), (n+workers-1)/workers), 0
			for w, k := range load {
				if sum += k; k > most || !slices.Contains(names, w) {
					t.Errorf("%d keys, %d workers: %s has %d, more than %d", n, workers, w, k, most)
				}
			}
			if sum != n {
				t.Errorf("%d keys, %d workers: %d are shared out", n, workers, sum)
			}
			if slices.Max(append(slices.Collect(maps.Values(unbounded)), 0)) > most {
				over++
			} else if !maps.Equal(load, unbounded) {
				t.Errorf("%d keys, %d workers: %v, though nobody would have too many: %v", n, workers, load, unbounded)
			}
		}
	}
	if over < 10 {
		t.Errorf("the bound was reached %d times: the test needs more", over)
	}
	if len(assign(map[string]bool{"x": true}, nil)) != 0 {
		t.Error("a key belongs to somebody where there is nobody")
	}
}

// TestBoundMovesLittle: when a worker comes or goes, hardly any keys move but those that it takes
// or leaves; when a key comes or goes, next to none.
func TestBoundMovesLittle(t *testing.T) {
	t.Parallel()
	wanted := map[string]bool{}
	for _, key := range some("relay", 200) {
		wanted[key] = true
	}
	moved := func(a, b map[string]string) (n int) {
		for key, to := range a {
			if other, still := b[key]; still && other != to {
				n++
			}
		}
		return n
	}
	load := func(owners map[string]string, worker string) (n int) {
		for _, to := range owners {
			if to == worker {
				n++
			}
		}
		return n
	}
	for workers := 2; workers <= 8; workers++ {
		names := some("worker", workers)
		all := assign(wanted, names)
		if n := moved(all, assign(wanted, names[1:])); n > load(all, names[0])+200/20 {
			t.Errorf("%d of 200 keys move when one of %d workers goes", n, workers)
		}
		sum := 0
		for key := range wanted {
			fewer := maps.Clone(wanted)
			delete(fewer, key)
			sum += moved(all, assign(fewer, names))
		}
		if sum > 200 {
			t.Errorf("%d workers: %d keys move when one of 200 goes, on average", workers, sum/200)
		}
	}
}

// TestSharingFollows what is wanted and who is there.
func TestSharingFollows(t *testing.T) {
	t.Parallel()
	var s sharing
	wanted := map[string]bool{"x": true}
	if got := s.among(alive("a"), wanted); got["x"] != "a" {
		t.Errorf("alone: %v", got)
	}
	if got := s.among(alive("b"), wanted); got["x"] != "b" {
		t.Errorf("another worker: %v", got)
	}
	wanted["y"] = true
	s.owners = nil
	if got := s.among(alive("b"), wanted); got["y"] != "b" {
		t.Errorf("another key: %v", got)
	}
}

func some(what string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%d.example.com", what, i))
	}
	return names
}
