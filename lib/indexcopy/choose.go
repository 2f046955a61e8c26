package indexcopy

import (
	"cmp"
	"slices"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

const (
	// Worth is by how many sequences a copy must be ahead of what a process has itself: reading so
	// many takes about as long as a copy takes to begin.
	Worth = 50_000
	// readRate is how many sequences of the log a process reads and applies in a second, about.
	readRate = 20_000
	// patienceLeast and patienceMost bound how long is waited for a copy, before the log is read.
	patienceLeast = 5 * time.Second
	patienceMost  = 5 * time.Minute
)

// offer is what a replica can give, and as whom it answered.
type offer struct {
	proto.IndexOffer
	user string
	rank int // the place of user among those who are asked
}

// want is what a process that starts has, and needs.
type want struct {
	log   string // which log its index is bound to
	seq   uint64 // up to which it holds that
	head  uint64 // of the log
	worth uint64 // by how many sequences a copy must be ahead
}

// choose returns the offers that are worth it, the best first: who is free, who is asked first, who
// has most. What somebody has that is asked first but is far behind comes after the others.
func choose(offers []offer, w want) []offer {
	most := uint64(0)
	good := slices.DeleteFunc(slices.Clone(offers), func(o offer) bool {
		bad := o.Log != w.log || o.Format != eventdb.Format || o.Seq < w.seq || o.Seq-w.seq < w.worth
		if !bad {
			most = max(most, o.Seq)
		}
		return bad
	})
	behind := func(o offer) uint64 { return (most - o.Seq) / max(w.worth, 1) }
	slices.SortStableFunc(good, func(a, b offer) int {
		return cmp.Or(compareBool(a.Busy, b.Busy), cmp.Compare(behind(a), behind(b)), cmp.Compare(a.rank, b.rank), cmp.Compare(b.Seq, a.Seq))
	})
	return good
}

// best reports whether no other offer can be better by more than does not matter.
func (o offer) best(w want) bool {
	return o.rank == 0 && !o.Busy && missing(o.Seq, w.head, w.head) < w.worth && len(choose([]offer{o}, w)) > 0
}

// compareBool puts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// missing is about how many messages of the log a process lacks that has it up to seq: sequences
// whose messages are gone need not be read.
func missing(seq, head, messages uint64) uint64 {
	if seq >= head {
		return 0
	}
	return min(head-seq, messages)
}

// patience is how long is waited for a copy in place of reading so many messages: as long as that
// would take, about.
func patience(messages uint64) time.Duration {
	seconds := min(messages/readRate, uint64(patienceMost/time.Second))
	return max(time.Duration(seconds)*time.Second, patienceLeast)
}

// most is how many bytes the index of a log of so many bytes may have: some indexes are larger than
// their log, when files of theirs wait to be merged.
func most(logBytes uint64) int64 {
	const least, times = 256 << 20, 4
	return least + times*int64(min(logBytes, 1<<60))
}
