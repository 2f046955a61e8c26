package policy

import (
	"cmp"
	"math"
	"strings"

	"github.com/tidwall/btree"

	"tendril.dev/lib/held"
	"tendril.dev/proto"
)

// Room counts what is held, for each party that has a part in it, and finds the entries that make
// room for others. It is not safe for concurrent use.
//
// There are two pools: one for all, and one for what owners and maintainers of served repositories
// hold. An entry of one pool never makes room in the other.
type Room struct {
	queue   *btree.BTreeG[place] // of each party: silent entries first, then by the end of their time
	loads   map[party]Load
	heavier *btree.BTreeG[weighed] // parties of the same parent, the heaviest last
}

// Load is an amount of held events.
type Load struct {
	Events int
	Bytes  int // about what they take in memory
}

// Bounds are how much may be held. 0 anywhere: any number.
type Bounds struct {
	Bytes    int // of the pool for all
	Reserved int // of the pool of owners and maintainers

	Author, Client, Relay Load // of one author, one client address, and one relay that is synced from
}

// DefaultBounds are those of a running service. Several relays together fill the pool for all, and
// many addresses, but no single one of them.
var DefaultBounds = Bounds{
	Bytes: 128 << 20, Reserved: 32 << 20,
	Author: Load{Events: 2000, Bytes: 4 << 20},
	Client: Load{Events: 4000, Bytes: 8 << 20},
	Relay:  Load{Events: 50_000, Bytes: 64 << 20},
}

// lightBytes is the load up to which parties are alike: among them the oldest entry goes. It is
// what one announcement of the largest size takes.
const lightBytes = 128 << 10

// party is one that entries are counted for: a pool, an author or a source in a pool, or an author
// within a source. Keys cost nothing, so a source is also bounded, and so that one author does not
// close a source to the others, each author's part of it is known.
type party struct {
	reserved bool
	parent   string // name of the party that this one is a part of
	name     string
}

const (
	poolName     = "pool"
	authorPrefix = "author "
	clientPrefix = "client "
	relayPrefix  = "relay "
)

type place struct {
	party
	waits bool // false: silent or vouched for, which go first
	until int64
	*held.Entry
}

type weighed struct {
	party
	bytes int
}

// NewRoom counts entries.
func NewRoom(entries ...*held.Entry) *Room {
	r := &Room{
		loads: map[party]Load{},
		queue: btree.NewBTreeGOptions(func(a, b place) bool {
			return cmp.Or(a.party.compare(b.party), compareBool(a.waits, b.waits),
				cmp.Compare(a.until, b.until), cmp.Compare(keyOf(a.Entry), keyOf(b.Entry))) < 0
		}, btree.Options{NoLocks: true}),
		heavier: btree.NewBTreeGOptions(func(a, b weighed) bool {
			return cmp.Or(compareBool(a.reserved, b.reserved), cmp.Compare(a.parent, b.parent),
				cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.name, b.name)) < 0
		}, btree.Options{NoLocks: true}),
	}
	for _, e := range entries {
		r.Add(e)
	}
	return r
}

func (p party) compare(o party) int {
	return cmp.Or(compareBool(p.reserved, o.reserved), cmp.Compare(p.parent, o.parent), cmp.Compare(p.name, o.name))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func keyOf(e *held.Entry) string {
	if e == nil {
		return ""
	}
	return e.Key
}

// partiesOf are the parties that an entry counts for: its pool, its author, its source, and its
// author within the source.
func partiesOf(e *held.Entry) []party {
	author := authorPrefix + e.Event.PubKey
	parties := []party{{e.Reserved, "", poolName}, {e.Reserved, poolName, author}}
	source := ""
	switch {
	case e.Client != "":
		source = clientPrefix + e.Client
	case e.Relay != "":
		source = relayPrefix + e.Relay
	default:
		return parties
	}
	return append(parties, party{e.Reserved, poolName, source}, party{e.Reserved, source, author})
}

// weightOf is about what an event takes in memory: its strings, the slices that hold them, and what
// every entry needs besides.
func weightOf(e *held.Entry) int {
	const entry, slice, text = 1024, 24, 16
	size := entry + len(e.Event.Content)
	for _, tag := range e.Event.Tags {
		size += slice
		for _, value := range tag {
			size += text + len(value)
		}
	}
	return size
}

func placeOf(p party, e *held.Entry) place {
	return place{party: p, waits: e.Phase == proto.PhaseWaiting, until: e.ExpiresAt.UnixNano(), Entry: e}
}

// Add counts an entry.
func (r *Room) Add(e *held.Entry) {
	weight := weightOf(e)
	for _, p := range partiesOf(e) {
		r.queue.Set(placeOf(p, e))
		r.weigh(p, 1, weight)
	}
}

// Remove counts an entry no more. It must be the one that was added.
func (r *Room) Remove(e *held.Entry) {
	weight := weightOf(e)
	for _, p := range partiesOf(e) {
		if _, counted := r.queue.Delete(placeOf(p, e)); counted {
			r.weigh(p, -1, -weight)
		}
	}
}

func (r *Room) weigh(p party, events, bytes int) {
	load := r.loads[p]
	r.heavier.Delete(weighed{p, load.Bytes})
	load.Events, load.Bytes = load.Events+events, load.Bytes+bytes
	if load.Events == 0 {
		delete(r.loads, p)
		return
	}
	r.loads[p] = load
	r.heavier.Set(weighed{p, load.Bytes})
}

// first returns the entry of a party that makes room before the others; nil: it has none.
func (r *Room) first(p party) (e *held.Entry) {
	r.queue.Ascend(place{party: p, until: math.MinInt64}, func(at place) bool {
		if at.party == p {
			e = at.Entry
		}
		return false
	})
	return e
}

// heaviestIn returns the heaviest part of a party.
func (r *Room) heaviestIn(p party) (found weighed) {
	last := weighed{party: party{p.reserved, p.name, ""}, bytes: math.MaxInt}
	r.heavier.Descend(last, func(w weighed) bool {
		if w.reserved == p.reserved && w.parent == p.name {
			found = w
		}
		return false
	})
	return found
}

// most is the bound of a party, and what it is called.
func (b Bounds) most(p party) (Load, Full) {
	switch {
	case p.name == poolName && p.reserved:
		return Load{Bytes: b.Reserved}, FullInAll
	case p.name == poolName:
		return Load{Bytes: b.Bytes}, FullInAll
	case p.parent != poolName: // an author within a source
		return Load{}, NotFull
	case p.isAuthor():
		return b.Author, FullForAuthor
	case p.reserved: // strangers at an owner's address do not use up the owner's room
		return Load{}, NotFull
	case strings.HasPrefix(p.name, clientPrefix):
		return b.Client, FullForClient
	}
	return b.Relay, FullForRelay
}

func (p party) isAuthor() bool { return strings.HasPrefix(p.name, authorPrefix) }

// Full says which bound leaves no room for an entry.
type Full int

// The bounds that can be reached.
const (
	NotFull Full = iota
	FullForAuthor
	FullForClient
	FullForRelay
	FullInAll
)

// Admit finds room for a new entry when those that are leaving are gone. It returns the entries
// that must be dropped for it, or the bound that it does not fit. It changes nothing.
func (r *Room) Admit(b Bounds, e *held.Entry, leaving []*held.Entry) (drop []*held.Entry, full Full) {
	var gone []*held.Entry
	remove := func(e *held.Entry) {
		if _, counted := r.queue.Get(placeOf(partiesOf(e)[0], e)); counted {
			gone = append(gone, e)
			r.Remove(e)
		}
	}
	defer func() {
		for _, e := range gone {
			r.Add(e)
		}
	}()
	for _, e := range leaving {
		remove(e)
	}
	weight := weightOf(e)
	parties := partiesOf(e)
	for _, p := range append(parties[1:], parties[0]) { // the pool at last
		most, name := b.most(p)
		for most.fills(r.loads[p], weight) {
			victim := r.victimIn(p, e, weight)
			if victim == nil {
				return nil, name
			}
			drop = append(drop, victim)
			remove(victim)
		}
	}
	return drop, NotFull
}

// fills reports whether one more entry of that weight is too much.
func (most Load) fills(have Load, weight int) bool {
	return most.Events > 0 && have.Events+1 > most.Events || most.Bytes > 0 && have.Bytes+weight > most.Bytes
}

// victimIn returns the entry of a party that makes room for e; nil: none does, e is refused. Silent
// entries go first. An author has no room left then. In a pool and in a source the oldest entry of
// the heaviest author goes, where e counts for its author: if that is all the author has, e is
// refused. Among light authors the oldest entry goes.
func (r *Room) victimIn(p party, e *held.Entry, weight int) *held.Entry {
	first := r.first(p)
	if first == nil || first.Phase != proto.PhaseWaiting {
		return first
	}
	if p.isAuthor() {
		return nil
	}
	heaviest := r.heaviestIn(p)
	for _, own := range partiesOf(e) {
		bytes := r.loads[own].Bytes + weight
		if own.parent == p.name && own.reserved == p.reserved && bytes >= heaviest.bytes {
			heaviest = weighed{own, bytes}
		}
	}
	switch {
	case heaviest.bytes <= lightBytes:
		return first
	case heaviest.isAuthor():
		return r.first(heaviest.party)
	}
	return r.victimIn(heaviest.party, e, weight)
}
