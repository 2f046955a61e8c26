package known

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
)

const (
	// forgetAfter is how long gathered sets are used again: for the next steps of a session, and of
	// sessions with other relays that are asked the same.
	forgetAfter = 30 * time.Second
	// keptBytes bounds what is kept.
	keptBytes = 32 << 20
)

// gathered is what had to be read for a filter at a sequence of the log.
type gathered struct {
	items reconcile.Packed // accepted, held and rejected
	seq   uint64
}

func (g gathered) bytes() int { return cap(g.items) * reconcile.ItemBytes }

// memory keeps gathered sets for a while, within a bound. It is safe for concurrent use.
type memory struct {
	mu    sync.Mutex
	byKey map[filterKey]*list.Element
	order list.List // of *remembered, the oldest first
	bytes int
}

// filterKey stands for a filter.
type filterKey [sha256.Size]byte

type remembered struct {
	key filterKey
	gathered
	at time.Time
}

func newMemory() *memory { return &memory{byKey: map[filterKey]*list.Element{}} }

func keyOf(f nostr.Filter) filterKey { return sha256.Sum256([]byte(f.String())) }

// get returns what is kept of a filter, of seq or later, or gathers it.
func (m *memory) get(k filterKey, seq uint64, gather func() (gathered, error)) (gathered, error) {
	m.mu.Lock()
	m.forget(time.Now())
	if e := m.byKey[k]; e != nil && e.Value.(*remembered).seq >= seq {
		defer m.mu.Unlock()
		return e.Value.(*remembered).gathered, nil
	}
	m.mu.Unlock()
	g, err := gather()
	if err != nil || g.bytes() > keptBytes/4 {
		return g, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(m.byKey[k])
	m.byKey[k] = m.order.PushBack(&remembered{k, g, time.Now()})
	m.bytes += g.bytes()
	for m.bytes > keptBytes {
		m.drop(m.order.Front())
	}
	return g, nil
}

// forget drops what is too old; the caller holds the lock.
func (m *memory) forget(now time.Time) {
	for e := m.order.Front(); e != nil && now.Sub(e.Value.(*remembered).at) >= forgetAfter; e = m.order.Front() {
		m.drop(e)
	}
}

func (m *memory) drop(e *list.Element) {
	if e == nil {
		return
	}
	r := m.order.Remove(e).(*remembered)
	delete(m.byKey, r.key)
	m.bytes -= r.bytes()
}
