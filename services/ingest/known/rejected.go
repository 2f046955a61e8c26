package known

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"time"
	"unique"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
)

const (
	// maxReason bounds the answer that is kept for every id, in bytes.
	maxReason = 200
	// day is how long an event is remembered that waited for its git data in vain for the first time:
	// a host may be down for an hour. The next time it is two days, then four, then seven.
	day = 24 * time.Hour
	// counted is how long it is known afterwards how often that was; peers are asked for everything
	// once a day.
	counted = 2 * day
	// mostKept is how many entries, and keys that they miss, are remembered: 140 MB of memory, and
	// what one commit can take back where all miss the same. The oldest go: they are fetched again,
	// and lose nothing.
	mostKept = 500_000
)

// Rejected is the rejected ids of the last days, as of a sequence of GRASP_REJECTED, which it
// follows while [bus.Follower.Run] runs. It is safe for concurrent use.
//
// It may grow to hundreds of thousands of entries, so that an entry holds bytes instead of hex, its
// missing keys as hashes (two keys that share one cost a second decision, nothing else), and its
// answer, which is nearly always one of a few, shared with the others.
type Rejected struct {
	*bus.Follower
	log    *slog.Logger
	maxAge time.Duration
	rules  string // the settings of now, in short: what was rejected by others does not count
	seed   maphash.Seed

	mu      sync.RWMutex
	seq     uint64 // everything up to here is in
	entries map[key]*entry
	waiting map[uint64][]key // by hash of what is missing, in order of coming
	queue   []*entry         // in order of time; those that are gone are still among them
	missed  int              // keys that all entries miss
	types   map[string]int   // how many of the entries are of which type of event
	over    map[string]int   // how many of which type were forgotten because of age or number
	fetches map[key]*fetch   // of entries to be asked for by id
}

type key [16]byte // the first half of an id

type entry struct {
	id        [32]byte
	pubkey    [32]byte
	createdAt nostr.Timestamp
	at        time.Time
	kind      uint16
	expired   uint8 // how often it waited in vain
	reason    unique.Handle[string]
	relay     unique.Handle[string] // that it came from; empty: none
	missing   []uint64
	healed    bool // something that it missed has come: it may be decided again
}

// NewRejected makes an empty index whose entries are forgotten after maxAge. rules are the settings
// that decide what is rejected, in short.
func NewRejected(js jetstream.JetStream, log *slog.Logger, maxAge time.Duration, rules string) *Rejected {
	x := &Rejected{
		log: log, maxAge: maxAge, rules: rules, seed: maphash.MakeSeed(),
		entries: map[key]*entry{}, waiting: map[uint64][]key{}, fetches: map[key]*fetch{},
		types: map[string]int{}, over: map[string]int{},
	}
	x.Follower = bus.NewFollower(js, bus.Reading{Stream: proto.StreamRejected}, log, bus.Each(x.take))
	return x
}

func (x *Rejected) take(m bus.Message) {
	if err := x.read(m); err != nil {
		x.log.Error("a rejection cannot be read", "error", err)
	}
}

// Apply takes a message in that the writer has stored. It is skipped when it is read from the
// stream.
func (x *Rejected) Apply(m bus.Message) {
	x.take(m)
	x.Advance(m.Seq)
}

// Encode writes the message of GRASP_REJECTED that remembers a rejection.
func (x *Rejected) Encode(r proto.RejectedEvent) []byte {
	r.Rules, r.Reason = x.rules, r.Reason[:min(len(r.Reason), maxReason)]
	data, _ := json.Marshal(r) // texts and numbers
	return data
}

// read takes one message in. One without payload takes back what its subject said before.
func (x *Rejected) read(m bus.Message) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if m.Seq <= x.seq {
		return nil
	}
	x.seq = m.Seq
	for len(x.queue) > 0 && (m.Time.Sub(x.queue[0].at) >= x.kept(x.queue[0]) || len(x.queue)+x.missed >= mostKept) {
		if k := x.queue[0].key(); x.entries[k] == x.queue[0] {
			x.over[x.queue[0].eventType()]++
			x.remove(k)
		}
		x.queue = x.queue[1:]
	}
	s, err := proto.ParseRejectedSubject(m.Subject)
	if err != nil {
		return err
	}
	k := shortKey(s.ShortID)
	x.remove(k)
	if len(m.Data) == 0 {
		return nil
	}
	var r proto.RejectedEvent
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return fmt.Errorf("read rejection %s: %w", m.Subject, err)
	}
	if r.Rules != x.rules {
		return nil
	}
	e := &entry{
		createdAt: r.CreatedAt, at: m.Time, kind: uint16(r.Kind), expired: uint8(min(r.Expired,
			255)), healed: len(r.FetchFrom) > 0,
		reason: unique.Make(r.Reason[:min(len(r.Reason), maxReason)]), relay: unique.Make(r.Relay),
	}
	if !nostr.ReadHex(e.id[:], r.ID) || !nostr.ReadHex(e.pubkey[:], r.PubKey) || e.key() != k {
		return errors.New("read rejection " + m.Subject + ": no such id or public key")
	}
	for _, missing := range r.Missing {
		if h := maphash.String(x.seed, missing); !slices.Contains(e.missing, h) {
			e.missing, x.waiting[h] = append(e.missing, h), append(x.waiting[h], k)
		}
	}
	x.types[e.eventType()]++
	x.entries[k], x.queue, x.missed = e, append(x.queue, e), x.missed+len(e.missing)
	if e.healed && len(x.fetches) < mostFetches {
		x.fetches[k] = newFetch(e, r.FetchFrom)
	}
	return nil
}

func (e *entry) key() key { return key(e.id[:len(key{})]) }

func (e *entry) eventType() string { return obs.EventTypeLabel(int(e.kind)) }

// Measure registers how many ids are remembered, and how many were forgotten, by type of event.
func (x *Rejected) Measure(r prometheus.Registerer) {
	with := promauto.With(r)
	for _, kind := range obs.EventTypes {
		label := prometheus.Labels{"event_type": kind}
		of := func(counts map[string]int) func() float64 {
			return func() float64 {
				x.mu.RLock()
				defer x.mu.RUnlock()
				return float64(counts[kind])
			}
		}
		with.NewGaugeFunc(prometheus.GaugeOpts{Name: "ngit_sync_rejected_cold_index_current", ConstLabels: label,
			Help: "Ids of rejected events that are remembered."}, of(x.types))
		with.NewCounterFunc(prometheus.CounterOpts{Name: "ngit_sync_rejected_cold_index_expired_total", ConstLabels: label,
			Help: "Ids of rejected events that were forgotten because of their age or their number."}, of(x.over))
	}
}

// remove forgets an entry. What waits for the same leaves mostly in the order in which it came.
func (x *Rejected) remove(k key) {
	e := x.entries[k]
	if e == nil {
		return
	}
	delete(x.entries, k)
	x.types[e.eventType()]--
	delete(x.fetches, k)
	x.missed -= len(e.missing)
	for _, h := range e.missing {
		list := x.waiting[h]
		switch i := slices.Index(list, k); {
		case len(list) == 1:
			delete(x.waiting, h)
		case i == 0:
			x.waiting[h] = list[1:]
		default:
			x.waiting[h] = slices.Delete(list, i, i+1)
		}
	}
}

// Find returns id, kind and reason of an event; false if it was not rejected, or so long ago that
// it is forgotten.
func (x *Rejected) Find(id string, now time.Time) (r proto.RejectedEvent, before bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	e := x.entries[shortKey(proto.ShortID(id))]
	if e == nil || x.isOver(e, now) {
		return r, false
	}
	return proto.RejectedEvent{ID: e.hexID(), Kind: int(e.kind), Reason: e.reason.Value()}, true
}

// Healed returns the kind of an event that was rejected and of which something that it missed has
// come since; false if that is not remembered.
func (x *Rejected) Healed(id string) (kind int, healed bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.entries[shortKey(proto.ShortID(id))]; e != nil {
		return int(e.kind), e.healed
	}
	return 0, false
}

// isOver reports whether an event may be decided again: what it missed has come, or it is only
// known how often it has expired.
func (x *Rejected) isOver(e *entry, now time.Time) bool {
	if e.healed {
		return true
	}
	lasts := x.maxAge
	if e.expired > 0 {
		lasts = min(lasts, backoff.After(int(e.expired), day, 7*day))
	}
	return now.Sub(e.at) >= lasts
}

// kept is how long an entry is kept.
func (x *Rejected) kept(e *entry) time.Duration {
	if e.expired > 0 {
		return x.maxAge + counted
	}
	return x.maxAge
}

// Expired is how often an event waited for its git data in vain, as far as that is known.
func (x *Rejected) Expired(id string) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.entries[shortKey(proto.ShortID(id))]; e != nil {
		return int(e.expired)
	}
	return 0
}

func (e *entry) hexID() string { return hex.EncodeToString(e.id[:]) }

// Waiting returns what was rejected because it missed this key, and from which relay it came: the
// first that came, but for those that are passed over. more: others miss it too.
func (x *Rejected) Waiting(missing string, most int, passOver func(id string) bool) (events []proto.RejectedEvent,
	more bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, k := range x.waiting[maphash.String(x.seed, missing)] {
		e := x.entries[k]
		id := e.hexID()
		if passOver(id) {
			continue
		}
		if len(events) >= most {
			return events, true
		}
		events = append(events, proto.RejectedEvent{
			ID: id, Kind: int(e.kind), PubKey: hex.EncodeToString(e.pubkey[:]), CreatedAt: e.createdAt,
			Reason: e.reason.Value(), Relay: e.relay.Value(),
		})
	}
	return events, false
}

// Matching returns the rejected events that match the filter as far as is known of them: by id,
// kind, author and time.
func (x *Rejected) Matching(f nostr.Filter, now time.Time) (items []reconcile.Item) {
	f.Tags = nil
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, e := range x.entries {
		if f.Kinds != nil && !slices.Contains(f.Kinds, int(e.kind)) || x.isOver(e, now) {
			continue // most, without an event being made of them
		}
		if f.Matches(&nostr.Event{ID: e.hexID(), PubKey: hex.EncodeToString(e.pubkey[:]), CreatedAt: e.createdAt,
			Kind: int(e.kind)}) {
			items = append(items, reconcile.Item{CreatedAt: e.createdAt, ID: e.id})
		}
	}
	return items
}

// Len is how many ids are remembered.
func (x *Rejected) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.entries)
}

func shortKey(shortID string) (k key) {
	nostr.ReadHex(k[:], shortID)
	return k
}
