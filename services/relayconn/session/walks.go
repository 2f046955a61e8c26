package session

import (
	"slices"
	"sync"
	"time"
)

const (
	// leadPatience is how long a lead lasts after its begin, and after each answer that has ended.
	leadPatience = 15 * time.Second
	// indexed is how long it may take until what came last is known to ingest's index.
	indexed = time.Second
	// All items are forgotten after ledFor, or when there are mostLed. One that is forgotten is asked
	// for once more.
	mostLed, ledFor = 1 << 17, time.Hour
	// fewestShared is how many root events are left to another connection. Of fewer a REQ is
	// shorter than what finds out that nothing is missing.
	fewestShared = 50
)

// Walks knows which connection of a worker walks through the past of which references and root
// events. Relays have much in common: what one of them is bringing need not come from the others as
// well. Those wait, and find out afterwards what they have beyond it. Nothing depends on what a
// relay brought. It is safe for concurrent use, and its zero value has no walk.
type Walks struct {
	mu    sync.Mutex
	leads map[string]*Lead // by item
	began time.Time        // when leads was empty
}

// Lead is the walk of one connection through the past of some items. A nil Lead is none.
type Lead struct {
	walks    *Walks
	until    time.Time // when it is lost, unless it gets on, or known to the index if it has ended
	complete bool      // it has ended and brought all that the relay has
}

// Take returns a lead for those items that no other connection walks or has walked through. The rest
// is that of the others.
func (w *Walks) Take(s Set, now time.Time) (lead *Lead, others []*Lead, mine, rest Set) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.leads) >= mostLed || now.Sub(w.began) > ledFor {
		w.leads, w.began = map[string]*Lead{}, now
	}
	lead = &Lead{walks: w, until: now.Add(leadPatience)}
	take := func(items []string) (mine, rest []string) {
		for _, item := range items {
			if l := w.leads[item]; l != nil && (l.complete || now.Before(l.until)) {
				rest = append(rest, item)
				if !slices.Contains(others, l) {
					others = append(others, l)
				}
				continue
			}
			mine = append(mine, item)
			w.leads[item] = lead
		}
		return mine, rest
	}
	mine = Set{First: s.First, State: s.State} // of which there is one, or few, for each relay
	mine.Full, rest.Full = take(s.Full)
	mine.Roots, rest.Roots = take(s.Roots)
	if len(rest.Roots) < fewestShared {
		mine.Roots, rest.Roots = s.Roots, nil
	}
	return lead, others, mine, rest
}

// Busy reports whether one of the walks is under way, or what it has brought may not be known yet.
func (w *Walks) Busy(leads []*Lead, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(leads, func(l *Lead) bool { return now.Before(l.until) })
}

// Quiet reports whether there is no walk but own.
func (w *Walks) Quiet(own *Lead, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.leads {
		if l != own && now.Before(l.until) {
			return false
		}
	}
	return true
}

// Heard notes that the walk gets on.
func (l *Lead) Heard(now time.Time) { l.set(now.Add(leadPatience), false) }

// End notes that the walk has ended, and whether it has brought all that the relay has. Where it
// has not, another connection may ask for it.
func (l *Lead) End(complete bool) {
	until := time.Time{}
	if complete {
		until = time.Now().Add(indexed)
	}
	l.set(until, complete)
}

func (l *Lead) set(until time.Time, complete bool) {
	if l == nil {
		return
	}
	l.walks.mu.Lock()
	defer l.walks.mu.Unlock()
	l.until, l.complete = until, complete
}
