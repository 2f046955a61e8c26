// This file remembers what was rejected: the ids for seven days, so that no worker fetches them
// again, and the events themselves for two minutes, where what they missed may be about to come.

package known

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"sync"
	"time"
	"unique"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// maxReason bounds the answer that is kept for every id, in bytes.
const maxReason = 200

// Rejected is the rejected ids of the last days, as of a sequence of GRASP_REJECTED. It is safe for
// concurrent use.
//
// It may grow to millions of entries, so that an entry holds bytes instead of hex, its missing keys
// as hashes (two keys that share one cost a second decision, nothing else), and its answer, which
// is nearly always one of a few, shared with the others.
type Rejected struct {
	maxAge time.Duration
	rules  string // the settings of now, in short: what was rejected by others does not count
	seed   maphash.Seed

	progress bus.Progress

	mu      sync.RWMutex
	entries map[key]*entry
	waiting map[uint64]*waitList // by hash of what is missing
	queue   []queued             // in order of time
}

type key [16]byte // the first half of an id

type entry struct {
	id        [32]byte
	pubkey    [32]byte
	createdAt nostr.Timestamp
	at        time.Time
	kind      uint16
	reason    unique.Handle[string]
	missing   []uint64
}

type queued struct {
	key key
	at  time.Time
}

// NewRejected makes an empty index whose entries are forgotten after maxAge. rules are the settings
// that decide what is rejected, in short.
func NewRejected(maxAge time.Duration, rules string) *Rejected {
	return &Rejected{
		maxAge: maxAge, rules: rules, seed: maphash.MakeSeed(),
		entries: map[key]*entry{}, waiting: map[uint64]*waitList{},
	}
}

// Encode writes the message of GRASP_REJECTED that remembers a rejection.
func (x *Rejected) Encode(r proto.RejectedEvent) ([]byte, error) {
	r.Rules, r.Reason = x.rules, truncated(r.Reason)
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write rejection of %s: %w", r.ID, err)
	}
	return data, nil
}

// Read takes one message of GRASP_REJECTED in. A message without payload takes back what its
// subject said before. Messages that are not after the index's sequence are known already. After an
// error the index has moved on all the same.
func (x *Rejected) Read(m bus.Message) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.progress.Advance(m.Seq) {
		return nil
	}
	s, err := proto.ParseRejectedSubject(m.Subject)
	if err != nil {
		return err
	}
	k, err := shortKey(s.ShortID)
	if err != nil {
		return err
	}
	x.remove(k)
	if len(m.Data) == 0 {
		return nil
	}
	var r proto.RejectedEvent
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return fmt.Errorf("read rejection %s: %w", m.Subject, err)
	}
	if proto.ShortID(r.ID) != s.ShortID {
		return fmt.Errorf("read rejection %s: it speaks of another event", m.Subject)
	}
	if r.Rules != x.rules {
		return nil
	}
	return x.add(r, m.Time)
}

func (x *Rejected) add(r proto.RejectedEvent, at time.Time) error {
	e := &entry{createdAt: r.CreatedAt, at: at, kind: uint16(r.Kind), reason: unique.Make(truncated(r.Reason))}
	if len(r.ID) != 64 || len(r.PubKey) != 64 {
		return errors.New("read rejection: id and public key are not 64 hex digits")
	}
	if _, err := hex.Decode(e.id[:], []byte(r.ID)); err != nil {
		return fmt.Errorf("read rejection: id: %w", err)
	}
	if _, err := hex.Decode(e.pubkey[:], []byte(r.PubKey)); err != nil {
		return fmt.Errorf("read rejection: public key: %w", err)
	}
	k := key(e.id[:16])
	x.remove(k)
	for _, missing := range r.Missing {
		h := maphash.String(x.seed, missing)
		e.missing = append(e.missing, h)
		l := x.waiting[h]
		if l == nil {
			l = &waitList{}
			x.waiting[h] = l
		}
		l.keys = append(l.keys, k)
	}
	x.entries[k] = e
	x.queue = append(x.queue, queued{key: k, at: at})
	return nil
}

func (x *Rejected) remove(k key) {
	e := x.entries[k]
	if e == nil {
		return
	}
	delete(x.entries, k)
	for _, h := range e.missing {
		// A key of the list is stale now. Thousands may leave one list one after the other, so that
		// it is tidied only when half of it is stale.
		l := x.waiting[h]
		if l.stale++; 2*l.stale < len(l.keys) {
			continue
		}
		if l.keys, l.stale = x.current(h, l.keys), 0; len(l.keys) == 0 {
			delete(x.waiting, h)
		}
	}
}

// waitList is what waits for one key: some of it may be gone already.
type waitList struct {
	keys  []key
	stale int
}

// current returns those of keys, each once, whose entries still wait for h.
func (x *Rejected) current(h uint64, keys []key) []key {
	some := make([]key, 0, len(keys))
	for _, k := range keys {
		if e := x.entries[k]; e != nil && slices.Contains(e.missing, h) {
			some = append(some, k)
		}
	}
	slices.SortFunc(some, func(a, b key) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(some)
}

// Answer returns the answer that an event got; false if it was not rejected, or so long ago that it
// is forgotten.
func (x *Rejected) Answer(id string, now time.Time) (reason string, found bool) {
	k, err := shortKey(proto.ShortID(id))
	if err != nil {
		return "", false
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	e := x.entries[k]
	if e == nil || now.Sub(e.at) >= x.maxAge {
		return "", false
	}
	return e.reason.Value(), true
}

// Remembered names a rejected event.
type Remembered struct {
	ID        string
	Kind      int
	CreatedAt nostr.Timestamp
}

// AnyWaiting reports whether anything was rejected because it missed something.
func (x *Rejected) AnyWaiting() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.waiting) > 0
}

// Waiting returns what was rejected because it missed this key.
func (x *Rejected) Waiting(missing string) []Remembered {
	x.mu.RLock()
	defer x.mu.RUnlock()
	h := maphash.String(x.seed, missing)
	l := x.waiting[h]
	if l == nil {
		return nil
	}
	keys := x.current(h, l.keys)
	all := make([]Remembered, 0, len(keys))
	for _, k := range keys {
		e := x.entries[k]
		all = append(all, Remembered{ID: hex.EncodeToString(e.id[:]), Kind: int(e.kind), CreatedAt: e.createdAt})
	}
	return all
}

// Find returns a rejected event by id.
func (x *Rejected) Find(id string) (Remembered, bool) {
	k, err := shortKey(proto.ShortID(id))
	if err != nil {
		return Remembered{}, false
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	e := x.entries[k]
	if e == nil {
		return Remembered{}, false
	}
	return Remembered{ID: hex.EncodeToString(e.id[:]), Kind: int(e.kind), CreatedAt: e.createdAt}, true
}

// Matching returns the rejected events that match the filter as far as is known of them: by id,
// kind, author and time. Tags are not kept, so that a filter by tags matches every one of them: for
// reconciliation, one id too many is one fetch less.
func (x *Rejected) Matching(f nostr.Filter, now time.Time) iter.Seq[Remembered] {
	f.Tags = nil
	return func(yield func(Remembered) bool) {
		for _, e := range x.snapshot(f, now) {
			r := Remembered{ID: hex.EncodeToString(e.id[:]), Kind: int(e.kind), CreatedAt: e.createdAt}
			if f.Matches(&nostr.Event{ID: r.ID, Kind: r.Kind, PubKey: hex.EncodeToString(e.pubkey[:]), CreatedAt: r.CreatedAt}) && !yield(r) {
				return
			}
		}
	}
}

// snapshot narrows down by what costs nothing to compare. Entries never change once they are in.
func (x *Rejected) snapshot(f nostr.Filter, now time.Time) []*entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var some []*entry
	for _, e := range x.entries {
		switch {
		case f.Since != nil && e.createdAt < *f.Since, f.Until != nil && e.createdAt > *f.Until:
		case f.Kinds != nil && !slices.Contains(f.Kinds, int(e.kind)):
		case now.Sub(e.at) >= x.maxAge:
		default:
			some = append(some, e)
		}
	}
	return some
}

// Expire lets go of what is too old.
func (x *Rejected) Expire(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for n < len(x.queue) && now.Sub(x.queue[n].at) >= x.maxAge {
		if e := x.entries[x.queue[n].key]; e != nil && e.at.Equal(x.queue[n].at) {
			x.remove(x.queue[n].key)
		}
		n++
	}
	if n > 0 {
		x.queue = slices.Clone(x.queue[n:])
	}
}

// Seq is the sequence of GRASP_REJECTED up to which messages are in.
func (x *Rejected) Seq() uint64 { return x.progress.Seq() }

// WaitFor waits until the index has reached seq, or ctx ends.
func (x *Rejected) WaitFor(ctx context.Context, seq uint64) error {
	return x.progress.WaitFor(ctx, seq)
}

// Len is how many ids are remembered.
func (x *Rejected) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.entries)
}

func shortKey(shortID string) (key, error) {
	var k key
	if len(shortID) != proto.ShortIDLength {
		return k, fmt.Errorf("short id %q: %w", shortID, proto.ErrSubject)
	}
	_, err := hex.Decode(k[:], []byte(shortID))
	return k, err
}

func truncated(s string) string {
	if len(s) > maxReason {
		return s[:maxReason]
	}
	return s
}
