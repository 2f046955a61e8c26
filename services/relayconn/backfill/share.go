package backfill

import (
	"maps"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/services/relayconn/leads"
	"tendril.dev/services/relayconn/negentropy"
)

// fewestShared is how many root events a group names that is left to another connection which asks
// for the same. Of fewer a REQ is shorter than what finds out that nothing is missing.
const fewestShared = 50

// mostWait is how long a find waits at most for all other connections together. A lead does not
// last longer, but one relay after another may have it, or the same one again when it comes back,
// and the time in which nothing is read does not count there. Items wait twice at most: before it
// is found out whether they are known, and when they were left to others after that.
const mostWait = time.Minute

// sharedItems are the references or root events that a group of filters asks for by tags, if there
// may be much of them; nil: there is not.
func sharedItems(group []nostr.Filter) []string {
	if len(group) < 2 {
		return nil
	}
	for name, values := range group[0].Tags {
		if name == "a" || name == "e" && len(values) >= fewestShared {
			return values
		}
	}
	return nil
}

// narrowed is a group of filters that asks for some of its items only.
func narrowed(group []nostr.Filter, items []string) []nostr.Filter {
	group = slices.Clone(group)
	for i := range group {
		group[i].Tags = maps.Clone(group[i].Tags)
		for name := range group[i].Tags {
			group[i].Tags[name] = items
		}
	}
	return group
}

// board is where connections see what others ask for; nil: what this one asks for is its own
// affair, because it could not find out in a shorter way what the relay has beyond what the others
// bring.
func (b *Backfill) board() *leads.Board {
	if b.neg == nil || !b.neg.Able() {
		return nil
	}
	return b.o.Negentropy.Leads
}

// hasMost reports whether the relay may have most of what is known here. Only then one session
// about everything tells what it has beyond that; to find it out by filters costs more than it
// saves.
func (b *Backfill) hasMost() bool {
	return b.o.Negentropy.Seq() <= uint64(b.mostKnown())
}

// walksShared has a group of filters asked for by REQ, but for what another connection is asking
// for or has asked for when it is this group's turn, if the relay may have most of what is known.
func (b *Backfill) walksShared(batch *batch, group []nostr.Filter, found bool) {
	if b.board() == nil || !b.hasMost() || sharedItems(group) == nil || len(b.together(group)) > 1 {
		b.walks(batch, group, found)
		return
	}
	b.begin(batch, &task{way: b.walk(group), group: group, found: found})
	batch.unshared++
}

// share settles what of a task is asked for on this connection, now that it is its turn, and
// reports whether anything is. The rest waits until it has come elsewhere; then it is found out
// what the relay has beyond that.
func (b *Backfill) share(t *task, now time.Time) bool {
	group := t.group
	if group == nil {
		return true
	}
	t.group = nil
	t.batch.unshared--
	defer b.findDeferred(t)
	board := b.board()
	if board == nil {
		return true
	}
	items := sharedItems(group)
	t.roots = group[0].Tags["e"] != nil
	var mine, rest []string
	var lead *leads.Lead
	if t.roots && board.Idle(items, now) {
		rest = items
	} else {
		mine, rest, lead = board.Take(items, now)
	}
	switch len(rest) {
	case 0:
	case len(items):
		t.batch.deferred = append(t.batch.deferred, group)
	default:
		t.batch.deferred = append(t.batch.deferred, narrowed(group, rest))
	}
	if lead == nil {
		t.gone = true
		t.batch.running--
		b.spent = true
		return false
	}
	t.lead = lead
	if len(rest) > 0 {
		t.way = b.walk(narrowed(group, mine))
	}
	return true
}

// findDeferred begins to find out what the relay has of what was left to others, when that is known
// of all groups of the batch of a task. Finds have led to all of these groups, or to none.
func (b *Backfill) findDeferred(t *task) {
	batch := t.batch
	if batch.unshared > 0 {
		return
	}
	batch.tasks = slices.DeleteFunc(batch.tasks, func(t *task) bool { return t.gone })
	if len(batch.deferred) > 0 {
		b.find(batch, negentropy.Units(batch.deferred, b.o.Allowance.Bytes()), find{late: true, found: t.found})
		batch.deferred = nil
		b.spent = true // nothing may come that would bring us to them
	}
}

// Weighed reports whether it matters how much of what it brings is not known.
func (r *Request) Weighed() bool { return r.task.roots && r.task.lead != nil }

// New notes that an event that it has brought is not known, nor on its way.
func (r *Request) New() { r.task.fresh++ }

// answered notes that an answer of a task has ended.
func (t *task) answered(board *leads.Board) {
	if board != nil && t.roots && t.lead != nil {
		board.Brought(t.came, t.fresh)
	}
	t.came, t.fresh = 0, 0
}

// leadHeard notes that an answer of a task has ended, and that there is more to ask for.
func (t *task) leadHeard(now time.Time) {
	if t.lead != nil {
		t.lead.Heard(now)
	}
}

// endLead ends what a task has asked for in place of others. whole: it has brought all.
func (t *task) endLead(whole bool, now time.Time) {
	if t.lead != nil {
		t.lead.End(whole, t.brought, now)
		t.lead = nil
	}
}

// another is a task for a part of what a task has been asking for.
func (t *task) another(way Way) *task {
	if t.lead != nil {
		t.lead.Part(1)
	}
	return &task{way: way, found: t.found, lead: t.lead, roots: t.roots}
}

// Release lets others ask for what is being asked for on this connection, which has ended.
func (b *Backfill) Release() {
	now := time.Now()
	if b.wide != nil {
		b.wide.probe.End(false)
	}
	for _, batch := range b.batches {
		for _, t := range batch.tasks {
			t.endLead(false, now)
		}
	}
}

// blocked reports whether something of a find is being asked for on another connection.
func (f *find) blocked(now time.Time) bool {
	board := f.b.board()
	if board == nil || !f.waitBy.IsZero() && !now.Before(f.waitBy) {
		return false
	}
	for f.by == nil || f.by.Over(now) {
		if f.by = nil; f.looked == len(f.unit.Groups) {
			return false
		}
		items := sharedItems(f.unit.Groups[f.looked])
		at, by := board.Blocked(items[f.within:], now)
		f.within, f.by = f.within+at, by
		if by == nil {
			f.looked, f.within = f.looked+1, 0
		}
	}
	if f.waitBy.IsZero() {
		f.waitBy = now.Add(mostWait)
	}
	return true
}
