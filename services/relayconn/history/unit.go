package history

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/services/relayconn/wire"
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
	// mostSplits is how often the time of a search is halved.
	mostSplits = 200
	// A search may take so many messages, for each piece of time, and one more for each so many
	// events that the relay has and that are not known here.
	mostSaid, namedBySaid = 256, 64
	// mostOfOne is how many events that are not known here a relay may name of one filter.
	mostOfOne = 1_000_000
	// mostRefused is how often a relay may refuse the only session.
	mostRefused = 3
	// beginning is about when nostr began, in seconds. What is said to be older is cut off as one
	// piece, and shortest is the shortest piece.
	beginning, shortest nostr.Timestamp = 1_604_188_800, 3600
)

// span is a time, both ends included; nil: no bound.
type span struct{ Since, Until *nostr.Timestamp }

// of narrows a filter to the span.
func (s span) of(f nostr.Filter) nostr.Filter {
	f.Since, f.Until = s.Since, s.Until
	return f
}

// unit is several groups of filters, each of which would be one REQ, that are reconciled together:
// the first filters of all groups in one session, the second ones in another, and so on.
type unit struct {
	batch      *batch
	groups     [][]nostr.Filter
	late       bool       // other connections have been asked for the same before
	everything bool       // one session about everything that the relay has stands for them
	ids        [][32]byte // that are missing of that
	waitBy     time.Time  // how long it waits for other connections
	left       int        // searches that have not ended
	spans      [][]span   // of each search: the times to be asked for by REQ
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
		_, of := byTag(f)
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
		tag, _ := byTag(f)
		other, _ := byTag(g)
		return tag != "" && tag == other
	})
}

// byTag returns the tag of a filter that is by one tag alone; "": it is not.
func byTag(f nostr.Filter) (tag string, values []string) {
	if len(f.Tags) != 1 || f.IDs != nil || f.Kinds != nil || f.Authors != nil || f.Since != nil || f.Until != nil || f.Search != "" {
		return "", nil
	}
	for tag, values = range f.Tags {
		return tag, values
	}
	return "", nil
}

// searches begins with a unit: a search for each of its filters.
func (u *unit) searches(seq uint64) (all []*search) {
	filters := []nostr.Filter{{}}
	if !u.everything {
		filters = slices.Clone(u.groups[0])
	}
	if len(u.groups) > 1 && !u.everything {
		for i := range filters {
			tag, _ := byTag(filters[i])
			var values []string
			for _, group := range u.groups {
				values = append(values, group[i].Tags[tag]...)
			}
			filters[i].Tags = nostr.TagMap{tag: values}
		}
	}
	u.left, u.spans = len(filters), make([][]span, len(filters))
	for n, f := range filters {
		all = append(all, &search{unit: u, n: n, filter: f, seq: seq, pieces: []span{{f.Since, f.Until}}})
	}
	return all
}

// unknown reports whether all of all filters must be asked for by REQ.
func (u *unit) unknown() bool {
	return !slices.ContainsFunc(u.spans, func(spans []span) bool { return len(spans) != 1 || spans[0] != span{} })
}

// walks are the filters to be asked for by REQ, each for its own times, the filters of a group
// together.
func (u *unit) walks() (walks [][]nostr.Filter) {
	most := 0
	for _, spans := range u.spans {
		most = max(most, len(spans))
	}
	for i := range most {
		for _, group := range u.groups {
			var filters []nostr.Filter
			for n, f := range group {
				if i < len(u.spans[n]) {
					filters = append(filters, u.spans[n][i].of(f))
				}
			}
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
	turn    int    // counts in the order in which sessions were opened
	asked   time.Time
	splits  int
	refused int    // how often the relay took no session though none was open
	said    int    // messages
	bytes   int    // of all messages, both ways
	named   int    // events that the relay has named, each once
	here    uint64 // events known here
	alone   uint64 // of these, those that the relay has turned out to lack
	dropped bool   // there was no room for some of those of the piece that is next
}

func (x *search) piece() span { return x.pieces[len(x.pieces)-1] }

// rest is all that is left, as one span.
func (x *search) rest() span { return span{Since: x.pieces[0].Since, Until: x.piece().Until} }

// session is the question for ingest.
func (x *search) session() query.Reconciliation {
	return query.Reconciliation{Filter: x.piece().of(x.filter), Seq: x.seq}
}

// byREQ notes a time to be asked for by REQ.
func (x *search) byREQ(s span) { x.unit.spans[x.n] = append(x.unit.spans[x.n], s) }

// takes takes ids that are missing.
func (x *search) takes(h *History, ids [][32]byte) {
	if x.unit.everything {
		x.unit.ids = append(x.unit.ids, ids...)
		return
	}
	fresh, dropped := h.name(x.unit.batch, ids)
	x.named += fresh
	x.dropped = x.dropped || dropped
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

// pieceDone ends the piece that is next, or has it begin once more if there was no room for all
// that was missing. It reports whether anything is left.
func (x *search) pieceDone() (more bool) {
	if !x.dropped {
		x.pieces = x.pieces[:len(x.pieces)-1]
	}
	x.state, x.message, x.dropped = waiting, nil, false
	return len(x.pieces) > 0
}

// halve cuts the piece that is next in two, because it has too many events for one side; false: it
// is small enough for that not to help. Both halves have the second at which it is cut, because
// there are relays that take since for the moment after which, not from which, events are wanted.
func (x *search) halve(now nostr.Timestamp) bool {
	whole := x.piece()
	from, to := nostr.Timestamp(0), now
	if whole.Since != nil {
		from = *whole.Since
	}
	if whole.Until != nil {
		to = *whole.Until
	}
	if from < beginning && to > beginning {
		from = beginning
	}
	if x.splits >= mostSplits || to-from < shortest {
		return false
	}
	x.splits++
	cut := from + (to-from)/2
	x.pieces = append(x.pieces[:len(x.pieces)-1:len(x.pieces)-1], span{whole.Since, &cut}, span{&cut, whole.Until})
	x.state, x.message, x.dropped = waiting, nil, false
	return true
}

// refusal is what a relay means that does not go on with a session.
type refusal int

const (
	unable    refusal = iota // it does not reconcile, or not with us
	tooMany                  // too many events match the filter
	fewer                    // too many sessions are open
	quiet                    // we ask too much
	forgotten                // the session
	unproved                 // we have not authenticated
)

var (
	sessions   = regexp.MustCompile(`(?i)too many (concurrent|subscriptions|sessions|neg)|maximum concurrent`)
	events     = regexp.MustCompile(`(?i)too (many|big|large|broad)`)
	negentropy = regexp.MustCompile(`(?i)negentropy|neg-|neg request|nip-?77`)
	confused   = regexp.MustCompile(`(?i)unknown|unrecogni|unsupported|not supported|parse|bad msg|unexpected|invalid message|command`)
)

// refusalOf reads the reason of a NEG-ERR or CLOSED. NIP-77 has the prefixes `blocked:` and
// `closed:`; the rest are words of strfry, khatru and our own.
func refusalOf(reason string) refusal {
	switch {
	case wire.WantsProof(reason):
		return unproved
	case wire.WantsQuiet(reason):
		return quiet
	case wantsFewer(reason):
		return fewer
	case events.MatchString(reason):
		return tooMany
	case strings.HasPrefix(strings.ToLower(reason), "closed"):
		return forgotten
	}
	return unable
}

func wantsFewer(text string) bool { return sessions.MatchString(text) }

// concerns reports whether a NOTICE is about NIP-77.
func concerns(text string) bool { return negentropy.MatchString(text) }

// notUnderstood reports whether a NOTICE says that a message was none that the relay knows.
func notUnderstood(text string) bool { return confused.MatchString(text) }
