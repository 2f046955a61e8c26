package session

import (
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

const (
	// refusedRest is how long a request rests that the relay refuses for good.
	refusedRest = 24 * time.Hour
	// mostAlone is how many single items in a row a relay may refuse, in the smallest form and with
	// nothing answered in between. What else it refuses as too large then rests at once.
	mostAlone = 4
	// leastLong is the shortest time, in seconds, that a relay is believed to take for good: to divide
	// every walk into shorter ones would be more requests than the refusals that it spares.
	leastLong nostr.Timestamp = 24 * 60 * 60
)

// halve cuts what goes in one REQ into two halves: of the filters, or of the longest list that the
// only filter has. It returns nil if there is nothing to cut.
func halve(filters []nostr.Filter) (parts [][]nostr.Filter) {
	if n := len(filters); n != 1 {
		if n == 0 {
			return nil
		}
		return [][]nostr.Filter{filters[:n/2], filters[n/2:]}
	}
	f, longest, name := filters[0], 1, ""
	for tag, values := range f.Tags {
		if len(values) > longest {
			longest, name = len(values), tag
		}
	}
	for _, part := range []bool{false, true} {
		half := f
		switch {
		case len(f.IDs) > longest:
			half.IDs = halfOf(f.IDs, part)
		case len(f.Authors) > longest:
			half.Authors = halfOf(f.Authors, part)
		case name != "":
			half.Tags = nostr.TagMap{}
			for tag, values := range f.Tags {
				if half.Tags[tag] = values; tag == name {
					half.Tags[tag] = halfOf(values, part)
				}
			}
		default:
			return nil
		}
		parts = append(parts, []nostr.Filter{half})
	}
	return parts
}

func halfOf(list []string, second bool) []string {
	if half := len(list) / 2; !second {
		return list[:half:half]
	}
	return list[len(list)/2:]
}

// values is how many values the longest list of filters has.
func values(filters []nostr.Filter) (n int) {
	for _, f := range filters {
		n = max(n, len(f.IDs), len(f.Authors))
		for _, list := range f.Tags {
			n = max(n, len(list))
		}
	}
	return n
}

// cut cuts a group into several, whose filters name at most so many values of a tag. A group that
// asks for several tags of a filter at once stays whole.
func (g Group) cut(most int) (all []Group) {
	if values(g) <= most {
		return []Group{g}
	}
	for _, f := range g {
		if len(f.Tags) != 1 {
			return []Group{g}
		}
		for name, list := range f.Tags {
			for i, chunk := range slices.Collect(slices.Chunk(list, most)) {
				if i == len(all) {
					all = append(all, nil)
				}
				part := f
				part.Tags = nostr.TagMap{name: chunk}
				all[i] = append(all[i], part)
			}
		}
	}
	return all
}

// divide has a task that the relay refuses as too large asked for in smaller form: fewer filters,
// fewer values, fewer events a page, a shorter time. It reports whether there is a smaller form. Where
// the relay says that the time is too long, that is made shorter first: pages of one event would not
// show all events of a second.
func (h *history) divide(t *task, now time.Time, shorter bool) bool {
	filters, b := t.Filters(), t.batch
	if shorter && h.divideTime(t, now, true) {
		return true
	}
	if parts := halve(filters); parts != nil {
		for i, part := range slices.Backward(parts) {
			w := NewWalk(part, t.limit)
			if t.fetches {
				w = NewFetch(part[0].IDs)
			}
			half := b.part(w)
			if h.first(half); i == 1 {
				half.then = t.then
			}
		}
		return true
	}
	if t.limit > 1 && !t.fetches && h.governor.alone < mostAlone {
		fewer := b.part(NewWalk(filters, t.limit/2))
		fewer.then = t.then
		h.first(fewer)
		return true
	}
	return h.divideTime(t, now, false)
}

// divideTime has two parts of the time asked for, if it can be divided: halves, or the newer is as
// long as the relay is known to take. The newer is asked for first: the older one would only be
// refused too. learns: the relay says that the time is too long, so what it takes is kept in mind.
// For any other reason the next walk may well be taken as it is.
func (h *history) divideTime(t *task, now time.Time, learns bool) bool {
	if t.fetches || h.governor.alone >= mostAlone {
		return false
	}
	filters, b := t.Filters(), t.batch
	from, to := t.times(now)
	long := h.governor.limits.Long()
	switch {
	case (learns || long > 0) && to <= beginning && filters[0].Since == nil && now.Unix() > int64(beginning):
		h.warn("too old", "the relay takes too short a time to be asked for what is dated so long ago", "before", to.Time())
		h.goOn(t)
		return true
	case to-from <= 1:
		return false
	}
	middle := from + (to-from)/2
	if long > 0 && (to-from > long || filters[0].Since == nil) {
		middle, learns = max(from, to-long), false
	}
	newer, older := slices.Clone(filters), slices.Clone(filters)
	for i := range filters {
		newer[i].Since, older[i].Until = &middle, &middle
	}
	first := b.part(NewWalk(newer, t.limit))
	if first.then = t.then; learns && to-middle >= leastLong {
		first.long = to - middle
	}
	if middle > 0 { // else there is no older part
		first.then = b.part(NewWalk(older, t.limit))
		first.then.then = t.then
	}
	h.first(first)
	return true
}

// times are those of which a task asks for events now. What is older than the beginning is asked for
// with the oldest of them.
func (t *task) times(now time.Time) (from, to nostr.Timestamp) {
	filter := t.Filters()[0]
	if to = nostr.Timestamp(now.Unix()); filter.Until != nil {
		to = *filter.Until
	}
	switch {
	case filter.Since != nil:
		from = *filter.Since
	case to > beginning:
		from = beginning
	}
	return from, to
}

// shorten divides the next task until its time is no longer than the relay takes.
func (h *history) shorten(now time.Time) {
	long := h.governor.limits.Long()
	for long > 0 && len(h.queue) > 0 && h.queue[0].begins() {
		t := h.queue[0]
		if from, to := t.times(now); to-from <= long && t.filters[0].Since != nil {
			return
		}
		if h.queue = slices.Delete(h.queue, 0, 1); !h.divideTime(t, now, false) {
			h.first(t)
			return
		}
		t.batch.running--
	}
}

// part is a task in smaller form than what was refused.
func (b *batch) part(w *Walk) *task {
	t := b.task(w)
	t.isPart = true
	return t
}

// rest has a task rest that the relay refuses for good, in the smallest form.
func (h *history) rest(t *task, now time.Time, why string) {
	h.governor.alone++
	h.governor.limitedUntil = now.Add(refusedRest)
	h.warn("rests", "the relay refuses a request for good; it is asked again in a day", "reason", why, "filters",
		len(t.Filters()))
	for t != nil { // what is older would only be refused too
		t.restsUntil = now.Add(refusedRest)
		t.batch.running--
		t.batch.broken = append(t.batch.broken, t)
		t.then, t = nil, t.then
	}
}

// allRest reports whether nothing is left of a batch but what rests, and until when.
func (b *batch) allRest() (until time.Time, all bool) {
	for _, t := range b.broken {
		if t.restsUntil.IsZero() {
			return time.Time{}, false
		}
		until = earlier(until, t.restsUntil)
	}
	return until, len(b.broken) > 0
}

// separate leaves in a batch only the items that rest, and returns the others, which have come.
func (b *batch) separate() (came Set) {
	var named []string
	for _, t := range b.broken {
		for _, f := range t.Filters() {
			if len(f.Tags) == 0 {
				return Set{} // it is not known which items these are
			}
			for _, list := range f.Tags {
				named = append(named, list...)
			}
		}
	}
	named = unique(named)
	all := b.items
	rests := Set{Full: both(all.Full, named), States: both(all.States, named), Roots: both(all.Roots, named),
		Replies: both(all.Replies, named)}
	came = Diff(b.items, rests, Set{})
	if b.items = rests; b.items.Empty() {
		b.items = Set{}
	}
	return came
}

// learn takes over, for what is asked for next, the form in which the relay has answered what it
// had refused in a larger one.
func (g *governor) learn(t *task) {
	filters := t.Filters()
	g.limits.Took(wire.Form{Filters: len(filters), Values: values(filters), Events: t.limit, Long: t.long})
}
