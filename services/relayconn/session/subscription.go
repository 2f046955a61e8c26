package session

import (
	"time"

	"tendril.dev/lib/nostr"
)

// liveState is where a live subscription stands.
type liveState int

const (
	opening  liveState = iota // it was asked for, and the relay has not answered: whether it has read of it is not known
	open                      // the relay has answered, or has had its time
	closed                    // by the relay; it is asked for again at reopenAt
	retiring                  // others replace it; it is closed when they are open
	retired                   // closed by us; its events may still be on their way
)

// subscription is one live REQ.
type subscription struct {
	id      string
	filters []nostr.Filter
	state   liveState
	first   bool      // of layer 1, which consolidation leaves alone
	asked   time.Time // when it was asked for last
	doubted time.Time // when the relay said something since that is not understood; zero: it did not
	turn    int       // counts in the order in which they were asked for
	held    bool      // the relay has had it open
	proved  bool      // the relay has refused it to those who have not authenticated
	shuts   int       // how often the relay closed it without asking for quiet
	// missing is since when events have not come on it, because the relay has closed it; zero: they
	// come. It may be asked for again by now.
	missing  time.Time
	reopenAt time.Time // of a closed one
	looked   time.Time // when the past was asked for last, of one for which there is no room
}

// current reports whether it should be open.
func (sub *subscription) current() bool { return sub.state <= closed }

// Filters are what it asks for; they are not to be changed.
func (sub *subscription) Filters() []nostr.Filter { return sub.filters }

// Matches reports whether an event is what the subscription asks for.
func (sub *subscription) Matches(ev *nostr.Event) bool {
	for _, f := range sub.filters {
		if f.Matches(ev) {
			return true
		}
	}
	return false
}
