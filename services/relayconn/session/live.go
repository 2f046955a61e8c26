package session

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// lookEvery is how often the past is asked for instead of what the relay does not take live, and
	// probeEvery how often the relay is then asked for more than it is thought to take.
	lookEvery, probeEvery = time.Minute, 10 * time.Minute
	// missedMargin is how much earlier than it went missing the past is asked for: clocks differ,
	// and events come late.
	missedMargin = 15 * time.Minute
	// trimAfter is how long live filters may ask for what was withdrawn. Strangers' announcements
	// come and go, and to rebuild the filters costs a look at the past of all.
	trimAfter = time.Hour
	// mostReplies is how many events are named live of those of layer 4 that become known together. The
	// names of all that a relay has would be more than what comes on them; they are asked for daily.
	mostReplies = 3 * perFilter
	// lookMargin is how late an event may come live.
	lookMargin = time.Minute
	// lateVerdict is how long a live event waits for its verdict before it counts as missing: a
	// worker that dies meanwhile leaves it to its successor.
	lateVerdict = 10 * time.Second
)

// live is what comes from now on: the subscriptions that stay open, and since when events are
// missing on each of them (a gap), which are then asked for as the past.
type live struct {
	*Options
	governor *governor
	history  *history

	subscriptions []*subscription
	trimAt        time.Time // when filters are rebuilt without what was withdrawn; zero: nothing was
	fullAt        time.Time // want of room is no reason to consolidate again before
	probeAt       time.Time // when the relay may be asked for more than it is thought to take

	unjudged   atomic.Int64 // events without a verdict
	unjudgedAt time.Time    // since when there has always been one
}

// subscription is one live subscription. It is open, or asked for and not answered, if its request
// is among the governor's.
type subscription struct {
	request
	groups   []Group
	past     []Group   // the same filters as the past is asked for: as many together as may be open live
	first    bool      // of layer 1, which consolidation leaves alone
	rank     int       // see rankOf: where there is little room, the lowest ranks are kept
	missing  time.Time // since when events have not come on it, or had no verdict; zero: they come
	reopenAt time.Time // of one that is closed
	owed     *batch    // the past that was asked for instead
	replaced bool      // others are opened in its place, and it is closed when they are open
	lookAt   time.Time // when it is looked whether it has fallen silent; zero: it is not open yet
	looked   *batch    // the look that was made last
}

// Filters ask for what comes from now on, and depend on no clock.
func (l *subscription) Filters() (filters []nostr.Filter) {
	for _, f := range slices.Concat(l.groups...) {
		f.LimitZero = true
		filters = append(filters, f)
	}
	return filters
}

// Matches reports whether an event is what the subscription asks for.
func (l *subscription) Matches(ev *nostr.Event) bool { return asksFor(l.groups, ev) }

func asksFor(groups []Group, ev *nostr.Event) bool {
	return slices.ContainsFunc(groups, func(g Group) bool { return g.Matches(ev) })
}

// refused acts on what was decided about a subscription that is not open any more.
func (v *live) refused(l *subscription, d decision, now time.Time) {
	switch {
	case d.action == askInParts && l.replaced:
		v.missingOnAll(now)
		return
	case d.action == askInParts && !d.shorter && v.split(l):
		return
	case d.action == askWithRoom && v.closeReplaced(now):
		d.at = now
	case d.action == giveUp || d.action == restForADay && l.first: // of layer 1 nothing rests
		d.at = now.Add(v.Rules.Cooldown)
	}
	v.warn("closed", "a live subscription is not open at the relay", "reason", d.why)
	if l.replaced {
		v.missingOnAll(now)
		return
	}
	if l.misses(now); !l.answered {
		l.misses(l.asked)
	}
	l.reopenAt = d.at
}

// misses notes that events are missing since a moment. Of layer 4 the past is asked for daily and
// when a connection begins, and not in place of what does not come live.
func (l *subscription) misses(since time.Time) {
	if l.rank != layer4 {
		l.missing = earlier(l.missing, since)
	}
}

// missingOnAll notes on all that stands that events are missing since a time: what was replaced has
// ended, and no goroutine looks at it any more.
func (v *live) missingOnAll(since time.Time) {
	for _, l := range v.subscriptions {
		if !l.first && !l.answered {
			l.misses(since)
		}
	}
}

// split asks in two halves for what is too much in one subscription for the relay. It reports
// whether there are halves.
func (v *live) split(l *subscription) bool {
	var parts [][]Group
	if n := len(l.groups); n > 1 {
		parts = [][]Group{l.groups[:n/2], l.groups[n/2:]}
	} else {
		for _, part := range halve(l.groups[0]) {
			parts = append(parts, []Group{part})
		}
	}
	if parts == nil {
		return false
	}
	v.subscriptions = slices.DeleteFunc(v.subscriptions, func(o *subscription) bool { return o == l })
	for _, groups := range parts {
		v.add(groups, l.first, l.rank).misses(earlier(l.missing, l.asked))
	}
	return true
}

func (v *live) add(groups []Group, first bool, rank int) *subscription {
	l := &subscription{request: request{id: v.governor.name("l")}, groups: groups, first: first, rank: rank,
		past: []Group{slices.Concat(groups...)}}
	v.subscriptions = append(v.subscriptions, l)
	return l
}

// open subscribes to what comes from now on, of which events are missing since a time. Layer 1 is
// opened though the relay may have no room, and layer 4 only with the filters that are left of
// those that consolidation keeps to. Requests for the past make room for it, and so does what was
// replaced.
func (v *live) open(s Set, missing, now time.Time) {
	var added []*subscription
	for _, piece := range v.governor.pieces(Groups(Set{First: s.First})) {
		added = append(added, v.add(piece, true, 0))
	}
	for _, piece := range v.governor.pieces(Live(s)) {
		added = append(added, v.add(piece, false, rankOf(piece[0][0])))
	}
	replies := Groups(Set{Replies: s.Replies[:min(len(s.Replies), mostReplies)]})
	room := max(0, v.Rules.MaxFilters-v.filters()) / 3
	for _, piece := range v.governor.pieces(replies[:min(len(replies), room)]) {
		added = append(added, v.add(piece, false, layer4))
	}
	if lives, _ := v.governor.count(); !v.governor.limits.Live(lives+len(added)-1) && v.closeReplaced(now) {
		missing = earlier(missing, now)
	}
	v.history.makeRoom(len(added))
	for _, l := range added {
		if l.misses(missing); !v.hasRoom(l, now) {
			v.wait(l, now)
		} else {
			v.governor.ask(l, now)
		}
	}
}

// filters counts the live filters of layers 2 to 4.
func (v *live) filters() (n int) {
	for _, l := range v.subscriptions {
		if !l.first {
			n += countFilters(l.groups)
		}
	}
	return n
}

// replace forgets the subscriptions, with layer 1 or without. They stay open at the relay until
// closeReplaced, so that events come until those in their place are open. It returns since when
// events are missing on any of them; zero: none are.
func (v *live) replace(layer1 bool) (missing time.Time) {
	v.subscriptions = slices.DeleteFunc(v.subscriptions, func(l *subscription) bool {
		if l.first && !layer1 {
			return false
		}
		missing, l.replaced = earlier(missing, l.missing), true
		return true
	})
	return missing
}

// closeReplaced ends what was replaced, and reports whether there was any. From now on events are
// missing on what is not open yet.
func (v *live) closeReplaced(now time.Time) (closed bool) {
	for _, a := range v.governor.open {
		if l, is := a.(*subscription); is && l.replaced {
			closed = true
			v.governor.stop(l)
		}
	}
	for _, l := range v.subscriptions {
		if closed && v.governor.isOpen(l) && !l.answered {
			l.misses(now)
		}
	}
	return closed
}

// hasRoom reports whether a subscription can be opened. One that is wanted less is closed for it.
func (v *live) hasRoom(l *subscription, now time.Time) bool {
	if l.first || v.governor.roomForLive() {
		return true
	}
	least := v.leastWanted()
	if least == nil || least.rank <= l.rank {
		return false
	}
	v.governor.stop(least)
	v.wait(least, now)
	return true
}

// leastWanted is the open subscription that is wanted least, but for layer 1; nil: there is none.
func (v *live) leastWanted() (least *subscription) {
	for _, a := range v.governor.open {
		l, is := a.(*subscription)
		if is && !l.first && (least == nil || cmp.Or(cmp.Compare(l.rank, least.rank), cmp.Compare(l.order, least.order)) > 0) {
			least = l
		}
	}
	return least
}

// wait keeps a subscription for which the relay has no room. It may have some later, and the past
// is asked for meanwhile.
func (v *live) wait(l *subscription, now time.Time) {
	v.warn("no room", "the relay takes too few subscriptions for all that should come live; the rest is asked for from time to time", "every", lookEvery)
	l.misses(now)
	l.reopenAt = now.Add(v.Rules.Cooldown)
}

// makeRoom closes what is wanted least, but for layer 1, until there is room for the past, and
// reports whether it has closed anything.
func (v *live) makeRoom(now time.Time) (made bool) {
	for n, _ := v.governor.count(); n > 1 && !v.governor.limits.Live(n-1); n-- {
		least := v.leastWanted()
		if least == nil {
			break
		}
		v.governor.stop(least)
		v.wait(least, now)
		made = true
	}
	return made
}

// allOpen reports whether nothing is being opened. While something is, nothing else may be asked
// for: what comes from now on must be open before the past is asked for, or something falls in
// between, in any order in which a relay does what it is asked. Nothing waits for a subscription on
// which events are missing: what falls in between is made up for once it is open.
func (v *live) allOpen() bool {
	return !slices.ContainsFunc(v.subscriptions, func(l *subscription) bool {
		return v.governor.isOpen(l) && !l.answered && l.missing.IsZero()
	})
}

// tend asks for what is missing, and opens again what is closed, if there is room. From time to
// time the past is asked for in place of what stays closed; then the relay may have one more
// subscription than it was thought to take.
func (v *live) tend(now time.Time) {
	if v.governor.paused(now) {
		return
	}
	looked, full := false, false
	for _, l := range v.subscriptions {
		switch {
		case v.governor.isOpen(l):
			if l.answered {
				v.makeUp(l)
				v.look(l, now)
			}
			continue
		case now.Before(l.reopenAt):
		case !v.hasRoom(l, now):
			l.reopenAt, full = now.Add(v.Rules.Cooldown), true
		default:
			v.governor.ask(l, now)
			continue
		}
		if !now.Before(l.missing.Add(lookEvery)) && v.makeUp(l) {
			l.owed.instead = true
			l.missing, looked = now, true
		}
		v.look(l, now)
	}
	if looked && !now.Before(v.probeAt) {
		v.probeAt = now.Add(probeEvery)
		v.governor.limits.Probe()
	}
	trim := !v.trimAt.IsZero() && !now.Before(v.trimAt)
	// What the relay has refused as too large was divided, and consolidation puts it together again.
	if full = full && !now.Before(v.fullAt); full {
		v.fullAt = now.Add(v.Rules.Cooldown)
	}
	if full || trim {
		if all := v.wanted(); trim || len(v.governor.pieces(Live(all))) < v.count(layer4)-1 {
			v.consolidate(all, now)
		}
	}
	if v.allOpen() {
		v.closeReplaced(now)
	}
}

// next tells when something becomes due by itself; zero moments count for nothing.
func (v *live) next(due func(...time.Time)) {
	due(v.trimAt, v.unjudgedAt.Add(lateVerdict))
	for _, l := range v.subscriptions {
		due(l.reopenAt, l.lookAt, l.missing.Add(lookEvery))
	}
}

// look looks once in a while whether a subscription has fallen silent unnoticed: a short time of
// the past is asked for, and what that brings should have come live. If it brings something, the
// subscription is opened anew. So is it looked for what came late where a subscription stays closed.
func (v *live) look(l *subscription, now time.Time) {
	switch {
	case v.Rules.SilentLook == 0 || l.rank == layer4 && !v.governor.isOpen(l):
	case l.lookAt.IsZero():
		l.lookAt = now.Add(v.Rules.SilentLook)
	case v.governor.isOpen(l) && l.looked != nil && l.looked.gap.Swap(false):
		v.warn("silent", "a live subscription has fallen silent; it is opened again")
		v.governor.stop(l)
		l.misses(now)
		l.id = v.governor.name("l") // a relay may heed the CLOSE late
		v.governor.ask(l, now)
	case !now.Before(l.lookAt) && (l.looked == nil || !v.history.has(l.looked)):
		since := nostr.Timestamp(now.Add(-v.Rules.SilentLook - lateBy).Unix())
		why := cause{source: proto.SourceReconnect, liveUntil: now.Add(-lookMargin)}
		l.looked = v.history.add(work{groups: l.past, cause: why, since: &since, look: true})
		l.lookAt = now.Add(v.Rules.SilentLook)
	}
}

// makeUp plans to ask for what did not come live, if anything, unless that is under way for the
// subscription.
func (v *live) makeUp(l *subscription) bool {
	if l.missing.IsZero() || l.owed != nil && v.history.has(l.owed) {
		return false
	}
	since := nostr.Timestamp(l.missing.Add(-missedMargin).Unix())
	why := cause{source: proto.SourceReconnect, missing: l.missing, liveUntil: l.missing}
	l.owed = v.history.add(work{groups: l.past, cause: why, since: &since})
	l.missing = time.Time{}
	return true
}

// lost notes that an event that came live has no verdict: it is missing like those that did not
// come.
func (v *live) lost(l *subscription, came time.Time) {
	v.warn("unjudged", "events that came live had no verdict; they are asked for again", "since", came)
	if l.misses(came); !slices.Contains(v.subscriptions, l) {
		v.makeUp(l)
	}
}

// missingSince is since when what comes live is not all there; zero: it is.
func (v *live) missingSince() (since time.Time) {
	if v.unjudged.Load() > 0 && time.Since(v.unjudgedAt) >= lateVerdict {
		since = v.unjudgedAt
	}
	for _, l := range v.subscriptions {
		since = earlier(since, l.missing)
	}
	return since
}

// withdrawn notes that something is not wanted any more.
func (v *live) withdrawn(now time.Time) {
	if v.trimAt.IsZero() {
		v.trimAt = now.Add(trimAfter)
	}
}

// wanted is what should be live beside layer 1.
func (v *live) wanted() Set {
	all := v.history.known()
	all.First = false
	return all
}

// count counts the subscriptions of ranks below one.
func (v *live) count(rank int) (n int) {
	for _, l := range v.subscriptions {
		if l.rank < rank {
			n++
		}
	}
	return n
}

// crowded reports whether the filters of layers 2 and 3 should be made fewer before so many more
// are added. Where even the fewest are too many, that is done only when it saves a good part, not
// with every addition.
func (v *live) crowded(more int) bool {
	have := v.filters()
	if have == 0 || have+more <= v.Rules.MaxFilters {
		return false
	}
	fewest := countFilters(Live(v.wanted()))
	return fewest+more <= v.Rules.MaxFilters || have-fewest >= (v.Rules.MaxFilters+3)/4
}

// consolidate makes the many filters of layers 2 and 3 few full ones. Batches go on, from where
// each walk stands.
func (v *live) consolidate(all Set, now time.Time) {
	v.trimAt = time.Time{}
	v.open(all, v.replace(false), now)
}
