package history

import (
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
)

const (
	// mostValues and mostBytes bound the filter of one session. strfry takes less than 64 KiB of
	// values in a filter, and messages of 128 KiB. besides is what a message has beside the values.
	mostValues, mostBytes, besides = 1000, 65_000, 8192
	// worthEverything is how many bytes filters have at least for one session about everything that
	// the relay has to be tried in place of one for each thousand values. It takes a few hundred
	// bytes where little is missing here, and is given up when it takes an eighth of the filters,
	// or when too many events are missing.
	worthEverything, everythingSaves = 64 << 10, 8
	// mostSplits is how often the time of a search is halved, and shortest the shortest piece.
	mostSplits, shortest = 200, 3600
	// A search may take so many messages, for each piece of time, and one more for each so many
	// events that the relay has and that are not known here.
	mostSaid, namedBySaid = 256, 64
	// mostOfOne is how many events that are not known here a relay may name of one filter.
	mostOfOne = 1_000_000
)

// span is a time, both ends included; nil: no bound.
type span struct{ since, until *nostr.Timestamp }

// unit is several groups of filters, each of which would be one REQ, that are reconciled together:
// the first filters of all groups in one session, the second ones in another, and so on.
type unit struct {
	batch      *batch
	groups     [][]nostr.Filter
	everything bool       // one session about everything that the relay has stands for them
	ids        [][32]byte // that are missing of that
	left       int        // searches that have not ended
	byREQ      []bool     // of each search: it must be asked for by REQ
}

// unitsOf puts groups together that follow each other and ask by the same tags and by nothing else.
// A relay takes messages of so many bytes.
func unitsOf(groups [][]nostr.Filter, message int) (units [][][]nostr.Filter) {
	most := min(mostBytes, message-besides)
	begin, values, bytes := 0, 0, 0
	for i, group := range groups {
		n, size := measure(group)
		if i > begin && (!alike(groups[begin], group) || values+n > mostValues || bytes+size > most) {
			units = append(units, groups[begin:i:i])
			begin, values, bytes = i, 0, 0
		}
		values, bytes = values+n, bytes+size
	}
	return append(units, groups[begin:])
}

// measure returns how many values the largest filter of a group by tags has, and their bytes.
func measure(group []nostr.Filter) (values, bytes int) {
	for _, f := range group {
		_, of, _ := onlyTag(f)
		size := 0
		for _, v := range of {
			size += len(v)
		}
		values, bytes = max(values, len(of)), max(bytes, size)
	}
	return values, bytes
}

// alike reports whether two groups ask by the same tags in the same order, and by nothing else.
func alike(a, b []nostr.Filter) bool {
	return slices.EqualFunc(a, b, func(f, g nostr.Filter) bool {
		tag, _, ok := onlyTag(f)
		other, _, both := onlyTag(g)
		return ok && both && tag == other
	})
}

// searches begins with a unit: a search for each of its filters.
func (u *unit) searches(seq uint64) (all []*search) {
	filters := []nostr.Filter{{}}
	if !u.everything {
		filters = slices.Clone(u.groups[0])
	}
	if len(u.groups) > 1 && !u.everything {
		for i := range filters {
			tag, _, _ := onlyTag(filters[i])
			var values []string
			for _, group := range u.groups {
				values = append(values, group[i].Tags[tag]...)
			}
			filters[i].Tags = nostr.TagMap{tag: values}
		}
	}
	u.left, u.byREQ = len(filters), make([]bool, len(filters))
	for n, f := range filters {
		all = append(all, &search{unit: u, n: n, filter: f, seq: seq, pieces: []span{{}}})
	}
	return all
}

// walks are the filters to be asked for by REQ, those of a group together.
func (u *unit) walks() (walks [][]nostr.Filter) {
	for _, group := range u.groups {
		var filters []nostr.Filter
		for n, f := range group {
			if u.byREQ[n] {
				filters = append(filters, f)
			}
		}
		if len(filters) > 0 {
			walks = append(walks, filters)
		}
	}
	return walks
}

// state is where a search stands.
type state int

const (
	waiting state = iota // for its turn
	asking               // ingest has been asked what to say
	ready                // to say it
	said                 // to the relay, which has to answer
)

// search finds out what a relay has of one filter, in one session for each piece of time.
type search struct {
	unit    *unit
	n       int // of the filter in its unit
	filter  nostr.Filter
	pieces  []span // that are left and follow each other, the oldest first. The last one is next
	seq     uint64 // of the log, when it began
	state   state
	ended   bool
	id      string // of the session at the relay; empty: none is open
	fresh   bool   // which has not been answered
	message []byte // what to say, or was said last; every message says all that is in question
	asked   time.Time
	splits  int
	refused int    // how often the relay took no session though none was open
	said    int    // messages
	bytes   int    // of all messages, both ways
	named   int    // events that the relay has named, each once
	here    uint64 // events known here
	alone   uint64 // of these, those that the relay has turned out to lack
}

// question is what ingest is asked about.
func (x *search) question() query.Reconciliation {
	f, piece := x.filter, x.pieces[len(x.pieces)-1]
	f.Since, f.Until = piece.since, piece.until
	return query.Reconciliation{Filter: f, Seq: x.seq}
}

// tooMuch reports whether a session about everything is not worth it. A relay that lacks much of
// what is known here may not show all that it has.
func (x *search) tooMuch() bool {
	return x.unit.everything && (x.bytes > size(x.unit.groups)/everythingSaves || len(x.unit.ids) > fullAt || x.alone > x.here/everythingSaves)
}

// endless reports whether the relay draws a search out.
func (x *search) endless() bool {
	return x.said > mostSaid*(1+x.splits)+x.named/namedBySaid || x.named > mostOfOne
}

// next begins with the next piece of time, and reports whether there is one.
func (x *search) next() bool {
	x.pieces = x.pieces[:len(x.pieces)-1]
	x.state, x.message = waiting, nil
	return len(x.pieces) > 0
}

// halve cuts the piece that is next in two, because it has too many events for one side; false: it
// is small enough for that not to help. Both halves have the second at which it is cut, because
// there are relays that take since for the moment after which, not from which, events are wanted.
func (x *search) halve(now nostr.Timestamp) bool {
	whole := x.pieces[len(x.pieces)-1]
	from, to := nostr.Timestamp(0), now
	if whole.since != nil {
		from = *whole.since
	}
	if whole.until != nil {
		to = *whole.until
	}
	if from < beginning && to > beginning {
		from = beginning
	}
	if x.splits >= mostSplits || to-from < shortest {
		return false
	}
	x.splits++
	cut := from + (to-from)/2
	x.pieces = append(x.pieces[:len(x.pieces)-1:len(x.pieces)-1], span{whole.since, &cut}, span{&cut, whole.until})
	x.state, x.message = waiting, nil
	return true
}
