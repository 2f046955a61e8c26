package backfill

import (
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/leads"
	"tendril.dev/services/relayconn/ledger"
	"tendril.dev/services/relayconn/pages"
	"tendril.dev/services/relayconn/recent"
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

// Work is what must be asked for, all for one cause.
type Work struct {
	// Items are confirmed together when the filters have brought everything. None: it is asked for
	// whatever the target says.
	Items   items.Set
	Filters []nostr.Filter
	Since   *nostr.Timestamp // nil: from the beginning
	Cause   Cause
	// For is the live subscription of which events are made up for; empty: of none.
	For string
	// Reconcile has the relay asked by NIP-77 where it can be and something is known.
	Reconcile bool
	// Share leaves to other connections of this worker what they ask for as well, and finds out by
	// NIP-77 what the relay has beyond that.
	Share bool
}

// batch is work that has begun. It ends when all of its tasks have ended and everything that came
// has a verdict. One that failed is tried again, until it comes to its end or all is forgotten.
type batch struct {
	ledger.Account
	items    items.Set
	cause    Cause
	sub      string // the live subscription of which events are made up for
	tasks    []*task
	running  int // tasks and finds that have not ended
	finds    []*find
	ids      []wantedID       // to be fetched
	unshared int              // tasks of which it is not settled what is left to other connections
	deferred [][]nostr.Filter // what was left to them, in groups
	narrow   bool             // it is not to be asked by a session about everything
	wideBy   time.Time        // how long it waits for one at most; zero: it does not wait
	named    recent.Set[[32]byte]
	lost     bool      // since the batch was tried last
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

// tryAgain begins once more with the tasks of a batch that failed, each from where it stood. Where
// events were lost, what is missing is found out anew. Of filters of which the relay did not
// deliver what it had named, REQ brings what it does deliver.
func (b *Backfill) tryAgain(batch *batch) {
	batch.retryAt = time.Time{}
	tasks := batch.tasks
	b.unkeptWide(batch)
	if batch.lost && len(batch.finds) > 0 {
		tasks = slices.DeleteFunc(tasks, func(t *task) bool { return t.found })
		batch.named = recent.New[[32]byte](mostNamed)
		batch.finds = slices.DeleteFunc(batch.finds, func(f *find) bool { return f.wide != nil || f.found })
		for _, f := range batch.finds {
			f.unkept = false
			b.findLater(f)
		}
	}
	batch.lost, batch.tasks = false, nil
	for _, t := range tasks {
		if f, ok := t.way.(*fetch); ok && len(f.ids) == 0 {
			continue
		}
		batch.tasks = append(batch.tasks, t)
		if t.failed {
			t.failed, t.tries = false, 0
			t.way.Again()
			b.queue = append(b.queue, t)
			batch.running++
		}
	}
	for _, f := range batch.finds {
		if f.unkept {
			f.unkept = false
			for _, group := range f.unit.Groups {
				b.walks(batch, group, true)
			}
		}
	}
}

// Way is a way to a part of the past: it says what to ask for in one REQ after the other, and hears
// of what comes. It belongs to one goroutine.
type Way interface {
	// Filters are what to ask for next, in one REQ.
	Filters() []nostr.Filter
	// Matches reports whether an event is an answer to what was asked.
	Matches(ev *nostr.Event) bool
	// Saw notes an event of the answer that matches. It is fresh if it was asked for and has not
	// come this way before; the answer is enough if it must be ended.
	Saw(ev *nostr.Event) (fresh, enough bool)
	// Ended notes the end of the answer, and reports whether there is more to ask for. With an
	// error the way has failed; it is tried again with the rest of its batch.
	Ended() (more bool, err error)
	// Again forgets the answer that has begun, because it is asked for once more.
	Again()
	// Restart goes back to the beginning.
	Restart()
	// Done is told when the way has come to its end, and warns of what the relay did not show.
	Done(warn Warn)
}

// Warn tells the operator of what a relay does, once for each cause.
type Warn func(cause, message string, args ...any)

// walk is the way of paging back through the past of a group of filters.
type walk struct{ *pages.Walk }

// Ended notes the end of a page.
func (w walk) Ended() (more bool, err error) { return w.Walk.Ended(), nil }

// Done warns of gaps and lets go of pages, because a batch may have many walks that have ended.
func (w walk) Done(warn Warn) {
	for _, gap := range w.Gaps() {
		from, to := gap.From.Time().UTC(), gap.To.Time().UTC()
		if gap.From == gap.To {
			warn("crowded second", "the relay has more events in one second than it shows", "second", from)
		} else {
			warn("ignored", "the relay does not heed since, until or limit; what it has not sent by itself is missing", "from", from, "to", to)
		}
	}
	w.Rest()
}

// task is one way into the past for a batch.
type task struct {
	batch   *batch
	way     Way
	tries   int            // of the current answer
	failed  bool           // since the batch was tried last
	found   bool           // a find has led to it, which would lead to it again
	gone    bool           // all of it was left to other connections
	brought bool           // it has brought something
	group   []nostr.Filter // what of it is left to other connections is not settled; nil: it is
	lead    *leads.Lead    // what it asks for in place of other connections; nil: nothing
	roots   bool           // that is root events
	came    int            // events of the current answer that had not come this way before
	fresh   int            // and of these, those that were not known
}
