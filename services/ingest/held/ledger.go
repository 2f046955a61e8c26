package held

import (
	"cmp"
	"math"

	"github.com/nbd-wtf/go-nostr"
	"github.com/tidwall/btree"

	"tendril.dev/proto"
)

// Ledger is how much is held, by whom and since when: running totals and queues, so that what makes
// room is found without looking through what is held. Copies cost nothing and change on their own,
// so that a decision can try what would be. It is not safe for concurrent use.
//
// There are two pools: that of everybody, and the room reserved for owners and maintainers of
// served repositories. Whatever is in one neither counts nor gives way in the other.
type Ledger struct {
	records *btree.BTreeG[record] // of each party, silent entries first, then by the end of their time
	loads   *btree.BTreeG[weighed]
	heavy   *btree.BTreeG[weighed] // of each pool and kind of party, heaviest last
}

// Load is how much is held.
type Load struct {
	Events int
	Bytes  int // about what they take in memory
}

// party is whom entries are counted for.
type party struct {
	reserved bool
	kind     partyKind
	source   string // of aSender: who the source is
	name     string
}

type partyKind uint8

const (
	everybody partyKind = iota // of a pool
	anAuthor
	aClient // the source of a submitted event, by its client key
	aRelay  // the source of a synced event
	aSender // an author, as far as the events came from one source
)

type record struct {
	party
	loud bool // it waits; the silent and the vouched for come first
	at   int64
	key  string
	*Entry
}

type weighed struct {
	party
	Load
}

// NewLedger makes an empty ledger.
func NewLedger() *Ledger {
	unlocked := btree.Options{NoLocks: true, Degree: 8} // small nodes, because copies are changed a little and thrown away
	return &Ledger{
		records: btree.NewBTreeGOptions(func(a, b record) bool { return a.compare(b) < 0 }, unlocked),
		loads:   btree.NewBTreeGOptions(func(a, b weighed) bool { return a.party.compare(b.party) < 0 }, unlocked),
		heavy:   btree.NewBTreeGOptions(func(a, b weighed) bool { return a.compareWeight(b) < 0 }, unlocked),
	}
}

// Copy returns a ledger that says the same and changes on its own. It costs nothing.
func (l *Ledger) Copy() *Ledger {
	return &Ledger{records: l.records.Copy(), loads: l.loads.Copy(), heavy: l.heavy.Copy()}
}

func (p party) compare(o party) int {
	return cmp.Or(compareBool(p.reserved, o.reserved), cmp.Compare(p.kind, o.kind),
		cmp.Compare(p.source, o.source), cmp.Compare(p.name, o.name))
}

func (r record) compare(o record) int {
	return cmp.Or(r.party.compare(o.party), compareBool(r.loud, o.loud), cmp.Compare(r.at, o.at), cmp.Compare(r.key, o.key))
}

func (w weighed) compareWeight(o weighed) int {
	return cmp.Or(compareBool(w.reserved, o.reserved), cmp.Compare(w.kind, o.kind),
		cmp.Compare(w.source, o.source), cmp.Compare(w.Bytes, o.Bytes), cmp.Compare(w.name, o.name))
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

// partiesOf are those that an entry counts for.
func partiesOf(e *Entry) []party {
	parties := []party{
		{reserved: e.Reserved, kind: everybody},
		{reserved: e.Reserved, kind: anAuthor, name: e.Event.PubKey},
	}
	source := party{reserved: e.Reserved}
	switch {
	case e.Client != "":
		source.kind, source.name = aClient, e.Client
	case e.Relay != "":
		source.kind, source.name = aRelay, e.Relay
	default:
		return parties
	}
	return append(parties, source, source.sender(e.Event.PubKey))
}

// isSource reports whether the party is a client or a relay that events came from.
func (p party) isSource() bool { return p.kind == aClient || p.kind == aRelay }

// senders is the kind of party that an author is within a source, for any author.
func (p party) senders() party {
	kind := "client "
	if p.kind == aRelay {
		kind = "relay "
	}
	return party{reserved: p.reserved, kind: aSender, source: kind + p.name}
}

// sender is an author within a source.
func (p party) sender(pubkey string) party {
	sender := p.senders()
	sender.name = pubkey
	return sender
}

func recordOf(p party, e *Entry) record {
	return record{party: p, loud: e.Phase == proto.PhaseWaiting, at: e.ExpiresAt.UnixNano(), key: e.Key, Entry: e}
}

// Add counts an entry.
func (l *Ledger) Add(e *Entry) {
	for _, p := range partiesOf(e) {
		l.records.Set(recordOf(p, e))
		l.weigh(p, 1, e.weight)
	}
}

// Remove counts an entry no more. It has to be the one that was added.
func (l *Ledger) Remove(e *Entry) {
	for _, p := range partiesOf(e) {
		if _, counted := l.records.Delete(recordOf(p, e)); counted {
			l.weigh(p, -1, -e.weight)
		}
	}
}

func (l *Ledger) weigh(p party, events, bytes int) {
	now := weighed{p, l.load(p)}
	l.heavy.Delete(now)
	now.Events, now.Bytes = now.Events+events, now.Bytes+bytes
	if now.Events == 0 {
		l.loads.Delete(now)
		return
	}
	l.loads.Set(now)
	l.heavy.Set(now)
}

func (l *Ledger) load(p party) Load {
	w, _ := l.loads.Get(weighed{party: p})
	return w.Load
}

// All is the load of a pool: that reserved for owners and maintainers of served repositories, or
// that of everybody else.
func (l *Ledger) All(reserved bool) Load { return l.load(party{reserved: reserved, kind: everybody}) }

// Author is the load of an author in a pool.
func (l *Ledger) Author(reserved bool, pubkey string) Load {
	return l.load(party{reserved: reserved, kind: anAuthor, name: pubkey})
}

// first returns the entry of a party that gives way before the others: the one that has been silent
// longest, then the one whose time ends first. nil: it has none.
func (l *Ledger) first(p party) (e *Entry, silent bool) {
	l.records.Ascend(record{party: p, at: math.MinInt64}, func(r record) bool {
		if r.party == p {
			e, silent = r.Entry, !r.loud
		}
		return false
	})
	return e, silent
}

// heaviest returns the party that has most, of those that share pool, kind and source with like.
func (l *Ledger) heaviest(like party) (found weighed, ok bool) {
	like.name = ""
	l.heavy.Descend(weighed{party: like, Load: Load{Bytes: math.MaxInt}}, func(w weighed) bool {
		found = w
		w.name = ""
		ok = w.party == like
		return false
	})
	return found, ok
}

// weightOf is about what an event takes in memory, in bytes: strings and the slices that hold them,
// and what every entry needs besides.
func weightOf(ev *nostr.Event) int {
	const entry, slice, text = 1024, 24, 16
	size := entry + len(ev.Content)
	for _, tag := range ev.Tags {
		size += slice
		for _, value := range tag {
			size += text + len(value)
		}
	}
	return size
}
