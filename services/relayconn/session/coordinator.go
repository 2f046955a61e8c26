package session

import (
	"slices"
	"sync"
	"time"
)

const (
	// leasePatience is how long a lease lasts after its begin, and after each answer that has ended.
	leasePatience = 15 * time.Second
	// indexed is how long it may take until what came last is known to ingest's index.
	indexed = time.Second
	// All items are forgotten after leasedFor, or when there are mostLeased. One that is forgotten is
	// asked for once more.
	mostLeased, leasedFor = 1 << 17, time.Hour
	// fewestShared is how many root events are left to another connection. Of fewer a REQ is
	// shorter than what finds out that nothing is missing.
	fewestShared = 50
)

// HistoryCoordinator knows which connection of a worker walks through the past of which references
// and root events. Relays have much in common: what one of them is bringing need not come from the
// others as well. Those wait, and find out afterwards what they have beyond it. Nothing depends on
// what a relay brought. It is safe for concurrent use, and its zero value has no walk.
type HistoryCoordinator struct {
	mu     sync.Mutex
	leases map[string]*HistoryLease // by item
	began  time.Time                // when leases was empty
}

// HistoryLease is the walk of one connection through the past of some items. A nil HistoryLease is
// none.
type HistoryLease struct {
	coordinator *HistoryCoordinator
	until       time.Time // when it is lost, unless it gets on, or known to the index if it has ended
	complete    bool      // it has ended and brought all that the relay has
}

// Take returns a lease for those items that no other connection walks or has walked through. The
// rest is that of the others.
func (c *HistoryCoordinator) Take(s Set, now time.Time) (lease *HistoryLease, others []*HistoryLease, mine, rest Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.leases) >= mostLeased || now.Sub(c.began) > leasedFor {
		c.leases, c.began = map[string]*HistoryLease{}, now
	}
	lease = &HistoryLease{coordinator: c, until: now.Add(leasePatience)}
	take := func(items []string) (mine, rest []string) {
		for _, item := range items {
			if l := c.leases[item]; l != nil && (l.complete || now.Before(l.until)) {
				rest = append(rest, item)
				if !slices.Contains(others, l) {
					others = append(others, l)
				}
				continue
			}
			mine = append(mine, item)
			c.leases[item] = lease
		}
		return mine, rest
	}
	mine = Set{First: s.First, People: s.People}
	mine.Full, rest.Full = take(s.Full)
	mine.States, rest.States = take(s.States)
	for _, ids := range []struct{ all, mine, rest *[]string }{
		{&s.Roots, &mine.Roots, &rest.Roots}, {&s.Replies, &mine.Replies, &rest.Replies},
	} {
		if *ids.mine, *ids.rest = take(*ids.all); len(*ids.rest) < fewestShared {
			*ids.mine, *ids.rest = *ids.all, nil
		}
	}
	return lease, others, mine, rest
}

// Busy reports whether one of the walks is under way, or what it has brought may not be known yet.
func (c *HistoryCoordinator) Busy(leases []*HistoryLease, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(leases, func(l *HistoryLease) bool { return now.Before(l.until) })
}

// Others are the walks that are under way, but for own.
func (c *HistoryCoordinator) Others(own *HistoryLease, now time.Time) (others []*HistoryLease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.leases {
		if l != own && now.Before(l.until) && !slices.Contains(others, l) {
			others = append(others, l)
		}
	}
	return others
}

// Heard notes that the walk gets on.
func (l *HistoryLease) Heard(now time.Time) { l.set(now.Add(leasePatience), false) }

// End notes that the walk has ended, and whether it has brought all that the relay has. Where it
// has not, another connection may ask for it.
func (l *HistoryLease) End(complete bool) {
	until := time.Time{}
	if complete {
		until = time.Now().Add(indexed)
	}
	l.set(until, complete)
}

func (l *HistoryLease) set(until time.Time, complete bool) {
	if l == nil {
		return
	}
	l.coordinator.mu.Lock()
	defer l.coordinator.mu.Unlock()
	l.until, l.complete = until, complete
}
