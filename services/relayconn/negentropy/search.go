package negentropy

import (
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/query"
)

// Owner is who wants to know what a relay has of a filter. Its methods are called by the goroutine
// that owns the set of sessions.
type Owner interface {
	// Missing takes the ids of events that the relay has and that are not known here, to fetch
	// them. It returns how many of them were new to it, and how many it had no room for. These are
	// found again by another session.
	Missing(ids [][32]byte) (fresh, dropped int)
	// Ask says that a span of time must be asked for by REQ, because nothing of it is known here
	// or because the relay does not reconcile it.
	Ask(span Span)
	// Settled says that all was said. It is called once, last.
	Settled()
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
	filter  nostr.Filter
	owner   Owner
	pieces  plan
	seq     uint64 // of the log, when it began
	state   state
	ended   bool
	id      string // of the session at the relay; empty: none is open
	message []byte // what to say, or was said last; every message says all that is in question
	turn    int    // counts in the order in which sessions were opened
	asked   time.Time
	wide    *Wide // nil: it is about one filter

	// Of the piece that is next.
	rounds  int // messages that the relay has answered
	named   int // events that it has named, each once
	opened  int // sessions
	dropped bool
	// Of all pieces.
	answers int // of the relay
	total   int // events that it has named
	repeats int // pieces begun once more because there was no room for all that was missing
}

// Bounds of a search, which is a stranger's to draw out.
const (
	// Of one piece: so many messages, and one more for each so many events that the relay has and
	// that are not known here. A relay that sends small messages still names many more in each.
	mostRounds   = 256
	namedByRound = 64
	// mostOpened is how many sessions a piece may take, because the relay forgets them or there was
	// no room.
	mostOpened = 16
	// mostNamed is how many events that are not known here a relay may name of one filter.
	mostNamed = 1_000_000
	// mostRepeats is how often pieces are begun once more.
	mostRepeats = 200
)

func newSearch(f nostr.Filter, owner Owner, seq uint64) *search {
	return &search{filter: f, owner: owner, seq: seq, pieces: plan{{Span: Span{Since: f.Since, Until: f.Until}}}}
}

// session is the question for ingest.
func (x *search) session() query.Reconciliation {
	return query.Reconciliation{Filter: x.pieces.next().of(x.filter), Seq: x.seq}
}

// afresh begins with the piece that is next.
func (x *search) afresh() {
	x.state, x.message = waiting, nil
	x.rounds, x.named, x.opened, x.dropped = 0, 0, 0, false
}

// endless reports whether the relay has drawn a piece out, or the search.
func (x *search) endless() bool {
	return x.rounds > mostRounds+x.named/namedByRound || x.opened > mostOpened || x.total > mostNamed || x.repeats > mostRepeats
}

// took notes ids that were missing.
func (x *search) took(fresh, dropped int) {
	x.named += fresh
	x.total += fresh
	x.dropped = x.dropped || dropped > 0
}

// pieceDone ends the piece that is next, or has it begin once more if there was no room for all
// that was missing. It reports whether anything is left.
func (x *search) pieceDone() (more bool) {
	if x.dropped {
		x.repeats++
	} else {
		x.pieces = x.pieces.done()
	}
	x.afresh()
	return len(x.pieces) > 0
}
