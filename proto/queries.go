package proto

import (
	"encoding/json"

	"github.com/nbd-wtf/go-nostr"
)

// MaxQueriedBytes and MaxQueriedIDs are how much one [EventsAnswer] brings: of events so many bytes
// or a single larger one, of ids alone so many.
const (
	MaxQueriedBytes = 256 << 10
	MaxQueriedIDs   = 8000
)

// EventsQuery asks grasp.query.events for the accepted events that match a filter, newest first and
// by id among equals, one page at a time. Nothing is kept between two pages, so that each may be
// answered by another replica.
type EventsQuery struct {
	Filter nostr.Filter `json:"filter"`
	// Seq is the sequence of the log that the replica must have applied before it answers. One that
	// has not, and does not soon, answers [QueryBehind].
	Seq uint64 `json:"seq,omitempty"`
	// IDsOnly: the ids are enough.
	IDsOnly bool `json:"ids_only,omitempty"`
	// After is where the page before ended; nil: the first page is asked for. The filter's limit
	// counts what comes after it.
	After *PageCursor `json:"after,omitempty"`
}

// EventsAnswer answers an [EventsQuery], or there is an error with the headers of the micro service
// protocol, whose codes are [QueryBad], [QueryBehind] and [QueryFailed].
type EventsAnswer struct {
	Seq    uint64            `json:"seq"` // of the log that the replica has applied
	Events []json.RawMessage `json:"events,omitempty"`
	IDs    []byte            `json:"ids,omitempty"` // 32 bytes each, if only ids were asked for
	// After is where the page ends, if there is more.
	After *PageCursor `json:"after,omitempty"`
}

// PageCursor is where an event stands among the answers to a filter.
type PageCursor struct {
	CreatedAt nostr.Timestamp `json:"created_at"`
	ID        string          `json:"id"`
}
