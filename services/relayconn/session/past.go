package session

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
)

const (
	// maxTries is how often a page is asked for when the relay wants quiet or fewer subscriptions.
	maxTries = 3
	// firstAtOnce is how many requests for the past are open at once at first. With each answer it
	// is one more, until the relay refuses one.
	firstAtOnce = 4
	// A batch that failed is tried again after retryFirst, twice as long each time, up to retryMost.
	retryFirst, retryMost = time.Minute, 30 * time.Minute
	// longestWait is how long a batch is left to another connection at most, and lookAgain how often
	// it is looked whether that has ended.
	longestWait, lookAgain = time.Minute, 250 * time.Millisecond
	// mostNamed bounds the ids of a batch that are kept in mind, so that none of them is fetched
	// again that another filter finds as well.
	mostNamed = 20_000
)

// cause is why something is asked for.
type cause struct {
	source proto.Source
	// liveUntil: events made before should have come live; zero: none should.
	liveUntil time.Time
	// missing is since when events have not come live, if that is why; else zero.
	missing time.Time
}

// work is what must be asked for of the past, all for one cause.
type work struct {
	// items are confirmed together when the groups have brought everything. None: it is asked for
	// also if no target says so.
	items  history.Set
	groups []history.Group
	since  *nostr.Timestamp // nil: from the beginning
	cause  cause
	// reconcile has the relay asked by NIP-77 where it can be and something is known, though there
	// is not much to ask for.
	reconcile bool
}

// batch is work that has begun. It ends when all of its tasks have ended and everything that came
// has a verdict. One that failed is tried again, until it has ended or all is forgotten.
type batch struct {
	work
	lead     *history.Lead // other connections leave the items to this batch; nil: they do not
	waitBy   time.Time     // until when it leaves the items to another connection; zero: it has begun
	tasks    []*task
	running  int        // tasks and units that have not ended
	ids      [][32]byte // to be fetched
	named    map[[32]byte]struct{}
	again    bool      // it begins again from the start
	byREQ    bool      // and not by NIP-77, because the relay did not deliver what it named
	crowded  bool      // it missed some of a second by REQ, which NIP-77 names
	failures int       // how often it has failed
	retryAt  time.Time // when it is tried again; zero: it is under way

	waiting atomic.Int64 // events without a verdict
	lost    atomic.Bool  // one of them will never have one
}

// found reports whether the batch was found by the diff, which would find it again.
func (b *batch) found() bool { return !b.items.Empty() }

// idle reports whether nothing of the batch is under way.
func (b *batch) idle() bool { return !b.retryAt.IsZero() || !b.waitBy.IsZero() }

// release lets other connections ask for the items.
func (b *batch) release(whole bool) {
	b.lead.End(whole)
	b.lead = nil
}

// way is a way to a part of the past: it says what to ask for in one REQ after the other, and hears
// of what comes. It is a walk or a fetch.
type way interface {
	Filters() []nostr.Filter
	Matches(ev *nostr.Event) bool
	// Saw notes an event of the answer that matches. It is fresh if it was asked for and has not
	// come this way before; the answer is enough if it must be ended.
	Saw(ev *nostr.Event) (fresh, enough bool)
	// Again forgets the answer that has begun, because it is asked for once more.
	Again()
	// Ended notes the end of the answer, and reports whether there is more to ask for.
	Ended() (more bool)
}

// task is one way into the past for a batch.
type task struct {
	request
	way
	batch  *batch
	tries  int  // of the current answer
	broken bool // since the batch was tried last
}

// add begins with some work, as soon as there is room. What another connection of the worker is
// walking through waits for that.
func (s *Session) add(w work) *batch {
	b, now := &batch{work: w}, time.Now()
	var rest history.Set
	if s.reconciles() && s.rec.Walks != nil && b.found() {
		if b.lead, b.items, rest = s.rec.Walks.Take(w.items, now); !rest.Empty() {
			b.groups = history.Groups(b.items)
			late := work{items: rest, groups: history.Groups(rest), cause: w.cause, reconcile: true}
			s.batches = append(s.batches, &batch{work: late, waitBy: now.Add(longestWait)})
		}
	}
	if s.pending = nil; b.found() || rest.Empty() {
		s.batches = append(s.batches, b)
		s.start(b)
	}
	return b
}

// reconciles reports whether the relay may be asked by NIP-77.
func (s *Session) reconciles() bool { return s.rec != nil && !s.rec.off }

// start chooses the way of a batch.
func (s *Session) start(b *batch) {
	worth := b.reconcile || b.again || size(b.groups) >= worthEverything
	if s.reconciles() && b.since == nil && !b.byREQ && worth {
		s.rec.add(b)
	} else {
		s.walk(b, b.groups)
	}
	b.again, b.byREQ, s.spent = false, false, true
}

// size is about how many bytes groups take.
func size(groups []history.Group) (bytes int) {
	for _, g := range groups {
		bytes += g.Bytes()
	}
	return bytes
}

// walk has groups asked for by REQ, each in one REQ if the relay takes that, as soon as there is
// room.
func (s *Session) walk(b *batch, groups []history.Group) {
	for _, g := range groups {
		most := s.limits.Filters()
		if !s.limits.Together(g.Bytes()) {
			most = 1
		}
		for filters := range slices.Chunk(g, most) {
			filters = slices.Clone(filters)
			for i := range filters {
				if b.since != nil {
					filters[i].Since = b.since
				}
			}
			s.queue = append(s.queue, b.task(history.NewWalk(filters, s.limits.Page(s.Rules.PageLimit))))
		}
	}
}

// task adds a way to a batch.
func (b *batch) task(w way) *task {
	t := &task{batch: b, way: w}
	b.tasks = append(b.tasks, t)
	b.running++
	return t
}

// askPast puts as many of the tasks that wait to the relay as may be open at once. What was named
// is fetched before more is found.
func (s *Session) askPast(ctx context.Context, now time.Time) error {
	if now.Before(s.hold) || !s.mayAsk(now) {
		return nil
	}
	if s.rec != nil {
		if err := s.rec.ask(ctx, now); err != nil {
			return err
		}
	}
	live, open := s.count()
	for ; open < s.limits.Past(live, s.atOnce); open++ {
		if len(s.queue) == 0 || !isFetch(s.queue[0]) {
			s.fetchNext()
		}
		if len(s.queue) == 0 {
			return nil
		}
		t := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1) // which lets go of the task
		t.tries++
		t.id = s.name("h")
		if err := s.ask(ctx, t, now); err != nil {
			return err
		}
	}
	return nil
}

func isFetch(t *task) bool {
	_, is := t.way.(*fetch)
	return is
}

// first puts a task before all others.
func (s *Session) first(t *task) { s.queue = slices.Insert(s.queue, 0, t) }

// takeBack takes a request back that is asked again when there is room.
func (s *Session) takeBack(ctx context.Context, t *task) error {
	t.tries-- // this was no try
	t.Again()
	s.first(t)
	return s.stop(ctx, t)
}

// ended notes the end of an answer, mostly by EOSE: the next one must be asked for, or the task has
// ended.
func (s *Session) ended(ctx context.Context, t *task, now time.Time) error {
	if err := s.stop(ctx, t); err != nil {
		return err
	}
	if !s.full {
		s.atOnce = min(s.atOnce+1, s.Rules.AtOnce)
	}
	t.tries = 0
	t.batch.lead.Heard(t.heard)
	if t.Ended() {
		s.first(t)
		return nil
	}
	if f, ok := t.way.(*fetch); ok && f.left > 0 {
		t.batch.byREQ = true
		t.failed(s, now, fmt.Sprintf("the relay names events by NIP-77 and does not deliver them (%d of %d)", f.left, len(f.ids)))
		return nil
	}
	if w, ok := t.way.(*history.Walk); ok {
		for _, gap := range w.Gaps() {
			from, to := gap.From.Time().UTC(), gap.To.Time().UTC()
			if gap.From == gap.To && !t.batch.cause.missing.IsZero() && t.batch.since != nil && s.reconciles() {
				t.batch.crowded = true
			} else if gap.From == gap.To {
				s.warn("crowded second", "the relay has more events in one second than it shows", "second", from)
			} else {
				s.warn("ignored", "the relay does not heed since, until or limit; what it has not sent by itself is missing", "from", from, "to", to)
			}
		}
	}
	t.way = nil // a batch may have many walks that have ended
	t.batch.running--
	return nil
}

// again asks for a page once more, but not for ever.
func (t *task) again(s *Session, at, now time.Time, why string) {
	if t.tries >= maxTries {
		t.failed(s, now, why)
		return
	}
	s.hold = history.Later(s.hold, at)
	t.Again()
	s.first(t)
}

// split asks for what is left in smaller REQs, each from where the walk stood.
func (t *task) split(s *Session) {
	s.walk(t.batch, []history.Group{t.Filters()})
	t.way = nil
	t.batch.running--
}

// failed ends a task that did not bring everything; the rest of its batch goes on, because what it
// brings is worth having. What was to be fetched is found out again.
func (t *task) failed(s *Session, _ time.Time, why string) {
	s.warn("incomplete", "historic sync is incomplete; it is tried again", "reason", why)
	t.broken = true
	t.batch.running--
	t.batch.again = t.batch.again || isFetch(t)
}

// tendPast ends batches that have come to their end, and begins with those that have waited long
// enough.
func (s *Session) tendPast(_ context.Context, now time.Time) error {
	s.spent = false
	s.drop(func(b *batch) bool { return s.finished(b, now) })
	for _, b := range s.batches {
		switch {
		case !b.retryAt.IsZero() && !now.Before(b.retryAt):
			s.tryAgain(b)
		case !b.waitBy.IsZero() && (!now.Before(b.waitBy) || !s.rec.Walks.Busy(b.items, now)):
			b.waitBy = time.Time{}
			s.start(b)
		}
	}
	return nil
}

// drop removes those batches for which gone is true, of which nothing is under way.
func (s *Session) drop(gone func(*batch) bool) {
	before := len(s.batches)
	s.batches = slices.DeleteFunc(s.batches, gone)
	if len(s.batches) != before {
		s.pending = nil
	}
}

// finished ends a batch whose tasks have ended and whose events have their verdicts, and reports
// whether it has ended. If a task has failed, or a verdict was lost, it must be tried
// again.
func (s *Session) finished(b *batch, now time.Time) (done bool) {
	if b.running > 0 || len(b.ids) > 0 || b.idle() || b.waiting.Load() > 0 {
		return false
	}
	if b.crowded {
		b.crowded, b.since, b.again, b.tasks = false, nil, true, nil
		s.start(b)
		return false
	}
	if b.lost.Swap(false) {
		s.warn("lost", "historic sync is incomplete; it is tried again", "reason", "events without a verdict")
		b.again = true
	}
	if b.again || b.byREQ || slices.ContainsFunc(b.tasks, func(t *task) bool { return t.broken }) {
		b.retryAt = now.Add(min(retryFirst<<min(b.failures, 5), retryMost))
		b.failures++
		b.release(false)
		return false
	}
	b.release(true)
	s.confirmed = history.Union(s.confirmed, history.Only(b.items, s.wanted.Items))
	return true
}

// tryAgain begins once more with the tasks of a batch that failed, each from where it stood. Where
// events were lost, or the relay did not deliver what it had named, all of it is asked for again.
func (s *Session) tryAgain(b *batch) {
	b.retryAt = time.Time{}
	if b.again || b.byREQ {
		b.tasks, b.named = nil, nil
		s.start(b)
		return
	}
	for _, t := range b.tasks {
		if t.broken {
			t.broken, t.tries, t.proved = false, 0, false
			t.Again()
			s.queue = append(s.queue, t)
			b.running++
		}
	}
}

// forgetPast forgets all work and what has come of it.
func (s *Session) forgetPast(ctx context.Context) error {
	for _, a := range s.open {
		if t, ok := a.(*task); ok {
			if err := s.stop(ctx, t); err != nil {
				return err
			}
		}
	}
	s.release()
	s.batches, s.pending, s.queue, s.toFetch, s.confirmed = nil, nil, nil, 0, history.Set{}
	if s.rec == nil {
		return nil
	}
	return s.rec.restart(ctx)
}

// release lets other connections ask for what is being asked for on this one, which has ended.
func (s *Session) release() {
	for _, b := range s.batches {
		b.release(false)
	}
}

// asked is what was asked for and is not confirmed: it is pending or has failed. It may be called
// with every message that comes.
func (s *Session) asked() history.Set {
	if s.pending == nil {
		sets := []history.Set{{}}
		for _, b := range s.batches {
			sets = append(sets, b.items)
		}
		for len(sets) > 1 { // by pairs: one after the other would copy the first ones for each batch
			pairs := sets[:0]
			for pair := range slices.Chunk(sets, 2) {
				pairs = append(pairs, history.Union(pair[0], pair[len(pair)-1]))
			}
			sets = pairs
		}
		s.pending = &sets[0]
	}
	return *s.pending
}

const (
	// perFetch is how many ids one REQ names.
	perFetch = 100
	// fetchTries is how often ids are asked for that the relay named and does not deliver.
	fetchTries = 2
	// fetchSlack is how many more events than were asked for may come, as a factor.
	fetchSlack = 4
)

// fetch is the way of asking for events by id.
type fetch struct {
	ids   map[string]bool // true: it has come
	left  int             // that have not
	total int             // events of this answer, each as often as it came
	tries int
}

// fetchNext makes a task of some of what waits to be fetched, before all others.
func (s *Session) fetchNext() {
	for _, b := range s.batches {
		for len(b.ids) > 0 {
			some := b.ids[:min(len(b.ids), s.limits.Page(perFetch))]
			if b.ids = b.ids[len(some):]; len(b.ids) == 0 {
				b.ids = nil
			}
			s.toFetch -= len(some)
			s.spent = true
			f := &fetch{ids: map[string]bool{}}
			for _, id := range some {
				if name := hex.EncodeToString(id[:]); !s.Intake.Known(name) { // else another relay was faster
					f.ids[name] = false
				}
			}
			if f.left = len(f.ids); f.left > 0 {
				s.first(b.task(f))
				return
			}
		}
	}
}

// nameIDs takes ids to be fetched, and returns how many of them were new.
func (s *Session) nameIDs(b *batch, ids [][32]byte) (fresh int) {
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
	s.toFetch += fresh
	return fresh
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

// Ended has what has not come asked for once more, and then no more.
func (f *fetch) Ended() (more bool) {
	f.total = 0
	f.tries++
	return f.left > 0 && f.tries < fetchTries
}
