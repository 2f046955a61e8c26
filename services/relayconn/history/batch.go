package history

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
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
	Items   Set
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
	lead     *Lead     // other connections leave the items to this batch; nil: they do not
	waitBy   time.Time // until when it leaves the items to another connection; zero: it has begun
	tasks    []*task
	running  int        // tasks and units that have not ended
	ids      [][32]byte // to be fetched
	named    map[[32]byte]struct{}
	again    bool      // events have no verdict: it begins again from the start
	byREQ    bool      // the relay did not deliver what it named: the same, and not by NIP-77
	failures int       // how often it has failed
	retryAt  time.Time // when it is tried again; zero: it is under way
}

// found reports whether the batch was found by the diff, which would find it again.
func (b *batch) found() bool { return !b.work.Items.Empty() }

// idle reports whether nothing of the batch is under way.
func (b *batch) idle() bool { return !b.retryAt.IsZero() || !b.waitBy.IsZero() }

const (
	retryFirst = time.Minute
	retryMost  = 30 * time.Minute
)

// tryAgainAfter notes that the batch has failed. It waits for 1, 2, 4 … min, 30 at most.
func (b *batch) tryAgainAfter(now time.Time) {
	b.retryAt = now.Add(min(retryFirst<<min(b.failures, 5), retryMost))
	b.failures++
	b.release(false)
}

// release lets other connections ask for the items.
func (b *batch) release(whole bool) {
	b.lead.End(whole)
	b.lead = nil
}

// mostNamed bounds the ids of a batch that are kept in mind, so that none of them is fetched again
// that another filter finds as well.
const mostNamed = 20_000

// name takes ids to be fetched, and returns how many of them were new.
func (h *History) name(b *batch, ids [][32]byte) (fresh int) {
	for _, id := range ids {
		if _, again := b.named[id]; again {
			continue
		}
		if b.named == nil || len(b.named) >= mostNamed {
			b.named = map[[32]byte]struct{}{}
		}
		b.named[id] = struct{}{}
		b.ids = append(b.ids, id)
		fresh++
	}
	h.wantedIDs += fresh
	return fresh
}

// task is one way into the past for a batch.
type task struct {
	batch  *batch
	way    way
	tries  int  // of the current answer
	failed bool // since the batch was tried last
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

// end warns of gaps at the end and lets go of pages, because a batch may have many walks that have
// ended.
func (w *Walk) end(warn Warn) (more bool, err error) {
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
	*w = Walk{}
	return false, nil
}

const (
	// perFetch is how many ids one REQ names.
	perFetch = 100
	// fetchTries is how often ids are asked for that the relay named and does not deliver.
	fetchTries = 2
	// fetchSlack is how many more events than were asked for may come, as a factor.
	fetchSlack = 4
	// fullAt is how many events wait to be fetched on a connection when no more are looked for.
	fullAt = 5000
)

// fetch is the way of asking for events by id.
type fetch struct {
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
			h.wantedIDs -= len(some)
			f := &fetch{batch: b, ids: map[string]bool{}}
			for _, id := range some {
				if name := hex.EncodeToString(id[:]); !h.rec.Known(name) { // else another relay was faster
					f.ids[name] = false
				}
			}
			if f.left = len(f.ids); f.left > 0 {
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
