package backfill

import (
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/ledger"
	"tendril.dev/services/relayconn/pages"
)

// Cause is why the past is asked for.
type Cause struct {
	Source proto.Source
	Lane   proto.Lane
	// LiveUntil: events made before should have come live; zero: none should.
	LiveUntil time.Time
	// Missing is since when events have not come live because the relay closed a subscription;
	// zero: not because of that.
	Missing time.Time
}

// Gap reports whether an event that comes now should have come live before.
func (c Cause) Gap(ev *nostr.Event) bool { return ev.CreatedAt.Time().Before(c.LiveUntil) }

// Work is what is to be asked for, all for one cause.
type Work struct {
	// Items are confirmed together when the filters have brought everything. None: it is asked for
	// whatever the target says.
	Items   items.Set
	Filters []nostr.Filter
	Since   *nostr.Timestamp // nil: from the beginning
	Cause   Cause
}

// batch is work that has begun. It ends when all of its tasks have ended and everything that came
// has a verdict.
type batch struct {
	ledger.Account
	items  items.Set
	cause  Cause
	tasks  int // not ended
	failed bool
}

// found reports whether the batch was found by the diff, which would find it again.
func (b *batch) found() bool { return !b.items.Empty() }

// task is one way into the past: that of one filter.
type task struct {
	batch *batch
	walk  *pages.Walk
	tries int // of the current page
}

// Request is a historic REQ that is open at the relay.
type Request struct {
	id    string
	task  *task
	asked time.Time
	heard time.Time // last message
}

// Matches reports whether an event is an answer to what was asked.
func (r *Request) Matches(ev *nostr.Event) bool { return r.task.walk.Matches(ev) }

// Cause is why it was asked.
func (r *Request) Cause() Cause { return r.task.batch.cause }

// Account is who waits for the verdicts on what it brings.
func (r *Request) Account() *ledger.Account { return &r.task.batch.Account }

// Heard notes a message of the relay.
func (r *Request) Heard(now time.Time) { r.heard = now }
