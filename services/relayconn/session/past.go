package session

import (
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// maxTries is how often a page is asked for when the relay wants quiet or fewer subscriptions.
	maxTries = 3
	// A batch that failed is tried again after retryFirst, twice as long each time, up to retryMost.
	retryFirst, retryMost = time.Minute, 30 * time.Minute
	// longestWait is how long a batch is left to another connection at most, and lookAgain how often
	// it is looked whether that has ended.
	longestWait, lookAgain = time.Minute, 250 * time.Millisecond
	// mostNamed bounds the ids of a batch that are kept in mind, so that none of them is fetched
	// again that another filter finds as well.
	mostNamed = 20_000
	// perFetch is how many ids one REQ names.
	perFetch = 100
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
	items  Set
	groups []Group
	since  *nostr.Timestamp // nil: from the beginning
	cause  cause
	// reconcile has the relay asked by NIP-77 where it can be and something is known, though there
	// is not much to ask for.
	reconcile bool
	// late: it looks for what was published long after it was made. NIP-77 finds all of it, also what is
	// older than since.
	late bool
}

// batch is work that has begun. It ends when all of its tasks have ended and everything that came
// has a verdict. One that failed is tried again, until it has ended or all is forgotten.
type batch struct {
	work
	lead     *Lead      // other connections leave the items to this batch; nil: they do not
	waitFor  []*Lead    // of other connections, to which it leaves the items
	waitBy   time.Time  // until when it does so at most; zero: it does not
	running  int        // tasks and units that have not ended
	broken   []*task    // that failed; each goes on where it stood
	ids      [][32]byte // to be fetched
	named    map[[32]byte]struct{}
	again    bool            // it begins again from the start, because an event will never have a verdict
	byREQ    bool            // and not by NIP-77, because the relay did not deliver what it named
	missed   bool            // REQ did not show all events of a second: it begins again by NIP-77, which does
	crowded  bool            // which it has been once
	fetched  int             // events that NIP-77 named and that came
	oldest   nostr.Timestamp // of these; what is below has been asked for by REQ if below says so
	below    bool
	isLate   bool      // something came after an EOSE, for which it was begun again
	failures int       // how often it has failed
	at       time.Time // when it begins, or is tried again; zero: it is under way

	waiting atomic.Int64 // events without a verdict
}

// found reports whether the batch was found by the diff, which would find it again.
func (b *batch) found() bool { return !b.items.Empty() }

// idle reports whether nothing of the batch is under way.
func (b *batch) idle() bool { return !b.at.IsZero() }

// release lets other connections ask for the items.
func (b *batch) release(whole bool) {
	b.lead.End(whole)
	b.lead = nil
}

// took notes an event that was fetched because NIP-77 had named it.
func (b *batch) took(ev *nostr.Event) {
	if b.fetched++; b.fetched == 1 || ev.CreatedAt < b.oldest {
		b.oldest = ev.CreatedAt
	}
}

// task is one way into the past for a batch, page by page.
type task struct {
	request
	*Walk
	batch *batch
	tries int       // of the current page
	endAt time.Time // when a page ends that has had its EOSE; see the session's grace
}

// add begins with some work, as soon as there is room. What another connection of the worker is
// walking through waits for that.
func (s *Session) add(w work) *batch {
	b, now := &batch{work: w}, time.Now()
	var rest Set
	if !s.rec.off && b.found() {
		var others []*Lead
		if b.lead, others, b.items, rest = s.rec.Walks.Take(w.items, now); !rest.Empty() {
			b.groups = Groups(b.items)
			s.leave(rest, others, w.cause, now)
		}
	}
	if b.found() || rest.Empty() {
		s.batches = append(s.batches, b)
		s.start(b)
	}
	return b
}

// leave leaves items to others for a while. What is left to any of them is reconciled together.
func (s *Session) leave(items Set, others []*Lead, why cause, now time.Time) {
	n := slices.IndexFunc(s.batches, func(b *batch) bool { return !b.waitBy.IsZero() && b.cause == why })
	if n < 0 {
		n = len(s.batches)
		s.batches = append(s.batches, &batch{work: work{cause: why, reconcile: true}, waitBy: now.Add(longestWait), at: now.Add(lookAgain)})
	}
	b := s.batches[n]
	b.items, b.waitFor = Union(b.items, items), append(b.waitFor, others...)
}

// start chooses the way of a batch.
func (s *Session) start(b *batch) {
	worth := b.reconcile || b.again || size(b.groups) >= worthEverything
	if !s.rec.off && (b.since == nil || b.late) && !b.byREQ && worth {
		s.rec.add(b, true)
	} else {
		s.walk(b, b.groups)
	}
	b.again, b.byREQ, s.recheck = false, false, true
}

// size is about how many bytes groups take.
func size(groups []Group) (bytes int) {
	for _, g := range groups {
		bytes += g.Bytes()
	}
	return bytes
}

// walk has groups asked for by REQ, each in one REQ if the relay takes that, as soon as there is
// room.
func (s *Session) walk(b *batch, groups []Group) {
	for _, g := range groups {
		for filters := range s.together(g) {
			filters = slices.Clone(filters)
			for i := range filters {
				filters[i].Since = b.since
			}
			s.queue = append(s.queue, b.task(NewWalk(filters, s.limits.Page(s.Rules.PageLimit))))
		}
	}
}

// together cuts a group into what may go in one REQ each.
func (s *Session) together(g Group) iter.Seq[Group] {
	most := s.limits.Filters()
	if !s.limits.Together(g.Bytes()) {
		most = 1
	}
	return slices.Chunk(g, most)
}

func (b *batch) task(w *Walk) *task {
	b.running++
	return &task{batch: b, Walk: w}
}

// askPast puts as many of the tasks that wait to the relay as may be open at once. What was named
// is fetched before more is found.
func (s *Session) askPast(ctx context.Context, now time.Time) {
	if now.Before(s.hold) || !s.mayAsk(now) {
		return
	}
	s.rec.ask(ctx, now)
	live, open := s.count()
	for ; open < s.limits.Past(live, s.Rules.AtOnce); open++ {
		if len(s.queue) == 0 || !s.queue[0].fetches {
			s.fetchNext()
		}
		if len(s.queue) == 0 {
			return
		}
		t := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1) // which lets go of the task
		t.tries++
		t.id = s.name("h")
		s.ask(t, now)
	}
}

// first puts a task before all others.
func (s *Session) first(t *task) { s.queue = slices.Insert(s.queue, 0, t) }

// requeue takes a request back that is asked again when there is room.
func (s *Session) requeue(t *task) {
	t.tries-- // this was no try
	t.Again()
	s.first(t)
	s.stop(t)
}

// ended notes the end of an answer, mostly by EOSE: the next one must be asked for, or the task has
// ended.
func (s *Session) ended(t *task, now time.Time) {
	s.stop(t)
	s.remember(t, now)
	t.tries, t.endAt = 0, time.Time{}
	t.batch.lead.Heard(t.heard)
	if t.Ended() {
		s.first(t)
		return
	}
	b := t.batch
	if n := t.Missing(); n > 0 {
		b.byREQ = true
		t.failed(s, now, fmt.Sprintf("the relay names events by NIP-77 and does not deliver them (%d)", n))
		return
	}
	for _, gap := range t.Gaps {
		from, to := gap.From.Time().UTC(), gap.To.Time().UTC()
		switch {
		case from != to:
			s.warn("ignored", "the relay does not heed since, until or limit; what it has not sent by itself is missing", "from", from, "to", to)
		case !b.crowded && !s.rec.off:
			b.missed, b.crowded = true, true
		default:
			s.warn("crowded second", "the relay has more events in one second than it shows", "second", from)
		}
	}
	b.running--
}

// again asks for a page once more, but not for ever.
func (t *task) again(s *Session, at, now time.Time, why string) {
	if t.tries >= maxTries {
		t.failed(s, now, why)
		return
	}
	s.hold = later(s.hold, at)
	t.Again()
	s.first(t)
}

// split asks for what is left in smaller REQs, each from where the walk stood.
func (t *task) split(s *Session) {
	s.walk(t.batch, []Group{t.Filters()})
	t.batch.running--
}

// failed ends a task that did not bring everything; the rest of its batch goes on, because what it
// brings is worth having. What was to be fetched is found out again.
func (t *task) failed(s *Session, _ time.Time, why string) {
	s.warn("incomplete", "historic sync is incomplete; it is tried again", "reason", why)
	b := t.batch
	if b.running--; t.fetches { // which is of no more use; a relay may name a million ids
		b.again = true
	} else {
		b.broken = append(b.broken, t)
	}
}

// tendPast ends batches that have come to their end, and begins with those that have waited long
// enough.
func (s *Session) tendPast(now time.Time) {
	s.recheck = false
	s.batches = slices.DeleteFunc(s.batches, func(b *batch) bool { return s.finished(b, now) })
	for _, b := range s.batches {
		switch {
		case !b.idle() || now.Before(b.at):
		case now.Before(b.waitBy) && s.rec.Walks.Busy(b.waitFor, now):
			b.at = now.Add(lookAgain)
		default:
			s.tryAgain(b)
		}
	}
}

// finished ends a batch whose tasks have ended and whose events have their verdicts, and reports
// whether it has ended. If a task has failed, or a verdict was lost, it must be tried
// again.
func (s *Session) finished(b *batch, now time.Time) (done bool) {
	if b.running > 0 || len(b.ids) > 0 || b.idle() || b.waiting.Load() > 0 {
		return false
	}
	if b.missed {
		b.missed, b.since, b.again, b.broken = false, nil, true, nil
		s.start(b)
		return false
	}
	if b.again || b.byREQ || len(b.broken) > 0 {
		b.at = now.Add(min(retryFirst<<min(b.failures, 5), retryMost))
		b.failures++
		b.release(false)
		return false
	}
	// A relay may reconcile the newest events of a large set only. What is older shows a page by REQ.
	if b.fetched >= s.Rules.PageLimit && !b.below {
		b.below, s.recheck = true, true
		s.walk(b, before(b.groups, b.oldest))
		return false
	}
	b.release(true)
	s.setConfirmed(Union(s.confirmed, Only(b.items, s.wanted.Items)))
	return true
}

// before are groups that ask for what was made at a moment or earlier.
func before(groups []Group, until nostr.Timestamp) (cut []Group) {
	for _, g := range groups {
		g = slices.Clone(g)
		for i := range g {
			g[i].Until = &until
		}
		cut = append(cut, g)
	}
	return cut
}

// tryAgain goes on with the tasks of a batch that failed, each from where it stood. A batch that
// has waited begins, and so does one of which events were lost, or not delivered though named.
func (s *Session) tryAgain(b *batch) {
	broken := b.broken
	if !b.waitBy.IsZero() {
		b.groups, b.waitFor, b.waitBy = Groups(b.items), nil, time.Time{}
	}
	if b.at, b.broken = (time.Time{}), nil; b.again || b.byREQ || broken == nil {
		b.named = nil
		s.start(b)
		return
	}
	for _, t := range broken {
		t.tries, t.proved = 0, false
		t.Again()
		s.queue = append(s.queue, t)
		b.running++
	}
}

// forgetPast forgets all work and what has come of it.
func (s *Session) forgetPast() {
	for _, a := range s.open {
		if t, ok := a.(*task); ok {
			s.stop(t)
		}
	}
	s.release()
	s.batches, s.queue, s.toFetch = nil, nil, 0
	s.setConfirmed(Set{})
	s.rec.restart()
}

// release lets other connections ask for what is being asked for on this one, which has ended.
func (s *Session) release() {
	for _, b := range s.batches {
		b.release(false)
	}
}

// asked is what was asked for and is not confirmed: it is pending or has failed.
func (s *Session) asked() (sets []Set) {
	for _, b := range s.batches {
		sets = append(sets, b.items)
	}
	return sets
}

// fetchNext makes a task of some of what waits to be fetched, before all others.
func (s *Session) fetchNext() {
	for _, b := range s.batches {
		for len(b.ids) > 0 {
			some := b.ids[:min(len(b.ids), s.limits.Page(perFetch))]
			b.ids = b.ids[len(some):]
			s.toFetch -= len(some)
			s.recheck = true
			var ids []string
			for _, id := range some {
				if name := hex.EncodeToString(id[:]); !s.Intake.Known(name) { // else another relay was faster
					ids = append(ids, name)
				}
			}
			if len(ids) > 0 {
				s.first(b.task(NewFetch(ids)))
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
