package claim

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"

	"tendril.dev/proto"
)

// situation is all that the decision about claims depends on.
type situation struct {
	self    string                  // worker's name
	workers map[string]proto.Worker // live, by name, self among them
	claims  map[string]claimed      // as the bucket has them, dead workers' too
	wanted  map[string]bool         // keys that should be worked on
	mine    map[string]bool         // keys that this worker works on
	ended   map[string]bool         // keys of vanished claims whose work has certainly ended
}

// decision is what to do now. clear are claims that keep other workers from a key, or that would
// stay for good: own ones that could not be let go, and those of dead workers on keys that are not
// wanted.
type decision struct {
	take, leave, clear []string
}

// decide takes the free keys that this worker should have, and leaves those that it should not.
// All workers that know the same workers and keys agree on who should have which.
func decide(s situation) (d decision) {
	owners := assign(s.wanted, s.workers)
	for _, key := range slices.Sorted(maps.Keys(s.mine)) {
		if owners[key] != s.self {
			d.leave = append(d.leave, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.wanted)) {
		if owners[key] == s.self && !s.mine[key] && !s.heldByOther(key) {
			d.take = append(d.take, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.claims)) {
		useless := !s.wanted[key] || s.claims[key].Worker == s.self && owners[key] != s.self
		if useless && !s.mine[key] && !s.heldByOther(key) {
			d.clear = append(d.clear, key)
		}
	}
	return d
}

// heldByOther reports whether another live worker has claimed the key. A claim of this worker
// itself that it does not work on does not count: it could not be let go, or the answer to it was
// lost.
func (s situation) heldByOther(key string) bool {
	c, claimed := s.claims[key]
	switch {
	case !claimed || c.Worker == s.self:
		return false
	case c.vanished:
		return !s.ended[key]
	}
	return c.by(s.workers[c.Worker])
}

// assign says which worker should have each wanted key: the one that the key prefers, unless that
// has its share already; then the next. Workers that do not work yet, or not any more, get none.
func assign(wanted map[string]bool, workers map[string]proto.Worker) map[string]string {
	var room []string
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		if workers[name].Working {
			room = append(room, name)
		}
	}
	owners, load := make(map[string]string, len(wanted)), map[string]int{}
	if len(room) == 0 {
		return owners
	}
	most := bound(len(wanted), len(room))
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		to := preferred(key, room)
		owners[key] = to
		if load[to]++; load[to] == most {
			room = slices.DeleteFunc(room, func(name string) bool { return name == to })
		}
	}
	return owners
}

// bound is how many of the keys one of the workers should have at most: 25% over the mean, and
// never fewer than it takes to share them all out.
func bound(keys, workers int) int { return max(keys*5/(workers*4), (keys+workers-1)/workers) }

// preferred is the worker with the highest hash for the key (rendezvous hashing): when a worker
// comes or goes, only its own keys move.
func preferred(key string, workers []string) string {
	return slices.MaxFunc(workers, func(a, b string) int {
		return cmp.Compare(xxhash.Sum64String(a+"\x00"+key), xxhash.Sum64String(b+"\x00"+key))
	})
}
