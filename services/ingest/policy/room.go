package policy

import (
	"cmp"
	"math"

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
	queues *btree.BTreeG[place]
	loads  map[party]Load
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

// lightBytes is the load up to which authors and sources are alike. It is what one announcement of
// the largest size takes.
const lightBytes = 128 << 10

// party is one that entries are counted for: a pool, or an author or a source in one. Keys cost
// nothing, so sources are bounded too.
type party struct{ pool, kind, name string }

const (
	openPool     = "open"
	reservedPool = "reserved"
	byAuthor     = "author"
	byClient     = "client"
	byRelay      = "relay"
	byWeight     = "weight" // whose queue is the authors and sources of its pool, the heaviest first
)

// place is one in the queue of a party: of an entry, those that make room before others first.
type place struct {
	party
	order int // 0: silent or vouched for, which go first; less than 0: the weight
	until int64
	key   string
	entry *held.Entry
	heavy party
}

// NewRoom counts entries.
func NewRoom(entries ...*held.Entry) *Room {
	less := func(a, b place) bool {
		return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name),
			cmp.Compare(a.order, b.order), cmp.Compare(a.until, b.until), cmp.Compare(a.key, b.key)) < 0
	}
	r := &Room{loads: map[party]Load{}, queues: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
	for _, e := range entries {
		r.Add(e)
	}
	return r
}

// partiesOf are the parties that an entry counts for: its author, its source, and its pool.
func partiesOf(e *held.Entry) []party {
	pool := openPool
	if e.Reserved {
		pool = reservedPool
	}
	parties := []party{{pool, byAuthor, e.Event.PubKey}}
	switch {
	case e.Client != "":
		parties = append(parties, party{pool, byClient, e.Client})
	case e.Relay != "":
		parties = append(parties, party{pool, byRelay, e.Relay})
	}
	return append(parties, party{pool: pool})
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
	at := place{party: p, until: e.ExpiresAt.UnixNano(), key: e.Key, entry: e}
	if e.Phase == proto.PhaseWaiting {
		at.order = 1
	}
	return at
}

// Add counts an entry.
func (r *Room) Add(e *held.Entry) {
	for _, p := range partiesOf(e) {
		r.queues.Set(placeOf(p, e))
		r.weigh(p, 1, weightOf(e))
	}
}

// Remove counts an entry no more. It must be the one that was added.
func (r *Room) Remove(e *held.Entry) {
	for _, p := range partiesOf(e) {
		if _, counted := r.queues.Delete(placeOf(p, e)); counted {
			r.weigh(p, -1, -weightOf(e))
		}
	}
}

func (r *Room) weigh(p party, events, bytes int) {
	load := r.loads[p]
	at := place{party: party{pool: p.pool, kind: byWeight}, order: -load.Bytes, key: p.kind + p.name, heavy: p}
	r.queues.Delete(at)
	load = Load{load.Events + events, load.Bytes + bytes}
	if r.loads[p] = load; load.Events == 0 {
		delete(r.loads, p)
	} else if p.kind != "" {
		at.order = -load.Bytes
		r.queues.Set(at)
	}
}

// first returns the first place of a party's queue; nothing in it: the queue is empty.
func (r *Room) first(p party) (first place) {
	r.queues.Ascend(place{party: p, order: math.MinInt}, func(at place) bool {
		if at.party == p {
			first = at
		}
		return false
	})
	return first
}

// most is the bound of a party.
func (b Bounds) most(p party) Load {
	switch {
	case p.kind == byAuthor:
		return b.Author
	case p.kind == "" && p.pool == openPool:
		return Load{Bytes: b.Bytes}
	case p.kind == "":
		return Load{Bytes: b.Reserved}
	case p.pool == reservedPool: // strangers at an owner's address do not use up the owner's room
		return Load{}
	case p.kind == byClient:
		return b.Client
	}
	return b.Relay
}

// What is said where a bound leaves no room for an entry.
const (
	fullForAuthor = "rate-limited: too much of this author waits for git data here; push what waits, or try again later"
	fullInAll     = "rate-limited: too much waits for git data here; try again later"
)

// Admit finds room for a new entry when those that are leaving are gone. It returns the entries
// that must be dropped for it, or why there is none. It changes nothing.
func (r *Room) Admit(b Bounds, e *held.Entry, leaving []*held.Entry) (drop []*held.Entry, full string) {
	var gone []*held.Entry
	remove := func(e *held.Entry) {
		if _, counted := r.queues.Get(placeOf(partiesOf(e)[0], e)); counted {
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
	for _, p := range partiesOf(e) {
		for b.most(p).fills(r.loads[p], weight) {
			victim := r.victimIn(p, e, weight)
			switch {
			case victim == nil && p.kind == byAuthor:
				return nil, fullForAuthor
			case victim == nil:
				return nil, fullInAll
			}
			drop = append(drop, victim)
			remove(victim)
		}
	}
	return drop, ""
}

// fills reports whether one more entry of that weight is too much.
func (most Load) fills(have Load, weight int) bool {
	return most.Events > 0 && have.Events+1 > most.Events || most.Bytes > 0 && have.Bytes+weight > most.Bytes
}

// victimIn returns the entry of a party that makes room for e; nil: none does, e is refused. Silent
// entries go first. Then an author has no room left, of a source the oldest goes, and of a pool the
// oldest of the author or source that has the most with e: if that has no other, e is refused.
// Where all are light the oldest of all goes, or thousands of small sources would close the pool.
func (r *Room) victimIn(p party, e *held.Entry, weight int) *held.Entry {
	first := r.first(p).entry
	switch {
	case first == nil || first.Phase != proto.PhaseWaiting:
		return first
	case p.kind == byAuthor:
		return nil
	case p.kind != "":
		return first
	}
	heaviest := r.first(party{pool: p.pool, kind: byWeight}).heavy
	most := r.loads[heaviest].Bytes
	for _, own := range partiesOf(e) {
		if bytes := r.loads[own].Bytes + weight; own.kind != "" && bytes >= most {
			heaviest, most = own, bytes
		}
	}
	if most <= lightBytes {
		return first
	}
	return r.first(heaviest).entry
}
