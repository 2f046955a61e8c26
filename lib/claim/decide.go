package claim

import (
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"time"

	"tendril.dev/proto"
)

// situation is all that the decision about claims depends on.
type situation struct {
	self    string                  // worker's name
	workers map[string]proto.Worker // alive, by name, self among them
	claims  map[string]proto.Claim  // as the bucket has them, dead workers' too
	wanted  map[string]bool         // keys that should be worked on by someone
	mine    map[string]bool         // keys that this worker works on
	owners  map[string]string       // who of the workers should have each wanted key: assign
	// freeSince is since when a wanted key has been without a live holder, as far as this worker
	// saw.
	freeSince map[string]time.Time
	// passedOver is whom a key that this worker holds would have belonged to, and who did not take
	// it in time: worker, incarnation, and since when this worker has it instead.
	passedOver map[string]proto.Claim
	// deadSince is since when a claim has been there that no live worker has, on a key that nobody
	// wants, as far as this worker saw.
	deadSince map[string]time.Time
	grace     time.Duration
	max       int
	yields    func(key string) bool
}

// decision is what to do now, and when to look again though nothing happened (zero: no need).
type decision struct {
	take, leave []string
	clear       []string // claims to be removed
	again       time.Time
}

// decide shares out keys: a worker takes the free keys that it should have, and those that nobody
// has taken for the grace time, because the worker that should is full or does not want them. It
// leaves keys that are no longer wanted, and those that another should have by now. A full worker
// leaves a key that yields for a free one that does not; it takes that once the other's work has
// ended.
func decide(s situation, now time.Time) decision {
	var d decision
	var yielding []string // of those that are kept
	var others []string   // of those: keys that another let lie
	kept := 0
	room := math.MaxInt
	if s.max > 0 {
		room = s.max
	}
	for _, key := range slices.Sorted(maps.Keys(s.mine)) {
		to := s.owners[key]
		switch passed := s.passedOver[key]; {
		case !s.wanted[key]:
			d.leave = append(d.leave, key)
		case to != s.self && to != "" && (passed.Worker != to || passed.Incarnation != s.workers[to].Incarnation):
			d.leave = append(d.leave, key)
		default:
			room--
			kept++
			if s.yields(key) {
				yielding = append(yielding, key)
			}
			if to != s.self && to != "" {
				others = append(others, key)
			}
		}
	}
	d.leave = append(d.leave, s.tooMany(others, kept, now)...)
	for _, key := range s.free() {
		if room <= 0 && (len(yielding) == 0 || s.yields(key)) {
			break // and so do all behind it
		}
		if s.owners[key] != s.self {
			if at := s.freeSince[key].Add(s.grace); now.Before(at) {
				if d.again.IsZero() || at.Before(d.again) {
					d.again = at
				}
				continue
			}
		}
		if room > 0 {
			d.take = append(d.take, key)
			room--
			continue
		}
		last := len(yielding) - 1
		d.leave = append(d.leave, yielding[last])
		yielding = yielding[:last]
	}
	d.clear = s.dead(now)
	return d
}

// tooMany are those of the kept keys to be left, because this worker has more than its
// share by what others let lie: they may only have been slow. Who has let a key lie is given time
// before it is tried again, and nobody is given one who is full.
func (s situation) tooMany(others []string, kept int, now time.Time) (leave []string) {
	names := staying(s.workers)
	if len(others) == 0 || len(names) == 0 {
		return nil
	}
	most := bound(len(s.wanted), len(names))
	if kept <= most {
		return nil
	}
	load := map[string]int{}
	for key, c := range s.claims {
		if s.heldByOther(key) {
			load[c.Worker]++
		}
	}
	for _, key := range others {
		to := s.owners[key]
		full := load[to] >= most || s.max > 0 && load[to] >= s.max
		if kept <= most || full || now.Before(s.passedOver[key].Since.Add(s.grace)) {
			continue
		}
		leave = append(leave, key)
		load[to]++
		kept--
	}
	return leave
}

// dead are the claims that this worker is to remove: their workers have died, and nobody has wanted
// their keys for the grace time, so that nobody else ever writes there again.
func (s situation) dead(now time.Time) (keys []string) {
	var names []string
	for _, key := range slices.Sorted(maps.Keys(s.deadSince)) {
		if now.Before(s.deadSince[key].Add(s.grace)) {
			continue
		}
		if names == nil {
			names = staying(s.workers)
		}
		if preferred(key, names) == s.self {
			keys = append(keys, key)
		}
	}
	return keys
}

// abandoned reports whether a claim is one that nobody needs.
func (s situation) abandoned(key string) bool {
	return !s.wanted[key] && !s.mine[key] && !s.heldByOther(key)
}

// free are the wanted keys that no live worker has, those that yield at the end.
func (s situation) free() []string {
	var first, last []string
	for _, key := range slices.Sorted(maps.Keys(s.wanted)) {
		switch {
		case s.mine[key] || s.heldByOther(key):
		case s.yields(key):
			last = append(last, key)
		default:
			first = append(first, key)
		}
	}
	return append(first, last...)
}

// heldByOther reports whether another live worker has claimed the key. A claim by this worker
// itself that it does not work on keeps nobody from the key: it could not be let go, or was taken
// without our hearing of it, while the bus was away.
func (s situation) heldByOther(key string) bool {
	c, claimed := s.claims[key]
	w, alive := s.workers[c.Worker]
	return claimed && alive && w.Incarnation == c.Incarnation && c.Worker != s.self
}

// assign says which of the workers should have each wanted key: the one that the key prefers,
// unless that has as many as anybody may; then the next. Everybody who knows the same workers and
// keys says the same.
func assign(wanted map[string]bool, workers []string) map[string]string {
	owners := make(map[string]string, len(wanted))
	if len(workers) == 0 {
		return owners
	}
	load, most := map[string]int{}, bound(len(wanted), len(workers))
	room := slices.Sorted(slices.Values(workers))
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		to := preferred(key, room)
		owners[key] = to
		if load[to]++; load[to] == most {
			room = slices.DeleteFunc(room, func(w string) bool { return w == to })
		}
	}
	return owners
}

// bound is how many of the keys one of the workers has at most: 25% over the mean, and never fewer
// than it takes to share them all out.
func bound(keys, workers int) int {
	return max(keys*5/(workers*4), (keys+workers-1)/workers)
}

// sharing keeps what assign said for as long as workers and keys are the same: there may be
// thousands of keys, and it is asked for whenever anything happens.
type sharing struct {
	workers []string
	owners  map[string]string // nil: what is wanted has changed
}

// among returns which of the workers should have each wanted key.
func (s *sharing) among(workers map[string]proto.Worker, wanted map[string]bool) map[string]string {
	names := staying(workers)
	if s.owners == nil || !slices.Equal(names, s.workers) {
		s.workers, s.owners = names, assign(wanted, names)
	}
	return s.owners
}

// staying are the names of the workers that keys may go to, sorted: those that are not leaving.
func staying(workers map[string]proto.Worker) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		if !workers[name].Leaving {
			names = append(names, name)
		}
	}
	return names
}

// preferred is the worker with the highest hash for the key (rendezvous hashing): when a worker
// comes or goes, only its own keys move.
func preferred(key string, workers []string) string {
	best, highest := "", uint64(0)
	for _, w := range workers {
		h := fnv.New64a()
		h.Write([]byte(w))
		h.Write([]byte{0})
		h.Write([]byte(key))
		if score := mix(h.Sum64()); best == "" || score > highest {
			best, highest = w, score
		}
	}
	return best
}

// mix spreads FNV's last bytes over all bits (the finalizer of splitmix64): without it, keys that
// differ only at their end favour one worker.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
