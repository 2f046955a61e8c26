package held

import "time"

// Bounds are how much purgatory holds. 0 anywhere: any number.
type Bounds struct {
	Bytes    int // of everybody's pool
	Reserved int // bytes of the pool of owners and maintainers of served repositories, on top

	Author, Client, Relay Load // most of one author, of one client at the front door, and of one relay that is synced from
}

// Full says which bound leaves no room for an entry.
type Full int

// The bounds that can be reached.
const (
	NotFull       Full = iota
	FullForAuthor      // its author has as much as may be
	FullForClient      // its client has
	FullForRelay       // its relay has
	FullInAll          // and everything that is held has a better claim to its place
)

// lightBytes is the load up to which parties are all alike. It is what one announcement of the
// largest size takes, so that nobody has to be smaller than the members of a crowd to get in: among
// the light, the oldest entry gives way.
const lightBytes = 128 << 10

// waitsAtLeast is how long what came from a full relay has waited before it gives way to others of
// the same relay that are no heavier: a relay that brings more than there is room for, all at once,
// must not push out everything before it was hunted for. Who submits comes at once to push.
const waitsAtLeast = 10 * time.Minute

// Admit finds room for a new entry while those that are leaving go. It returns the entries that
// have to be dropped for it, or which bound it does not fit; then nothing has to be dropped.
//
// An author or source that is over its own bound makes room by its own silent entries; a source
// also by the oldest entry of the author who has most of it, so that nobody closes a shared address
// or a relay to others. When a pool is full, its silent entries go, those first that were silent
// longest; then the oldest of whoever has most of it, measured by what one author or source may
// have. The newcomer is refused where that is itself. The cost does
// not depend on how much is held.
func (l *Ledger) Admit(b Bounds, e *Entry, leaving []*Entry) ([]*Entry, Full) {
	after := l
	leaves := func(gone *Entry) {
		if after == l {
			after = l.Copy()
		}
		after.Remove(gone)
	}
	for _, gone := range leaving {
		leaves(gone)
	}
	var drop []*Entry
	evict := func(victim *Entry) {
		leaves(victim)
		drop = append(drop, victim)
	}
	for _, p := range partiesOf(e) {
		most, full := b.of(p)
		for full != NotFull && exceeds(after.load(p), e, most) {
			victim := after.givesWayIn(p, e)
			if victim == nil {
				return nil, full
			}
			evict(victim)
		}
	}
	limit := b.Bytes
	if e.Reserved {
		limit = b.Reserved
	}
	for limit > 0 && after.All(e.Reserved).Bytes+e.weight > limit {
		victim := after.victim(b, limit, e)
		if victim == nil {
			return nil, FullInAll
		}
		evict(victim)
	}
	return drop, NotFull
}

// givesWayIn is the entry of an author or source that is over its bound which gives way to e, of
// the same author or source; nil: none does.
func (l *Ledger) givesWayIn(p party, e *Entry) *Entry {
	first, silent := l.first(p)
	if silent || first == nil || !p.isSource() {
		if silent {
			return first
		}
		return nil
	}
	heaviest, _ := l.heaviest(p.senders())
	switch mine := l.load(p.sender(e.Event.PubKey)).Bytes + e.weight; {
	case mine > lightBytes && mine >= heaviest.Bytes:
		return nil
	case heaviest.Bytes > lightBytes:
		first, _ = l.first(heaviest.party)
	case p.kind == aRelay && e.HeldAt.Sub(first.HeldAt) < waitsAtLeast:
		return nil
	}
	return first
}

// of is the bound of a party, and what it is called; NotFull: it has none of its own. The sources
// of what owners and maintainers of served repositories send have none: whoever shares an address
// with them must not use up their room.
func (b Bounds) of(p party) (Load, Full) {
	switch {
	case p.kind == anAuthor:
		return b.Author, FullForAuthor
	case p.reserved:
	case p.kind == aClient:
		return b.Client, FullForClient
	case p.kind == aRelay:
		return b.Relay, FullForRelay
	}
	return Load{}, NotFull
}

func exceeds(have Load, e *Entry, most Load) bool {
	return most.Events > 0 && have.Events+1 > most.Events || most.Bytes > 0 && have.Bytes+e.weight > most.Bytes
}

// victim is the entry that gives way to e in its pool; nil: e itself would have to.
func (l *Ledger) victim(b Bounds, limit int, e *Entry) *Entry {
	oldest, silent := l.first(party{reserved: e.Reserved, kind: everybody})
	if silent || oldest == nil {
		return oldest
	}
	var heaviest party
	share, light := 0.0, true
	consider := func(p party, bytes int) {
		most, _ := b.of(p)
		if most.Bytes <= 0 {
			most.Bytes = limit
		}
		if s := float64(bytes) / float64(most.Bytes); bytes > lightBytes && s > share {
			heaviest, share, light = p, s, false
		}
	}
	for _, p := range partiesOf(e) {
		if p.kind != everybody && p.kind != aSender {
			consider(p, l.load(p).Bytes+e.weight)
		}
	}
	for _, kind := range []partyKind{anAuthor, aClient, aRelay} {
		if w, ok := l.heaviest(party{reserved: e.Reserved, kind: kind}); ok {
			consider(w.party, w.Bytes)
		}
	}
	if light {
		return oldest
	}
	if w, ok := l.heaviest(heaviest.senders()); heaviest.isSource() && ok && w.Bytes > lightBytes {
		heaviest = w.party
	}
	victim, _ := l.first(heaviest)
	return victim
}
