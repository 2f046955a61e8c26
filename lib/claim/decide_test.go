package claim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

func alive(names ...string) map[string]proto.Worker {
	workers := map[string]proto.Worker{}
	for _, n := range names {
		workers[n] = proto.Worker{Name: n, Working: true}
	}
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

// TestDecide: the worker a decides. A and B are keys that prefer a and b. Of each situation it says
// the workers ("-": does not work yet, or not any more), the keys that are wanted, who has claimed
// which, what a works on; and then what a takes, leaves and clears.
func TestDecide(t *testing.T) {
	t.Parallel()
	keys := strings.NewReplacer("A", keyFor(t, "a", "a", "b"), "B", keyFor(t, "b", "a", "b"))
	for _, row := range fixture.Rows(keys.Replace(`
		alone it takes everything                  | a    | A B |     |     | A B |   |
		it takes only its own                      | a b  | A B |     |     | A   |   |
		it leaves what another holds               | a b  | A   | A:b |     |     |   |
		a dead worker's claim is free              | a    | A   | A:b |     | A   |   |
		so is its own that it does not work on     | a b  | A   | A:a |     | A   |   |
		a key that prefers a newcomer is left      | a b  | A B |     | A B |     | B |
		but not before the newcomer works          | a b- | A B |     | A B |     |   |
		what prefers a worker that stops is taken  | a b- | B   |     |     | B   |   |
		once that has let it go                    | a b- | B   | B:b |     |     |   |
		what is not wanted is left                 | a    | A   |     | A B |     | B |
		a dead claim that is not wanted is removed | a b  |     | A:c |     |     |   | A
		so is its own that could not be let go     | a b  | B   | B:a |     |     |   | B
		but not a live one                         | a b  |     | A:b |     |     |   |`)) {
		var fields [7][]string
		for i, text := range row[1:] {
			fields[i] = slices.Sorted(strings.FieldsSeq(text))
		}
		s := situation{self: "a", workers: map[string]proto.Worker{}, wanted: map[string]bool{}, claims: map[string]claimed{}, mine: map[string]bool{}}
		for _, w := range fields[0] {
			w, idle := strings.CutSuffix(w, "-")
			s.workers[w] = proto.Worker{Name: w, Working: !idle}
		}
		for _, key := range fields[1] {
			s.wanted[key] = true
		}
		for _, c := range fields[2] {
			key, worker, _ := strings.Cut(c, ":")
			s.claims[key] = claimed{Claim: proto.Claim{Worker: worker}}
		}
		for _, key := range fields[3] {
			s.mine[key] = true
		}
		if d := decide(s); !slices.Equal(d.take, fields[4]) || !slices.Equal(d.leave, fields[5]) || !slices.Equal(d.clear, fields[6]) {
			t.Errorf("%s: %+v, want to take, leave and clear %v", row[0], d, fields[4:])
		}
	}
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
