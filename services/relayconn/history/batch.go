package history

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
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
	// Reconcile has the relay asked by NIP-77 where it can be and something is known, though there
	// is not much to ask for.
	Reconcile bool
}

// batch is work that has begun. It ends when all of its tasks have ended and everything that came
// has a verdict. One that failed is tried again, until it comes to its end or all is forgotten.
type batch struct {
	Account
	work     Work
	tasks    []*task
	running  int        // tasks and units that have not ended
	ids      [][32]byte // to be fetched
	named    map[[32]byte]struct{}
	unshared int              // tasks of which it is not settled what is left to other connections
	left     [][]nostr.Filter // what was left to them, in groups
	lost     bool             // events have no verdict: what is missing is found out again
	byREQ    bool             // the relay did not deliver what it named
	failures int              // how often it has failed
	retryAt  time.Time        // when it is tried again; zero: it is under way
}

// found reports whether the batch was found by the diff, which would find it again.
func (b *batch) found() bool { return !b.work.Items.Empty() }

// pending reports whether the batch is under way for the first time.
func (b *batch) pending() bool { return b.failures == 0 }

const (
	retryFirst = time.Minute
	retryMost  = 30 * time.Minute
)

// tryAgainAfter notes that the batch has failed. It waits for 1, 2, 4 … min, 30 at most.
func (b *batch) tryAgainAfter(now time.Time) {
	wait := retryMost
	if b.failures < 5 {
		wait = min(wait, retryFirst<<b.failures)
	}
	b.failures++
	b.retryAt = now.Add(wait)
}

// mostNamed bounds the ids of a batch that are kept in mind, so that none of them is fetched again
// that another filter finds as well.
const mostNamed = 20_000

// name takes ids to be fetched, and returns how many of them were new. What has no room is found
// again later.
func (h *History) name(b *batch, ids [][32]byte) (fresh int, dropped bool) {
	for _, id := range ids {
		if _, again := b.named[id]; again {
			continue
		}
		if h.wantedIDs >= mostWanted {
			return fresh, true
		}
		if b.named == nil || len(b.named) >= mostNamed {
			b.named = map[[32]byte]struct{}{}
		}
		b.named[id] = struct{}{}
		b.ids = append(b.ids, id)
		h.wantedIDs++
		fresh++
	}
	return fresh, false
}

// task is one way into the past for a batch.
type task struct {
	batch  *batch
	way    way
	tries  int            // of the current answer
	failed bool           // since the batch was tried last
	group  []nostr.Filter // what of it is left to other connections is not settled; nil: it is
	lead   *Lead          // what it asks for in place of other connections; nil: nothing
}

// way is a way to a part of the past: it says what to ask for in one REQ after the other, and hears
// of what comes.
type way interface {
	// Filters are what to ask for next, in one REQ.
	Filters() []nostr.Filter
	// Matches reports whether an event is an answer to what was asked.
	Matches(ev *nostr.Event) bool
	// Saw notes an event of the answer that matches. It is fresh if it was asked for and has not
	// come this way before; the answer is enough if it must be ended.
	Saw(ev *nostr.Event) (fresh, enough bool)
	// Again forgets the answer that has begun, because it is asked for once more.
	Again()
	// end notes the end of the answer, and reports whether there is more to ask for. With an error
	// the way has failed.
	end(warn Warn) (more bool, err error)
}

// walk is the way of paging back through the past of a group of filters.
type walk struct{ *pages.Walk }

func (h *History) walk(filters []nostr.Filter) walk {
	return walk{pages.New(filters, h.o.Limits.Page(h.o.PageLimit))}
}

// end warns of gaps at the end and lets go of pages, because a batch may have many walks that have
// ended.
func (w walk) end(warn Warn) (more bool, err error) {
	if w.Ended() {
		return true, nil
	}
	for _, gap := range w.Gaps() {
		from, to := gap.From.Time().UTC(), gap.To.Time().UTC()
		if gap.From == gap.To {
			warn("crowded second", "the relay has more events in one second than it shows", "second", from)
		} else {
			warn("ignored", "the relay does not heed since, until or limit; what it has not sent by itself is missing", "from", from, "to", to)
		}
	}
	*w.Walk = pages.Walk{}
	return false, nil
}

const (
	// perFetch is how many ids one REQ names.
	perFetch = 100
	// fetchTries is how often ids are asked for that the relay named and does not deliver.
	fetchTries = 2
	// fetchSlack is how many more events than were asked for may come, as a factor.
	fetchSlack = 4
	// mostWanted is how many events may be waiting to be fetched on a connection, and fullAt how
	// many keep sessions from going on.
	mostWanted, fullAt = 20_000, 5000
)

// fetch is the way of asking for events by id.
type fetch struct {
	h     *History
	batch *batch
	ids   map[string]bool // true: it has come
	left  int             // that have not
	total int             // events of this answer, each as often as it came
	tries int
}

// fetching makes a task of some of what waits to be fetched; nil: nothing waits.
func (h *History) fetching() *task {
	for _, b := range h.batches {
		for len(b.ids) > 0 {
			some := b.ids[:min(len(b.ids), h.o.Limits.Page(perFetch))]
			if b.ids = b.ids[len(some):]; len(b.ids) == 0 {
				b.ids = nil
			}
			f := &fetch{h: h, batch: b, ids: map[string]bool{}}
			for _, id := range some {
				if name := hex.EncodeToString(id[:]); !h.rec.Known(name) { // else another relay was faster
					f.ids[name] = false
				}
			}
			f.left = len(f.ids)
			h.wantedIDs -= len(some) - f.left
			if f.left > 0 {
				t := &task{batch: b, way: f}
				b.tasks = append(b.tasks, t)
				b.running++
				return t
			}
			h.spent = true
		}
	}
	return nil
}

// Filters name what has not come.
func (f *fetch) Filters() []nostr.Filter {
	var ids []string
	for id, came := range f.ids {
		if !came {
			ids = append(ids, id)
		}
	}
	return []nostr.Filter{{IDs: ids, Limit: len(ids)}}
}

// Matches reports whether an event was asked for.
func (f *fetch) Matches(ev *nostr.Event) bool {
	_, asked := f.ids[ev.ID]
	return asked
}

// Saw notes that an event has come.
func (f *fetch) Saw(ev *nostr.Event) (fresh, enough bool) {
	f.total++
	if fresh = !f.ids[ev.ID]; fresh {
		f.ids[ev.ID] = true
		f.left--
		f.h.wantedIDs--
	}
	return fresh, f.total >= fetchSlack*perFetch
}

// Again has nothing to forget: what came is here.
func (f *fetch) Again() { f.total = 0 }

// end asks once more for what has not come, and then no more.
func (f *fetch) end(Warn) (more bool, err error) {
	f.total = 0
	if f.left == 0 {
		return false, nil
	}
	if f.tries++; f.tries < fetchTries {
		return true, nil
	}
	f.batch.byREQ = true
	return false, fmt.Errorf("the relay names events by NIP-77 and does not deliver them (%d of %d)", f.left, len(f.ids))
}

// cause is why an event comes that was fetched. One that no filter asks for was never to come live:
// the relay was asked for everything.
func (f *fetch) cause(ev *nostr.Event) Cause {
	cause := f.batch.work.Cause
	if !cause.LiveUntil.IsZero() && !slices.ContainsFunc(f.batch.work.Filters, func(g nostr.Filter) bool { return g.Matches(ev) }) {
		cause.LiveUntil = time.Time{}
	}
	return cause
}
