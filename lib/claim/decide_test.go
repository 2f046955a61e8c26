package claim

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"tendril.dev/proto"
)

func alive(names ...string) map[string]proto.Worker {
	workers := map[string]proto.Worker{}
	for _, n := range names {
		workers[n] = proto.Worker{Name: n, Working: true}
	}
	return workers
}

// without are these workers, of which one does not work yet, or not any more.
func without(name string, names ...string) map[string]proto.Worker {
	workers := alive(names...)
	workers[name] = proto.Worker{Name: name}
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
	set := func(keys ...string) map[string]bool {
		m := map[string]bool{}
		for _, k := range keys {
			m[k] = true
		}
		return m
	}
	held := func(key, worker string) map[string]claimed {
		return map[string]claimed{key: {Claim: proto.Claim{Worker: worker}}}
	}
	two := alive("a", "b")
	for _, tc := range []struct {
		name               string
		s                  situation
		take, leave, clear []string
	}{
		{"alone it takes everything", situation{workers: alive("a"), wanted: set(a, b)}, sorted(a, b), nil, nil},
		{"it takes only its own", situation{workers: two, wanted: set(a, b)}, []string{a}, nil, nil},
		{"it leaves what another holds", situation{workers: two, wanted: set(a), claims: held(a, "b")}, nil, nil, nil},
		{"a dead worker's claim is free", situation{workers: alive("a"), wanted: set(a), claims: held(a, "b")}, []string{a}, nil, nil},
		{"so is its own that it does not work on", situation{workers: two, wanted: set(a), claims: held(a, "a")}, []string{a}, nil, nil},
		{"a key that prefers a newcomer is left", situation{workers: two, wanted: set(a, b), mine: set(a, b)}, nil, []string{b}, nil},
		{"but not before the newcomer works", situation{workers: without("b", "a"), wanted: set(a, b), mine: set(a, b)}, nil, nil, nil},
		{"what prefers a worker that stops is taken", situation{workers: without("b", "a"), wanted: set(b)}, []string{b}, nil, nil},
		{"once that has let it go", situation{workers: without("b", "a"), wanted: set(b), claims: held(b, "b")}, nil, nil, nil},
		{"what is not wanted is left", situation{workers: alive("a"), wanted: set(a), mine: set(a, b)}, nil, []string{b}, nil},
		{"a dead claim that is not wanted is removed", situation{workers: two, claims: held(a, "c")}, nil, nil, []string{a}},
		{"so is its own that could not be let go", situation{workers: two, wanted: set(b), claims: held(b, "a")}, nil, nil, []string{b}},
		{"but not a live one", situation{workers: two, claims: held(a, "b")}, nil, nil, nil},
	} {
		tc.s.self = "a"
		d := decide(tc.s)
		if !slices.Equal(d.take, tc.take) || !slices.Equal(d.leave, tc.leave) || !slices.Equal(d.clear, tc.clear) {
			t.Errorf("%s: %+v, want take %v, leave %v, clear %v", tc.name, d, tc.take, tc.leave, tc.clear)
		}
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
	workers, count := some("pod", 4), map[string]int{}
	for _, key := range some("relay", 4000) {
		with := preferred(key, workers)
		count[with]++
		if without := preferred(key, workers[:3]); with != workers[3] && without != with {
			t.Fatalf("%s moved from %s to %s when the last worker went", key, with, without)
		}
	}
	for shard := range proto.Shards {
		count[preferred(proto.ShardName(shard), workers)+" shards"]++
	}
	for _, w := range workers {
		if n, shards := count[w], count[w+" shards"]; n < 850 || n > 1150 || shards < 6 || shards > 28 {
			t.Errorf("%s has %d of 4000 keys, %d of 64 shards", w, n, shards)
		}
	}
}

// TestLoadIsBounded: no worker has more than 25% over the mean, or than it takes to share all out,
// however many workers and keys there are; and where none would, keys are where they prefer to
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
			load, unbounded := map[string]int{"": 0}, map[string]int{"": 0}
			for key, to := range assign(wanted, alive(names...)) {
				load[to]++
				unbounded[preferred(key, names)]++
			}
			most, sum := max(n*5/(workers*4), (n+workers-1)/workers), 0
			for _, k := range load {
				sum += k
			}
			exceeds := slices.Max(slices.Collect(maps.Values(unbounded))) > most
			if exceeds {
				over++
			}
			if sum != n || slices.Max(slices.Collect(maps.Values(load))) > most || !exceeds && !maps.Equal(load, unbounded) {
				t.Errorf("%d keys, %d workers: %v, of which none may have more than %d; unbounded %v", n, workers, load, most, unbounded)
			}
		}
	}
	if over < 10 {
		t.Errorf("the bound was reached %d times: the test needs more", over)
	}
	if len(assign(map[string]bool{"x": true}, nil)) != 0 {
		t.Error("a key belongs to a worker where there is none")
	}
}

func some(what string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%d.example.com", what, i))
	}
	return names
}
