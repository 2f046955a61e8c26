package proto

import (
	"encoding/json"

	"github.com/nbd-wtf/go-nostr"
)

// Bounds of the questions about accepted events, and of their answers.
const (
	// MaxQueriedFilters is how many filters one [EventsQuery] may have.
	MaxQueriedFilters = 200
	// MaxQueriedBytes and MaxQueriedIDs are how much one [EventsAnswer] brings: of events so many
	// bytes or a single larger one, of ids alone so many.
	MaxQueriedBytes = 256 << 10
	MaxQueriedIDs   = 8000
)

// EventsQuery asks grasp.query.events for the accepted events that match filters, one filter after
// the other, of each newest first and by id among equals, one page at a time. Nothing is kept
// between two pages, so that each may be answered by another replica.
type EventsQuery struct {
	Filters []nostr.Filter `json:"filters"` // at most MaxQueriedFilters
	// Seq is the sequence of the log that the replica must have applied before it answers. One that
	// has not, and does not soon, answers [QueryBehind].
	Seq uint64 `json:"seq,omitempty"`
	// IDsOnly: the ids are enough.
	IDsOnly bool `json:"ids_only,omitempty"`
	// After is where the page before ended among the answers to the first filter; nil: they are
	// asked for from the newest on.
	After *Place `json:"after,omitempty"`
}

// EventsAnswer answers an [EventsQuery], or there is an error with the headers of the micro service
// protocol, whose codes are [QueryBad], [QueryBehind] and [QueryFailed].
type EventsAnswer struct {
	Seq uint64 `json:"seq"` // of the log that the replica has applied
	// Counts is how many of what follows answer each of the filters, in their order. Where there
	// are fewer than filters the page is full, and the others must be asked for.
	Counts []int             `json:"counts,omitempty"`
	Events []json.RawMessage `json:"events,omitempty"`
	IDs    []byte            `json:"ids,omitempty"` // 32 bytes each, if only ids were asked for
	// After is where the page ends among the answers to the last filter that is counted, if there
	// are more of them.
	After *Place `json:"after,omitempty"`
}

// Place is where an event stands among the answers to a filter.
type Place struct {
	CreatedAt nostr.Timestamp `json:"created_at"`
	ID        string          `json:"id"`
}
