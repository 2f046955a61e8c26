package history

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
)

const (
	// leadPatience is how long a lead lasts after its begin, and after each answer that has ended,
	// and leadLongest how long it lasts at most: a relay is a stranger, which may take its time.
	leadPatience, leadLongest = 15 * time.Second, time.Minute
	// verdicts is how long what came last may take to be decided.
	verdicts = time.Second
	// mostLed is how many items are remembered. One that is forgotten is asked for once more.
	mostLed = 1 << 17
	// fewestShared is how many ids a group names that is left to another connection. Of fewer a REQ
	// is shorter than what finds out that nothing is missing.
	fewestShared = 50
)

// Walks knows which connection of a worker walks through the past of which references and root
// events. Relays have much in common: what one of them is bringing need not come from the others as
// well. Those wait, and find out afterwards what they have beyond it. Nothing depends on what a
// relay brought. It is safe for concurrent use.
type Walks struct {
	mu    sync.Mutex
	seed  maphash.Seed
	led   map[uint64]*Lead // by item
	going map[*Lead]struct{}
}

// NewWalks returns walks of which none is under way.
func NewWalks() *Walks {
	return &Walks{seed: maphash.MakeSeed(), led: map[uint64]*Lead{}, going: map[*Lead]struct{}{}}
}

// Lead is some items that one connection asks for, in one part or several. A nil Lead is none.
type Lead struct {
	walks        *Walks
	parts        int
	failed       bool
	began, heard time.Time
	ended        time.Time // zero: it has not ended
}

// gone reports whether a lead that has not ended is lost, because its relay does not get on.
func (l *Lead) gone(now time.Time) bool {
	return now.Sub(l.heard) >= leadPatience || now.Sub(l.began) >= leadLongest
}

// busy reports whether a lead goes on, or what it has brought last may not be decided yet.
func (l *Lead) busy(now time.Time) bool {
	switch {
	case l == nil || l.failed:
		return false
	case l.ended.IsZero():
		return !l.gone(now)
	}
	return now.Sub(l.ended) < verdicts
}

// Take returns the lead for those items that no other connection asks for or has asked for lately;
// nil: for none. rest is the others.
func (w *Walks) Take(items []string, now time.Time) (mine, rest []string, lead *Lead) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweep(now)
	lead = &Lead{walks: w, parts: 1, began: now, heard: now}
	for _, item := range items {
		key := maphash.String(w.seed, item)
		if l := w.led[key]; l.busy(now) || l != nil && !l.ended.IsZero() && !l.failed {
			rest = append(rest, item)
			continue
		}
		mine = append(mine, item)
		w.led[key] = lead
	}
	if len(mine) == 0 {
		return nil, rest, nil
	}
	w.going[lead] = struct{}{}
	return mine, rest, lead
}

// Busy reports whether one of some items is being asked for.
func (w *Walks) Busy(items []string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(items, func(item string) bool { return w.led[maphash.String(w.seed, item)].busy(now) })
}

// Quiet reports whether nothing is being asked for.
func (w *Walks) Quiet(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.going {
		if l.busy(now) {
			return false
		}
		delete(w.going, l)
	}
	return true
}

// sweep forgets leads when there are many. The lock is held.
func (w *Walks) sweep(now time.Time) {
	if len(w.led) < mostLed {
		return
	}
	maps.DeleteFunc(w.led, func(_ uint64, l *Lead) bool { return !l.busy(now) })
	if len(w.led) >= mostLed {
		clear(w.led)
	}
}

// Heard notes that the walk gets on.
func (l *Lead) Heard(now time.Time) {
	if l != nil {
		l.walks.mu.Lock()
		defer l.walks.mu.Unlock()
		l.heard = now
	}
}

// Part notes that one more part is asked for.
func (l *Lead) Part() {
	if l != nil {
		l.walks.mu.Lock()
		defer l.walks.mu.Unlock()
		l.parts++
	}
}

// End notes that a part has ended, and whether it has brought all that the relay has. Where one has
// not, another connection may ask for it.
func (l *Lead) End(whole bool, now time.Time) {
	if l == nil {
		return
	}
	l.walks.mu.Lock()
	defer l.walks.mu.Unlock()
	l.failed = l.failed || !whole
	if l.parts--; l.parts > 0 && whole || !l.ended.IsZero() {
		return
	}
	l.ended = now
}

// shared are the references or root events that a group of filters asks for by tags, if there may
// be much of them; nil: there is not.
func shared(group []nostr.Filter) []string {
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

// walkShared has a group of filters asked for by REQ, but for what another connection is asking for
// when it is this group's turn.
func (h *History) walkShared(b *batch, group []nostr.Filter) {
	if h.rec.Walks == nil || shared(group) == nil || len(h.together(group)) > 1 {
		h.walkOf(b, group, span{})
		return
	}
	h.begin(b, &task{way: h.walk(group), group: group})
	b.unshared++
}

// leads settles what of a task is asked for on this connection, now that it is its turn, and
// reports whether anything is. The rest waits until it has come elsewhere; then it is found out
// what the relay has beyond that.
func (h *History) leads(t *task, now time.Time) bool {
	group := t.group
	if group == nil {
		return true
	}
	t.group = nil
	b := t.batch
	b.unshared--
	if !h.rec.off {
		mine, rest, lead := h.rec.Walks.Take(shared(group), now)
		t.lead = lead
		if len(rest) > 0 {
			b.left = append(b.left, narrowed(group, rest))
		}
		if len(mine) > 0 && len(rest) > 0 {
			t.way = h.walk(narrowed(group, mine))
		}
		if lead == nil {
			b.tasks = slices.DeleteFunc(b.tasks, func(other *task) bool { return other == t })
			b.running--
			h.spent, t = true, nil
		}
	}
	if b.unshared == 0 && len(b.left) > 0 {
		h.rec.add(b, b.left, true)
		b.left, h.spent = nil, true
	}
	return t != nil
}
