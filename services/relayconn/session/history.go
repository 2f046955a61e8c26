package session

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// A batch that failed is tried again after retryFirst, twice as long each time, up to retryMost.
	retryFirst, retryMost = time.Minute, 30 * time.Minute
	// longestWait is how long a batch is left to another connection at most, and lookAgain how often
	// it is looked whether that has ended.
	longestWait, lookAgain = time.Minute, 250 * time.Millisecond
	// mostNamed bounds the ids of a batch that are kept in mind, so that none of them is fetched
	// again that another filter finds as well.
	mostNamed = 20_000
	// lateBy is how much earlier than usual a relay is asked by REQ for what was published late: other
	// servers hold events until their git data has come. lateAfter is when that begins; there is no
	// hurry.
	lateBy    = 2 * time.Hour
	lateAfter = 10 * time.Second
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
	// late: it looks for what was published long after it was made. NIP-77 finds all of it, also what
	// is older than since.
	late bool
	// instead: it is asked for again and again in place of what the relay does not take live.
	instead bool
	// byID: it asks for events by their ids, and there are no items and no groups.
	byID bool
	// look: it looks whether something has fallen silent. No batch waits for it.
	look bool
}

// batchState is where a batch stands:
//
//	add ──▶ underWay ──── all has ended, and every event has its verdict ────▶ confirmed (gone)
//	 │       ▲    ▲ │
//	 │       │    │ └──── a walk failed, or an event will never have a verdict ──▶ failed
//	 │       │    │                                                                  │
//	 │       │    └──────────── 1, 2, 4 … 30 min later; see nextStep ◀───────────────┘
//	 ├──▶ scheduled          at its time
//	 └──▶ leftToOthers       when the walks of other connections have ended, or after a minute
type batchState int

const (
	underWay batchState = iota
	scheduled
	leftToOthers
	failed
)

// nextStep is how a batch goes on when all that is under way has ended. The greatest that was asked
// for counts.
type nextStep int

const (
	// goOn: the walks that failed go on, each from where it stood, and what lost its verdict is asked
	// for by id. Without either the batch is confirmed.
	goOn nextStep = iota
	// afresh: it begins again from the start, because too many events have lost their verdicts.
	afresh
	// byNIP77 is afresh and at once, because REQ did not show all events of a second.
	byNIP77
	// byREQ is afresh and not by NIP-77, because the relay did not deliver what it named.
	byREQ
)

// batch is work that has begun. It ends when all of its tasks have ended and everything that came
// has a verdict. One that failed is tried again, until it has ended or all is forgotten.
type batch struct {
	work
	state    batchState
	at       time.Time // when one that is not under way begins, or is looked at again
	next     nextStep
	failures int // how often it has failed

	lease   *HistoryLease   // other connections leave the items to this batch; nil: they do not
	waitFor []*HistoryLease // of other connections, to which one that is leftToOthers leaves the items
	waitBy  time.Time       // until when it does so at most

	running int          // tasks and units that have not ended
	broken  []*task      // that failed
	toWalk  []Group      // NIP-77 has found that they must be asked for by REQ
	toFetch [][32]byte   // NIP-77 has named them
	waiting atomic.Int64 // events without a verdict

	lost    [][32]byte            // events whose verdicts were lost; they are asked for when the rest has ended
	named   map[[32]byte]struct{} // of a batch by id: what has not come
	fetched int                   // events that NIP-77 named and that came
	below   []below               // what may be hidden, and is asked for by REQ when the rest has ended
	hidden  atomic.Bool           // a session about everything has not shown all
	gap     atomic.Bool           // an event came that should have come live before

	// What is done once for a batch: it was begun again for a crowded second; it has waited until no
	// other walk was under way.
	crowded, waited bool
	grace           time.Duration // how long after an EOSE its pages end, since it has begun
	rests           bool          // nothing is left of it but what the relay refuses for good
}

// found reports whether the batch was found by the diff, which would find it again.
func (b *batch) found() bool { return !b.items.Empty() }

// over reports whether nothing of a batch that is under way is left to wait for.
func (b *batch) over() bool {
	return b.state == underWay && b.running == 0 && len(b.toWalk)+len(b.toFetch) == 0 && b.waiting.Load() == 0
}

// needs notes how the batch must go on.
func (b *batch) needs(step nextStep) { b.next = max(b.next, step) }

// release lets other connections ask for the items.
func (b *batch) release(whole bool) {
	b.lease.End(whole)
	b.lease = nil
}

// below is what may lie behind all that a relay has shown by NIP-77 of a filter.
type below struct {
	filter nostr.Filter
	probe  bool // the filter is for everything
}

// name takes ids to be fetched, and returns how many of them were new.
func (b *batch) name(ids [][32]byte) (fresh int) {
	for _, id := range ids {
		if _, again := b.named[id]; again {
			continue
		}
		if b.named == nil || len(b.named) >= mostNamed {
			b.named = map[[32]byte]struct{}{}
		}
		b.named[id] = struct{}{}
		b.toFetch = append(b.toFetch, id)
		fresh++
	}
	return fresh
}

// history is the past of what is wanted: the batches that ask for it, and what they have confirmed.
// It knows nothing of what comes live; the session says when the past may be asked for.
type history struct {
	*Options
	governor   *governor
	reconciler *reconciler

	batches            []*batch
	queue              []*task   // not asked yet
	historyPausedUntil time.Time // nothing of the past is asked before
	nextBegin          time.Time // no walk begins before

	wanted    Set
	confirmed Set // the union of what batches have confirmed; see confirm
	// All that is wanted is confirmed, but for layer 4 or with it, unless compare says that this is not
	// known.
	above, all, compare bool

	settling []confirmation     // of the last seconds; see doubtful
	pageEnds map[string]pageEnd // pages that have ended lately, by the names of their requests
	grace    time.Duration      // how long after its EOSE a page ends
}

// confirmation is what a batch has confirmed.
type confirmation struct {
	items Set
	at    time.Time
}

func newHistory(o *Options, g *governor) *history {
	return &history{Options: o, governor: g, reconciler: newReconciler(o, g), wanted: Set{First: true},
		pageEnds: map[string]pageEnd{}}
}

// add begins with some work, as soon as there is room. What another connection of the worker is
// walking through waits for that.
func (h *history) add(w work) *batch {
	b, now := &batch{work: w}, time.Now()
	var rest Set
	if !h.reconciler.off && b.found() {
		var others []*HistoryLease
		if b.lease, others, b.items, rest = h.Negentropy.Coordinator.Take(w.items, now); !rest.Empty() {
			b.groups = Groups(b.items)
			h.leave(rest, others, w.cause, now)
		}
	}
	if b.found() || rest.Empty() {
		h.batches = append(h.batches, b)
		h.start(b)
	}
	return b
}

// leave leaves items to others for a while. What is left to any of them is reconciled together.
func (h *history) leave(items Set, others []*HistoryLease, why cause, now time.Time) {
	n := slices.IndexFunc(h.batches, func(b *batch) bool { return b.state == leftToOthers && b.cause == why })
	if n < 0 {
		n = len(h.batches)
		h.batches = append(h.batches, &batch{
			work: work{cause: why, reconcile: true}, state: leftToOthers, waitBy: now.Add(longestWait), at: now.Add(lookAgain),
		})
	}
	b := h.batches[n]
	b.items, b.waitFor = Union(b.items, items), append(b.waitFor, others...)
}

// lookForLate plans to look for events that were published while we were away and made long before,
// and for those of layer 4.
func (h *history) lookForLate(items Set, why cause, since nostr.Timestamp, now time.Time) {
	if items.Empty() {
		return
	}
	since -= nostr.Timestamp(lateBy.Seconds())
	groups := Groups(items)
	if !h.reconciler.off {
		groups = h.reconciler.wide(items)
	}
	h.batches = append(h.batches, &batch{
		work: work{groups: groups, cause: why, since: &since, late: true,
			reconcile: true}, state: scheduled, at: now.Add(lateAfter),
	})
}

// finds reports whether something that the diff has found is asked for, for the first time.
func (h *history) finds() bool {
	return slices.ContainsFunc(h.batches, func(b *batch) bool { return b.found() && b.failures == 0 && !b.rests })
}

// has reports whether a batch has not ended.
func (h *history) has(b *batch) bool { return slices.Contains(h.batches, b) }

// start begins with a batch, from the start, and chooses its way.
func (h *history) start(b *batch) {
	b.below = nil
	again := b.next == afresh || b.next == byNIP77
	worth := b.reconcile || again || size(b.groups) >= worthEverything
	switch reconcile := !h.reconciler.off && (b.since == nil || b.late) && b.next != byREQ && worth; {
	case reconcile && h.waitsForQuiet(b):
		return
	case reconcile:
		h.reconciler.add(b, true)
	default:
		for _, g := range b.groups {
			h.walk(b, g.Narrow(slices.Repeat([]bool{true}, len(g))), b.since)
		}
	}
	b.state, b.next, b.at, b.broken, b.grace = underWay, goOn, time.Time{}, nil, h.grace
}

// waitsForQuiet has a large batch of layer 4 wait, for a while, until no other walk is under way: then
// one session about everything takes the place of the names of all its items.
func (h *history) waitsForQuiet(b *batch) (waits bool) {
	now := time.Now()
	others := h.Negentropy.Coordinator.Others(b.lease, now)
	if b.waited || len(others) == 0 || h.reconciler.narrow || !b.found() || !b.items.Above().Empty() ||
		size(b.groups) < worthEverything {
		return false
	}
	b.waited, b.state, b.waitFor, b.waitBy, b.at = true, leftToOthers, others, now.Add(longestWait), now.Add(lookAgain)
	return true
}

// size is about how many bytes groups take.
func size(groups []Group) (bytes int) {
	for _, g := range groups {
		bytes += g.Bytes()
	}
	return bytes
}

// tend ends batches that have come to their end, and begins with those that have waited long
// enough.
func (h *history) tend(now time.Time) {
	h.fetchByID(h.Reminders.take(now, h.roomByID()))
	for _, b := range h.batches {
		groups := b.toWalk
		b.toWalk = nil
		h.walk(b, groups, b.since)
	}
	h.endPages(now)
	h.batches = slices.DeleteFunc(h.batches, func(b *batch) bool { return b.over() && h.ended(b, now) })
	for _, b := range h.batches {
		switch {
		case b.state == underWay || now.Before(b.at):
		case b.state == leftToOthers && now.Before(b.waitBy) && h.Negentropy.Coordinator.Busy(b.waitFor, now):
			b.at = now.Add(lookAgain)
		default:
			h.begin(b, now)
		}
	}
}

// ended decides about a batch that is over, and reports whether it is confirmed.
func (h *history) ended(b *batch, now time.Time) (confirmed bool) {
	switch {
	case b.next == byNIP77:
		b.since = nil
		h.start(b)
	case b.byID:
		return h.endedByID(b, now)
	case b.next != goOn || len(b.broken)+len(b.lost) > 0:
		b.fail(now)
		if until, all := b.allRest(); all && b.next == goOn && len(b.lost) == 0 {
			b.at, b.rests = until, true
			if b.found() {
				h.confirm(Union(h.confirmed, Only(b.separate(), h.wanted)))
			}
			return !b.found() // what no target wants is not asked for again
		}
	case len(b.below) > 0:
		h.lookBelow(b)
	case b.hidden.Swap(false):
		h.reconciler.narrow = true
		h.reconciler.add(b, false)
	default:
		b.release(true)
		came := Only(b.items, h.wanted)
		h.confirm(Union(h.confirmed, came))
		h.settle(came, now)
		return true
	}
	return false
}

// fail has a batch tried again later.
func (b *batch) fail(now time.Time) {
	b.failures++
	b.state, b.at = failed, now.Add(backoff.After(b.failures, retryFirst, retryMost))
	b.release(false)
}

// lookBelow asks by REQ for what a relay may have hidden.
func (h *history) lookBelow(b *batch) {
	for _, hidden := range b.below {
		for _, t := range h.walk(b, []Group{{hidden.filter}}, hidden.filter.Since) {
			t.probes = hidden.probe
		}
	}
	b.below = nil
}

// begin has a batch under way that is not.
func (h *history) begin(b *batch, now time.Time) {
	switch {
	case b.byID:
		b.beginByID()
		return
	case b.state == leftToOthers:
		b.groups, b.waitFor = Groups(b.items), nil
	}
	lost := b.lost
	b.lost = nil
	if b.state != failed || b.next != goOn {
		b.named = nil
		h.start(b)
		return
	}
	var rest []*task
	for _, t := range b.broken {
		if now.Before(t.restsUntil) {
			rest = append(rest, t)
			continue
		}
		t.tries, t.proved, t.restsUntil = 0, false, time.Time{}
		t.Again()
		h.queue = append(h.queue, t)
		b.running++
	}
	b.state, b.at, b.broken, b.named, b.rests = underWay, time.Time{}, rest, nil, false
	b.name(lost)
}

// next tells when something becomes due by itself; zero moments count for nothing.
func (h *history) next(due func(...time.Time)) {
	due(h.historyPausedUntil, h.reconciler.pausedUntil, h.Reminders.first, h.nextBegin)
	for _, b := range h.batches {
		due(b.at)
	}
}

// mustTend reports whether work is due at once, though nothing has come.
func (h *history) mustTend() bool {
	return slices.ContainsFunc(h.batches, func(b *batch) bool { return b.over() || len(b.toWalk) > 0 })
}

// pause has nothing of the past asked for a while.
func (h *history) pause(until time.Time) { h.historyPausedUntil = later(h.historyPausedUntil, until) }

// forget forgets all work and what has come of it.
func (h *history) forget() {
	for _, a := range h.governor.open {
		if t, ok := a.(*task); ok {
			h.governor.stop(t)
		}
	}
	h.release()
	h.batches, h.queue = nil, nil
	h.confirm(Set{})
	h.reconciler.restart()
}

// release lets other connections ask for what is being asked for on this one, which has ended.
func (h *history) release() {
	h.keepByID(time.Now())
	for _, b := range h.batches {
		b.release(false)
	}
}

// want takes in what is wanted now. Of the rest nothing is confirmed, and what of it is not under
// way is not tried again. gone says that there is a rest.
func (h *history) want(items Set, gone bool) {
	if gone {
		h.confirmed = Only(h.confirmed, items)
	}
	h.compare = true
	h.batches = slices.DeleteFunc(h.batches, func(b *batch) bool {
		return b.found() && b.state != underWay && Only(b.items, items).Empty()
	})
	h.wanted = items
}

// asked is what was asked for and is not confirmed: it is pending or has failed.
func (h *history) asked() (sets []Set) {
	for _, b := range h.batches {
		sets = append(sets, b.items)
	}
	return sets
}

// missing is the three-way diff of what is wanted.
func (h *history) missing() Set { return Diff(h.wanted, Union(h.asked()...), h.confirmed) }

// known is what was asked for, whether it has come or not.
func (h *history) known() Set { return Union(append(h.asked(), h.confirmed)...) }

// confirm says what batches have confirmed, of what is wanted.
func (h *history) confirm(confirmed Set) { h.confirmed, h.compare = confirmed, true }

// settle keeps in mind that something was confirmed just now: its last pages may have ended too
// early.
func (h *history) settle(came Set, now time.Time) {
	h.settling = slices.DeleteFunc(h.settling, func(c confirmation) bool { return now.Sub(c.at) > lateFor })
	h.settling = append(h.settling, confirmation{came, now})
}

// doubtful is what was confirmed so lately that the relay may have sent more of it.
func (h *history) doubtful(now time.Time) (items Set) {
	for _, c := range h.settling {
		if now.Sub(c.at) <= lateFor {
			items = Union(items, c.items)
		}
	}
	return Only(items, h.confirmed)
}

// lookAtDoubtful plans to ask once more, from the beginning, for what was doubtful when the connection
// before ended. Until that has come it is not confirmed.
func (h *history) lookAtDoubtful(items Set, now time.Time) {
	if !items.Empty() {
		h.batches = append(h.batches, &batch{
			work: work{items: items, groups: Groups(items), cause: cause{source: proto.SourceReconnect}, late: true,
				reconcile: true}, state: scheduled, at: now.Add(lateAfter),
		})
	}
}

// allConfirmed reports whether batches have confirmed all that is wanted, but for layer 4 (above) and
// with it. It is called with every message, so it compares only what has changed since the last call.
func (h *history) allConfirmed() (above, all bool) {
	if h.compare {
		h.compare = false
		rest := Diff(h.wanted, Set{}, h.confirmed)
		if h.all = rest.Empty(); h.all {
			h.confirmed = h.wanted // which is the same, and is in memory once
		}
		h.above = rest.Above().Empty()
	}
	return h.above, h.all
}

// standing is how the batches stand.
type standing struct {
	working  bool      // a batch is under way for the first time that is not asked for again and again
	pending  bool      // one that the diff has found is, and is not left to another connection
	failed   bool      // a batch has failed and has not ended since
	caughtUp bool      // what a start asks for has come
	missing  time.Time // since when the past is asked for in place of what did not come live; zero: it is not
}

func (h *history) standing() standing {
	st := standing{caughtUp: true}
	for _, b := range h.batches {
		if b.byID || b.look || b.rests { // no batch waits for what may not be there
			continue
		}
		first := b.failures == 0
		st.working, st.failed = st.working || first && !b.late && !b.instead, st.failed || !first
		if b.found() {
			st.pending = st.pending || first && !b.late && b.state != leftToOthers
		} else {
			st.caughtUp = false
		}
		st.missing = earlier(st.missing, b.cause.missing)
	}
	return st
}

// askMore puts as many of the tasks that wait to the relay as may be open at once. What was named
// is fetched before more is found.
func (h *history) askMore(ctx context.Context, now time.Time) {
	if now.Before(h.historyPausedUntil) || h.governor.paused(now) {
		return
	}
	toFetch := 0
	for _, b := range h.batches {
		toFetch += len(b.toFetch)
	}
	h.reconciler.ask(ctx, now, toFetch >= fullAt)
	live, open := h.governor.count()
	for ; open < h.governor.limits.Past(live, h.Rules.AtOnce); open++ {
		if len(h.queue) == 0 || !h.queue[0].fetches {
			h.fetchNext()
		}
		if h.shorten(now); len(h.queue) == 0 {
			return
		}
		t := h.queue[0]
		if begins := t.begins(); begins && now.Before(h.nextBegin) {
			return
		} else if begins {
			h.nextBegin = now.Add(h.Rules.Apart)
		}
		h.queue = slices.Delete(h.queue, 0, 1) // which lets go of the task
		t.tries++
		t.id = h.governor.name("h")
		h.governor.ask(t, now)
	}
}
