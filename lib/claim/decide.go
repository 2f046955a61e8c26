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
	// freeSince is since when a wanted key has been without a live holder, as far as this worker saw.
	freeSince map[string]time.Time
	// passedOver is whom a key that this worker holds would have belonged to, and who did not take it in time: worker and incarnation.
	passedOver map[string]proto.Claim
	grace      time.Duration
	max        int
	yields     func(key string) bool
}

// decision is what to do now, and when to look again though nothing happened (zero: no need).
type decision struct {
	take, leave []string
	again       time.Time
}

// decide shares out keys: a worker takes the free keys that prefer it, and those that nobody has
// taken for the grace time, because the preferred worker is full or does not want them. It leaves
// keys that are no longer wanted, and those that prefer a worker that came later. A full worker
// leaves a key that yields for a free one that does not; it takes that once the other's work has
// ended.
func decide(s situation, now time.Time) decision {
	var d decision
	names := slices.Sorted(maps.Keys(s.workers))
	var yielding []string // of those that are kept
	room := math.MaxInt
	if s.max > 0 {
		room = s.max
	}
	for _, key := range slices.Sorted(maps.Keys(s.mine)) {
		to := preferred(key, names)
		switch passed := s.passedOver[key]; {
		case !s.wanted[key]:
			d.leave = append(d.leave, key)
		case to != s.self && to != "" && (passed.Worker != to || passed.Incarnation != s.workers[to].Incarnation):
			d.leave = append(d.leave, key)
		default:
			room--
			if s.yields(key) {
				yielding = append(yielding, key)
			}
		}
	}
	for _, key := range s.free() {
		if room <= 0 && (len(yielding) == 0 || s.yields(key)) {
			break // and so do all behind it
		}
		if preferred(key, names) != s.self {
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
	return d
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

// heldByOther says whether another live worker has claimed the key. A claim by this worker itself that it does not work on keeps nobody from the
// key: it could not be let go, or was taken without our hearing of it, while the bus was away.
func (s situation) heldByOther(key string) bool {
	c, claimed := s.claims[key]
	w, alive := s.workers[c.Worker]
	return claimed && alive && w.Incarnation == c.Incarnation && c.Worker != s.self
}

// preferred is the worker with the highest hash for the key (rendezvous hashing): when a worker comes or goes, only its own keys move.
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

// mix spreads FNV's last bytes over all bits (the finalizer of splitmix64): without it, keys that differ only at their end favour one worker.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
