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
	// Missing is since when events have not come live, because the relay closed a subscription, or
	// came and had no verdict; zero: not because of that.
	Missing time.Time
	// Unjudged: they came and had no verdict.
	Unjudged bool
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
// has a verdict. One that failed is tried again, until it comes to its end or all is forgotten.
type batch struct {
	ledger.Account
	items    items.Set
	cause    Cause
	tasks    []*task
	running  int       // tasks that have not ended
	failures int       // how often it has failed
	retryAt  time.Time // when it is tried again; zero: it is under way
}

// found reports whether the batch was found by the diff, which would find it again.
func (b *batch) found() bool { return !b.items.Empty() }

// pending reports whether the batch is under way for the first time.
func (b *batch) pending() bool { return b.failures == 0 }

// tryAgainAfter notes that the batch has failed. It waits for 1, 2, 4 … min, 30 at most.
func (b *batch) tryAgainAfter(now time.Time) {
	wait := retryMost
	if b.failures < 5 {
		wait = min(wait, retryFirst<<b.failures)
	}
	b.failures++
	b.retryAt = now.Add(wait)
}

const (
	retryFirst = time.Minute
	retryMost  = 30 * time.Minute
)

// task is one way into the past: that of one filter.
type task struct {
	batch  *batch
	walk   *pages.Walk
	tries  int  // of the current page
	failed bool // since the batch was tried last
}
